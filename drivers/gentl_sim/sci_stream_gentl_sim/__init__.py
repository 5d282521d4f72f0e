"""A simulated SCI camera as a GenTL producer in C++, for any GenICam program."""
