"""Live video from snapshot compressive imaging cameras.

What other programs need of a running instrument is here::

    import sci_stream

    for reconstruction in sci_stream.subscribe("tcp://127.0.0.1:5703"):
        print(reconstruction.id.seq, reconstruction.video.shape)

    sci_stream.control("http://127.0.0.1:8765").set("reconstruct", iterations=12)

    with sci_stream.open("recordings/run.h5") as recording:
        print(recording.video.shape, recording.table["iterations"].mean())
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sci_stream.control_client import control
    from sci_stream.storage.recording.series import open_recording as open
    from sci_stream.transport.pubsub import subscribe

__all__ = ["__version__", "control", "open", "subscribe"]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    # On demand: most of this package is used by processes that must not load ZeroMQ for it.
    if name == "subscribe":
        from sci_stream.transport.pubsub import subscribe

        return subscribe
    if name == "control":
        from sci_stream.control_client import control

        return control
    if name == "open":
        from sci_stream.storage.recording.series import open_recording

        return open_recording
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
