"""Triggered recording at the sink: figures of snapshots, and their state until each has its outcome."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np

from sci_stream.config import Rig
from sci_stream.delivery.trigger_ring import Condition, Event, EventRing, TriggerState
from sci_stream.model import Array, Reconstruction, SeriesInfo, Snapshot
from sci_stream.nodes.sink.series_recording import Written
from sci_stream.wire.codec import payload_bytes
from sci_stream.wire.messages import Dropped

log = logging.getLogger(__name__)

# Motion is compared in blocks of so many pixels each way: the mean of 256 pixels has a sixteenth of their noise.
_BLOCK_PX = 16
# The acquire node holds undecided snapshots in its own memory, next to those that wait for a node or the disk.
_SHARE_OF_RING = 0.5
# The file is written before each acknowledgement.
_SAVED_EVENTS = 48


class TriggeredSeries:
    """The events of a series, and two facts about each snapshot in flight, which come in any order.

    Its raw counts are ``decided``: not kept, or written, lost, not recorded. It is ``delivered``: it was reconstructed,
    or will not be. With both it has its outcome. A delivered video waits for the decision in memory, though its node
    has its acknowledgement and works on: if the sink dies, or the memory is short, its raw counts are still there.
    """

    def __init__(self, info: SeriesInfo, rig: Rig, saturation_dn: float | None, state: TriggerState) -> None:
        record = rig.record
        self._max_bytes = int(_SHARE_OF_RING * (rig.policy.ring_mib << 20))
        conditions = [Condition.parse(text) for text in record.trigger]
        before_ns, after_ns = round(record.before_s * 1e9), round(record.after_s * 1e9)
        self.ring = EventRing(before_ns, after_ns, conditions, self._max_bytes, state)
        self._wanted = {condition.figure for condition in conditions}
        self._name = info.series
        self._full_scale = float((1 << info.bit_depth) - 1)
        self._saturation_dn = self._full_scale if saturation_dn is None else saturation_dn
        self._blocks: Array | None = None
        self._solves_all = record.reconstruct == "all"
        self.decided = state.decided
        self.delivered: dict[int, Reconstruction | Dropped] = {seq: self._without_video(seq) for seq in state.delivered}
        self._video_bytes = 0
        self._warned = False

    @property
    def events(self) -> list[Event]:
        """The events so far, or the last ones before a restart."""
        return self.ring.state.events

    def saved(self) -> TriggerState:
        """Return the state for the next process."""
        state = self.ring.state
        return replace(state, events=state.events[-_SAVED_EVENTS:], delivered=list(self.delivered))

    def add(self, snapshot: Snapshot) -> Event | None:
        """Add raw counts; return the event that they trigger."""
        event = self.ring.add(snapshot.id.seq, snapshot.host_time_ns, payload_bytes(snapshot), self._figures(snapshot))
        if self.ring.is_short and not self._warned:
            self._warned = True
            log.warning(
                "memory for undecided snapshots (half of [policy] ring_mib) holds less than [record] before_s: events "
                "begin later than that"
            )
        return event

    def _figures(self, snapshot: Snapshot) -> dict[str, float]:
        counts = snapshot.counts
        figures = {
            f"chunk_{name}": float(value) for name, value in snapshot.chunks.items() if not isinstance(value, str)
        }
        if "brightness" in self._wanted:
            figures["brightness"] = float(counts.mean()) / self._full_scale
        if "saturated" in self._wanted:
            figures["saturated"] = float(np.mean(counts >= self._saturation_dn))
        if "motion" in self._wanted:
            blocks, self._blocks = self._blocks, block_means(counts)
            if blocks is not None:
                figures["motion"] = float(np.abs(self._blocks - blocks).max()) / self._full_scale
        return figures

    def decide(self, seq: int, written: str) -> Reconstruction | Dropped | None:
        """Note what became of the raw counts; return the delivery if it came before, or if none will come."""
        self.decided[seq] = written
        if written == Written.NOT_KEPT and not self._solves_all:
            return self._without_video(seq)
        message = self.delivered.get(seq)
        if isinstance(message, Reconstruction):
            self._drop_video(seq)
        return message

    def deliver(self, seq: int, message: Reconstruction | Dropped) -> str | None:
        """Note a delivery; return what became of the raw counts, None if it has to wait for that."""
        self.delivered[seq] = self._without_video(seq)
        written = self.decided.get(seq)
        if written is None:
            self.delivered[seq] = message
            self._video_bytes += _video_bytes(message)
            for other in list(self.delivered) if self._video_bytes > self._max_bytes else ():
                if self._video_bytes > self._max_bytes:
                    self._drop_video(other)
        return written

    def _drop_video(self, seq: int) -> None:
        self._video_bytes -= _video_bytes(self.delivered[seq])
        self.delivered[seq] = self._without_video(seq)

    def _without_video(self, seq: int) -> Dropped:
        return Dropped(self._name, 0, seq, "", "raw_only")

    def forget(self, seq: int) -> None:
        """Forget a snapshot that has its outcome."""
        self.decided.pop(seq, None)
        self.delivered.pop(seq, None)


def _video_bytes(message: Reconstruction | Dropped) -> int:
    return payload_bytes(message) if isinstance(message, Reconstruction) else 0


def block_means(counts: Array) -> Array:
    """Return the means of blocks of 16×16 pixels, (H // 16, W // 16), at least one in each direction, DN."""
    height, width = (max(1, size // _BLOCK_PX) for size in counts.shape)
    sizes = [min(size, _BLOCK_PX) for size in counts.shape]
    whole = counts[: height * sizes[0], : width * sizes[1]]
    # Along the columns first, which is several times faster than both at once.
    rows = whole.reshape(height, sizes[0], -1).sum(axis=1, dtype=np.float32)
    means: Array = rows.reshape(height, width, sizes[1]).sum(axis=2) / (sizes[0] * sizes[1])
    return means


def mean_brightness(counts: Array, bit_depth: int) -> float | None:
    """Return the mean as a fraction of full scale, from every fourth pixel each way; None for counts without one."""
    return float(counts[::4, ::4].mean()) / ((1 << bit_depth) - 1) if counts.dtype.kind in "iu" else None
