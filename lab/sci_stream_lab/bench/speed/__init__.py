"""Reconstruction time: per iteration, per snapshot, and to the published result."""
