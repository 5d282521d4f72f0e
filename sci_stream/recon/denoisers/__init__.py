"""The denoisers (image and video priors), their registry and their weights."""
