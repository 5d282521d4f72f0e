"""Networks of others that recover the frames at once."""
