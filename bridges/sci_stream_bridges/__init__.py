"""Bridges to other programs: napari, EPICS PVAccess, ophyd-async, deepinv.

Each needs its optional extra.
"""
