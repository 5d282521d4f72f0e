"""Bridges to other programs: napari, EPICS PVAccess, ophyd-async. Each needs its optional extra."""
