"""Initial estimates: the linear (LMMSE) cold start, the warm start and their estimated errors."""
