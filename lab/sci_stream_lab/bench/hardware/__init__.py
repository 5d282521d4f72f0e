"""Rigs whose hardware misbehaves, and the verdict on the checks of a rig."""
