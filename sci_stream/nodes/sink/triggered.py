"""Triggered recording at the sink: figures of snapshots, and their state until each has its
outcome.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from sci_stream.config import Rig
from sci_stream.delivery.trigger_ring import Condition, Event, EventRing, TriggerState
from sci_stream.model import Array, Reconstruction, SeriesInfo, Snapshot
from sci_stream.wire.codec import payload_bytes
from sci_stream.wire.messages import Dropped

log = logging.getLogger(__name__)

# Motion is compared in blocks of so many pixels each way: the mean of 256 pixels has a sixteenth of
# their noise.
_BLOCK_PX = 16
# The acquire node holds undecided snapshots in its own memory, next to those that wait for a node
# or the disk.
_SHARE_OF_RING = 0.5
# The file is written before each acknowledgement.
_SAVED_EVENTS = 48


class TriggeredSeries:
    """The events of a series, and the snapshots that were delivered before their raw counts are
    decided.

    A snapshot that is not kept, or whose raw counts cannot be written, has its outcome at once;
    another when it was ``delivered``, too: reconstructed, or not. A delivered video waits for the
    decision in memory, though its node has its acknowledgement and works on: if the sink dies, or
    the memory is short, its raw counts are still there.
    """

    def __init__(
        self, info: SeriesInfo, rig: Rig, saturation_dn: float | None, state: TriggerState
    ) -> None:
        record = rig.record
        self._max_bytes = int(_SHARE_OF_RING * (rig.policy.ring_mib << 20))
        conditions = [Condition.parse(text) for text in record.trigger]
        before_ns = round(record.before_s * 1e9)
        after_ns = round(record.after_s * 1e9)
        self.ring = EventRing(before_ns, after_ns, conditions, self._max_bytes, state)
        self._wanted = {condition.figure for condition in conditions}
        self._name = info.series
        self._full_scale = float((1 << info.bit_depth) - 1)
        self._saturation_dn = self._full_scale if saturation_dn is None else saturation_dn
        self._blocks: Array | None = None
        self.delivered: dict[int, Reconstruction | Dropped] = {
            seq: self._without_video(seq) for seq in state.delivered
        }
        self._video_bytes = 0
        self._warned = False

    def saved(self, is_settled: Callable[[int], bool]) -> TriggerState:
        """Return the state for the next process, without deliveries of snapshots that have their
        outcome.
        """
        state = self.ring.state
        for seq in filter(is_settled, list(self.delivered)):
            self.take(seq)
            del self.delivered[seq]
        return replace(state, events=state.events[-_SAVED_EVENTS:], delivered=list(self.delivered))

    def add(self, snapshot: Snapshot) -> Event | None:
        """Add raw counts; return the event that they trigger."""
        event = self.ring.add(
            snapshot.id.seq, snapshot.host_time_ns, payload_bytes(snapshot), self._figures(snapshot)
        )
        if self.ring.is_short and not self._warned:
            self._warned = True
            log.warning(
                "memory for undecided snapshots (half of [policy] ring_mib) holds less than "
                "[record] before_s: events "
                "begin later than that"
            )
        return event

    def _figures(self, snapshot: Snapshot) -> dict[str, float]:
        counts = snapshot.counts
        figures = {
            f"chunk_{name}": float(value)
            for name, value in snapshot.chunks.items()
            if not isinstance(value, str)
        }
        if "brightness" in self._wanted:
            figures["brightness"] = float(counts.mean()) / self._full_scale
        if "saturated" in self._wanted:
            figures["saturated"] = float(np.mean(counts >= self._saturation_dn))
        if "motion" in self._wanted:
            blocks = self._blocks
            self._blocks = block_means(counts)
            if blocks is not None:
                figures["motion"] = float(np.abs(self._blocks - blocks).max()) / self._full_scale
        return figures

    def hold(self, seq: int, message: Reconstruction | Dropped) -> None:
        """Hold a delivery until the raw counts of its snapshot are decided."""
        self.delivered[seq] = message
        self._video_bytes += payload_bytes(message)
        for other, held in self.delivered.items() if self._video_bytes > self._max_bytes else ():
            if self._video_bytes > self._max_bytes:
                self._video_bytes -= payload_bytes(held)
                self.delivered[other] = self._without_video(other)

    def take(self, seq: int) -> Reconstruction | Dropped | None:
        """Return the delivery of a snapshot, None if it has not come; it is known without its video
        from now on.
        """
        message = self.delivered.get(seq)
        if message is not None:
            self._video_bytes -= payload_bytes(message)
            self.delivered[seq] = self._without_video(seq)
        return message

    def _without_video(self, seq: int) -> Dropped:
        return Dropped(self._name, 0, seq, "", "raw_only")


def block_means(counts: Array) -> Array:
    """Return the means of blocks of 16×16 pixels, (H // 16, W // 16), at least one in each
    direction, DN.
    """
    height, width = (max(1, size // _BLOCK_PX) for size in counts.shape)
    sizes = [min(size, _BLOCK_PX) for size in counts.shape]
    whole = counts[: height * sizes[0], : width * sizes[1]]
    # Along the columns first, which is several times faster than both at once.
    rows = whole.reshape(height, sizes[0], -1).sum(axis=1, dtype=np.float32)
    means: Array = rows.reshape(height, width, sizes[1]).sum(axis=2) / (sizes[0] * sizes[1])
    return means


def mean_brightness(counts: Array, bit_depth: int) -> float | None:
    """Return the mean as a fraction of full scale, from every fourth pixel each way; None for
    counts without one.
    """
    if counts.dtype.kind in "iu":
        return float(counts[::4, ::4].mean()) / ((1 << bit_depth) - 1)
    return None
