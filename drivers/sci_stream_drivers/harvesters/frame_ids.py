"""Numbering of a camera's frames, and detection of restarts."""

from __future__ import annotations

from typing import Any

from sci_stream.model import FrameIds
from sci_stream_drivers.harvesters.library import feature

# GigE Vision 1.x block ids; 0 marks test packets and is skipped.
_GIGE_LAST = 65535
_EXTENDED = ("GevGVSPExtendedIDMode", "GevSCCFGExtendedIDMode")


def frame_ids_of(transport: str, node_map: Any, last: int | None) -> FrameIds:
    """Return the numbering of a camera's frames.

    GigE Vision counts blocks in 16 bits, from 1, and skips 0 on wrap-around. With extended ids, and with any other
    transport, ids have 64 bits, which never wrap; they start at 0 or 1.

    ``transport`` is the type of the transport layer in GenTL: ``GEV``, ``U3V``, ``CXP``, …; ``last`` the highest id, if
    the options give it.
    """
    if last is not None:
        return FrameIds(0 if transport == "U3V" else 1, last)
    extended = any(str(feature(node_map, name)) == "On" for name in _EXTENDED)
    return FrameIds(1, _GIGE_LAST) if transport == "GEV" and not extended else FrameIds()


class RestartDetector:
    """Detect that a camera has restarted its frame counter, as after a reset.

    Repeated ids, wrap-arounds and gaps are not restarts. An id that goes back is: frames do not overtake each other in
    a producer. So is a timestamp that goes back: it distinguishes a restart from a wide gap over a wrap-around.
    """

    def __init__(self, ids: FrameIds) -> None:
        self._ids = ids
        self._id: int | None = None
        self._time_ns: int | None = None

    def restarted(self, frame_id: int | None, camera_time_ns: int | None) -> bool:
        """Process a frame; return whether it belongs to another count than the previous one."""
        before_id, before_ns = self._id, self._time_ns
        self._id, self._time_ns = frame_id, camera_time_ns
        if before_ns is not None and camera_time_ns is not None and camera_time_ns < before_ns:
            return True
        # A repeated id is no restart; the acquire node discards the duplicate.
        if before_id is None or frame_id is None or frame_id == before_id:
            return False
        return self._ids.missed(before_id, frame_id) < 0
