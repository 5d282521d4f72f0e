"""GenICam cameras through Harvesters: any vendor's camera that comes with a GenTL producer (a
``.cti`` file).

Needs the optional packages ``harvesters`` and ``genicam``: ``pip install 'sci-stream[genicam]'``.
They are imported only when a camera is opened or searched for, so that options and pixel formats
are available without them.
"""

from __future__ import annotations

from sci_stream_drivers.harvesters.camera import HarvestersCamera
from sci_stream_drivers.harvesters.options import HarvestersOptions

__all__ = ["HarvestersCamera", "HarvestersOptions"]
