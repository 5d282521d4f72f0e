"""Starts and supervises all nodes of a rig on one machine."""
