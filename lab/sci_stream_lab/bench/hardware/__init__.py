"""Rigs whose hardware misbehaves, and what the guarded solve of a rig says about them."""
