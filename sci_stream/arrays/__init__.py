"""Reconstruct arrays: ``sci_stream.reconstruct``, ``reconstruct_stream`` and ``solve``."""
