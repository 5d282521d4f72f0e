"""Basler cameras through pylon, and pylon's camera emulator: ``pip install 'sci-stream[pylon]'``."""

from __future__ import annotations

from sci_stream_drivers.pylon.camera import PylonCamera

__all__ = ["PylonCamera"]
