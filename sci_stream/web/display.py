"""The content of the live page: the newest reconstruction, the tone for all viewers, and the
snapshots shown before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from sci_stream.errors import InputError
from sci_stream.imaging.tone import ToneSettings
from sci_stream.model import JsonObject, Reconstruction
from sci_stream.parameters import Changes
from sci_stream.wire.codec import payload_bytes

# Snapshots that were shown stay in memory, so that a viewer who pauses can save the one on the
# screen.
_LIVE_BYTES = 256 << 20
# Viewers who leaf through recordings must not take the live ones from the others, nor much memory.
_RECORDED_BYTES = 32 << 20


class _Recent:
    """The snapshots that were shown last, each once, by series and seq: in bounded memory."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._n_bytes = 0
        self._snapshots: dict[tuple[str, int], Reconstruction] = {}

    def __len__(self) -> int:
        return len(self._snapshots)

    def add(self, shown: Reconstruction) -> None:
        key = shown.id.series, shown.id.seq
        if key in self._snapshots:
            self._remove(key)
        self._snapshots[key] = shown
        self._n_bytes += payload_bytes(shown)
        while len(self._snapshots) > 1 and self._n_bytes > self._max_bytes:
            self._remove(next(iter(self._snapshots)))

    def _remove(self, key: tuple[str, int]) -> None:
        self._n_bytes -= payload_bytes(self._snapshots.pop(key))

    def find(self, series: str, seq: int) -> Reconstruction | None:
        return self._snapshots.get((series, seq))

    def seqs_after(self, series: str, seq: int) -> list[int]:
        return sorted(number for name, number in self._snapshots if name == series and number > seq)


class Display:
    """The newest reconstruction and its tone. Thread-safe; only `next_view` takes time.

    ``is_watched`` returns whether there are viewers. Call `refresh` when one joins. Live snapshots
    stay in ``live_bytes`` of memory.
    """

    def __init__(
        self, tone: ToneSettings, is_watched: Callable[[], bool], live_bytes: int = _LIVE_BYTES
    ) -> None:
        self.tone = tone
        """Current tone settings."""
        self.tone_by = ""
        """The operator who set them; empty for those of the rig file."""
        self.bit_depth: int | None = None
        """Bit depth of the sensor, if known."""
        self.published = 0
        """Number of reconstructions published."""
        self._is_watched = is_watched
        self._changed = threading.Condition()
        self._newest: tuple[Reconstruction, int] | None = None
        self._view: tuple[Reconstruction, int, ToneSettings] | None = None
        self._live = _Recent(live_bytes)
        self._recorded = _Recent(_RECORDED_BYTES)
        self._closed = False

    def publish(self, reconstruction: Reconstruction, now_ns: int) -> None:
        """Show a reconstruction unless a newer one arrives first; its arrays must not be modified
        afterwards.
        """
        with self._changed:
            self._newest = reconstruction, now_ns
            self.published += 1
            self._changed.notify_all()

    def refresh(self, *, again: bool) -> None:
        """Wake `next_view` for a new viewer; ``again`` to return the present view again."""
        with self._changed:
            if again:
                self._view = None
            self._changed.notify_all()

    def next_view(self) -> tuple[Reconstruction, int, ToneSettings] | None:
        """Wait for a reconstruction or tone that viewers have not seen; None once closed.

        Return also the Unix time at which it arrived, ns.
        """
        with self._changed:
            while not self._closed:
                wanted = None if self._newest is None else (*self._newest, self.tone)
                # Encoding costs 7 to 20 ms of a core per image (docs/decisions/tone.md): nothing is
                # encoded without a viewer.
                if wanted is not None and wanted != self._view and self._is_watched():
                    self._view = wanted
                    self.keep(wanted[0])
                    return wanted
                self._changed.wait()
            return None

    def keep(self, reconstruction: Reconstruction, *, live: bool = True) -> None:
        """Keep a reconstruction that is shown, for its values and stills.

        One that is not ``live`` is of a recording, or refined.
        """
        with self._changed:
            (self._live if live else self._recorded).add(reconstruction)

    def find_shown(self, series: str, seq: int) -> Reconstruction:
        """Return a snapshot that was shown. Raises `InputError` if it is no longer in memory."""
        with self._changed:
            snapshot = self._live.find(series, seq) or self._recorded.find(series, seq)
            n_shown = len(self._live) + len(self._recorded)
        if snapshot is None:
            raise InputError(
                f"Snapshot {seq} of series {series!r} is no longer in memory",
                expected=f"one of the last {n_shown} that were shown",
                hint="Save sooner after pausing, or export it from the recording.",
            )
        return snapshot

    def shown_after(self, series: str, seq: int, at_most: int) -> list[Reconstruction]:
        """Return the first snapshots of a series after a number, of those that were shown and are
        in memory.
        """
        with self._changed:
            seqs = self._live.seqs_after(series, seq) or self._recorded.seqs_after(series, seq)
            return [self.find_shown(series, number) for number in seqs[:at_most]]

    def set_tone(self, changes: Changes, who: str) -> JsonObject:
        """Change the tone for all viewers; return all its settings. Raises `InputError`."""
        with self._changed:
            self.tone = self.tone.changed(changes)
            self.tone_by = who
            self._changed.notify_all()
            return self.tone.as_dict()

    def close(self) -> None:
        """End `next_view`. May be called again."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
