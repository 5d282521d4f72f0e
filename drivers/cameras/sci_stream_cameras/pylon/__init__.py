"""Basler cameras through pylon, and pylon's camera emulator: ``pip install
'sci-stream-cameras[pylon]'``.
"""

from __future__ import annotations

from sci_stream_cameras.pylon.camera import PylonCamera

__all__ = ["PylonCamera"]
