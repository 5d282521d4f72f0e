"""GenICam cameras through Harvesters: any vendor's camera that comes with a GenTL producer (a ``.cti`` file).

Needs the optional packages ``harvesters`` and ``genicam``: ``pip install 'sci-stream[genicam]'``. Nothing here imports
them before a camera is opened or looked for, so that options and pixel formats are known without them.
"""

from __future__ import annotations

from sci_stream_drivers.harvesters.camera import HarvestersCamera
from sci_stream_drivers.harvesters.options import HarvestersOptions

__all__ = ["HarvestersCamera", "HarvestersOptions"]
