"""Numbering of a camera's frames, its clock, and detection of restarts."""

from __future__ import annotations

from typing import Any

from sci_stream.plugins import FrameIds
from sci_stream_drivers.genicam.library import feature

# GigE Vision 1.x block ids; 0 marks test packets and is skipped.
_GIGE_LAST = 65535
_EXTENDED = ("GevGVSPExtendedIDMode", "GevSCCFGExtendedIDMode")
# Ticks of clocks of 32 bits: their names as durations until they wrap, ns. In µs that is 71.6
# minutes.
_WRAPS_NS = tuple(round(2**32 * 1e9 / hz) for hz in (1e9, 1e8, 1.25e8, 6.25e7, 1e6, 1e3))
# Host and camera clocks differ by less than this, relative to the time that has passed, and by the
# delay of a frame.
_CLOCK_ERROR = 1e-3
_DELAY_NS = 2_000_000_000


def frame_ids_of(transport: str, node_map: Any, last: int | None) -> FrameIds:
    """Return the numbering of a camera's frames.

    GigE Vision counts blocks in 16 bits, from 1, and skips 0 on wrap-around. With extended ids, and
    with any other transport, ids have 64 bits, which never wrap; they start at 0 or 1.

    ``transport`` is the type of the transport layer in GenTL: ``GEV``, ``U3V``, ``CXP``, …;
    ``last`` the highest id, if the options give it.
    """
    if last is not None:
        return FrameIds(0 if transport == "U3V" else 1, last)
    extended = any(str(feature(node_map, name)) == "On" for name in _EXTENDED)
    return FrameIds(1, _GIGE_LAST) if transport == "GEV" and not extended else FrameIds()


class RestartDetector:
    """Detect that a camera has restarted its frame counter, as after a reset.

    Repeated ids, wrap-arounds and gaps are not restarts. An id that goes back is: frames do not
    overtake each other in a producer. A timestamp that goes back is none by itself, since clocks of
    32 bits wrap; together with a lower id it distinguishes a restart from a wide gap over a
    wrap-around.
    """

    def __init__(self, ids: FrameIds) -> None:
        self._ids = ids
        self._id: int | None = None
        self._time_ns: int | None = None

    def restarted(self, frame_id: int | None, camera_time_ns: int | None) -> bool:
        """Process a frame; return whether it belongs to another count than the previous one."""
        before_id = self._id
        before_ns = self._time_ns
        self._id = frame_id
        self._time_ns = camera_time_ns
        # A repeated id is no restart; the acquire node discards the duplicate.
        if before_id is None or frame_id is None or frame_id == before_id:
            return False
        back = before_ns is not None and camera_time_ns is not None and camera_time_ns < before_ns
        return (back and frame_id < before_id) or self._ids.missed(before_id, frame_id) < 0


class CameraClock:
    """Continue the timestamps of a camera whose clock wraps.

    A step back by the range of a 32-bit clock is undone. Which clock it is, the host's clock
    reports. A step back by anything else is passed on: the clock was set or synchronised.
    """

    def __init__(self) -> None:
        self._camera_ns: int | None = None
        self._host_ns = 0
        self._wrapped_ns = 0

    def unwrapped(self, camera_ns: int | None, host_ns: int) -> int | None:
        """Return the timestamp of a frame, ns, continued over wrap-arounds; ``host_ns`` is the time
        of its arrival.
        """
        if camera_ns is None:
            return None
        if self._camera_ns is not None and camera_ns < self._camera_ns:
            elapsed_ns = host_ns - self._host_ns
            step_ns = self._camera_ns + elapsed_ns - camera_ns
            nearest_ns = min(_WRAPS_NS, key=lambda wrap_ns: abs(step_ns - wrap_ns))
            if abs(step_ns - nearest_ns) < _DELAY_NS + _CLOCK_ERROR * elapsed_ns:
                self._wrapped_ns += nearest_ns
        self._camera_ns = camera_ns
        self._host_ns = host_ns
        return camera_ns + self._wrapped_ns
