"""A simulated SCI camera as a GenTL producer in C++, which any GenICam program opens like a vendor's."""
