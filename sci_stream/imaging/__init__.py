"""Rendering of reconstructed video: demosaicing, tone mapping, encoding."""
