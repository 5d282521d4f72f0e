"""Scenes of the simulated camera that are rendered in advance, as clips."""
