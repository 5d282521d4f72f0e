"""Priors that change groups of similar patches, found across the frames of a video."""
