"""Live video from snapshot compressive imaging cameras.

What other programs need is here::

    import sci_stream

    # NumPy or torch: y (H, W) or (N, H, W), masks (B, H, W)
    result = sci_stream.reconstruct(y, masks)
    print(result.video.shape, result.report)

    for reconstruction in sci_stream.subscribe("tcp://127.0.0.1:5703"):
        print(reconstruction.id.seq, reconstruction.video.shape)

    sci_stream.control("http://127.0.0.1:8765").set("reconstruct", iterations=12)

    with sci_stream.open("recordings/run.h5") as recording:
        print(recording.video.shape, recording.table["iterations"].mean())
"""

from __future__ import annotations

import os
import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sci_stream.arrays.api import (
        DataWarning,
        MaskMismatchWarning,
        Reconstructed,
        reconstruct,
        reconstruct_stream,
    )
    from sci_stream.files.measurement_file import load_measurement
    from sci_stream.recon.networks.network import Network
    from sci_stream.recording.series import open_recording as open
    from sci_stream.tools.replay.replay import replay_recording as replay
    from sci_stream.transport.pubsub import subscribe
    from sci_stream.web.control_client import control

__all__ = [
    "DataWarning",
    "MaskMismatchWarning",
    "Network",
    "Reconstructed",
    "__version__",
    "control",
    "load_measurement",
    "open",
    "reconstruct",
    "reconstruct_stream",
    "replay",
    "subscribe",
]

__version__ = "0.2.0"

# OpenCV reads these when it is imported. No sensor has as many pixels; a damaged header may declare
# any number.
os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(1 << 28))
os.environ.setdefault(
    "OPENCV_LOG_LEVEL", "SILENT"
)  # the errors of this package name the file and the reason


# Where each name is. Imported on demand: most of this package is used by processes that must not
# load torch for it.
_PLACES = {
    "DataWarning": "sci_stream.arrays.api:DataWarning",
    "MaskMismatchWarning": "sci_stream.arrays.api:MaskMismatchWarning",
    "Network": "sci_stream.recon.networks.network:Network",
    "Reconstructed": "sci_stream.arrays.api:Reconstructed",
    "control": "sci_stream.web.control_client:control",
    "load_measurement": "sci_stream.files.measurement_file:load_measurement",
    "open": "sci_stream.recording.series:open_recording",
    "reconstruct": "sci_stream.arrays.api:reconstruct",
    "reconstruct_stream": "sci_stream.arrays.api:reconstruct_stream",
    "replay": "sci_stream.tools.replay.replay:replay_recording",
    "subscribe": "sci_stream.transport.pubsub:subscribe",
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return pkgutil.resolve_name(_PLACES[name])
    except ModuleNotFoundError as error:
        from sci_stream.errors import missing_library  # noqa: PLC0415 - of errors alone

        raise missing_library(error) or error from None


def __dir__() -> list[str]:
    return __all__
