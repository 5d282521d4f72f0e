"""GigE Vision and USB3 Vision cameras through Aravis, without any maker's SDK.

Needs the library Aravis 0.8 or 0.10 (Debian: ``apt-get install libaravis-0.8-0``) and the package
``genicam`` (``pip install 'sci-stream[genicam]'``), which reads the camera's description.
"""

from __future__ import annotations

from sci_stream_cameras.aravis.camera import AravisCamera, AravisOptions

__all__ = ["AravisCamera", "AravisOptions"]
