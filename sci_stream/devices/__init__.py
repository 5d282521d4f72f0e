"""Cameras, modulators and solver of a rig, and the analyses of its videos: plug-ins by name."""
