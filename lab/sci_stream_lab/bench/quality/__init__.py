"""Reconstruction quality: published sets, warm starts, colour."""
