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
_SHOWN_BYTES = 256 << 20


class Display:
    """The newest reconstruction and its tone. Thread-safe; only `next_view` takes time.

    ``is_watched`` returns whether there are viewers. Call `refresh` when one joins.
    """

    def __init__(self, tone: ToneSettings, is_watched: Callable[[], bool]) -> None:
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
        self._recent: dict[
            tuple[str, int], Reconstruction
        ] = {}  # by series and seq, the last shown at the end
        self._recent_bytes = 0
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

    def keep(self, reconstruction: Reconstruction) -> None:
        """Keep a reconstruction that is shown, for its values and stills: in bounded memory, each
        snapshot once.
        """
        key = reconstruction.id.series, reconstruction.id.seq
        with self._changed:
            if key in self._recent:
                self._recent_bytes -= payload_bytes(self._recent.pop(key))
            self._recent[key] = reconstruction
            self._recent_bytes += payload_bytes(reconstruction)
            while len(self._recent) > 1 and self._recent_bytes > _SHOWN_BYTES:
                self._recent_bytes -= payload_bytes(self._recent.pop(next(iter(self._recent))))

    def find_shown(self, series: str, seq: int) -> Reconstruction:
        """Return a snapshot that was shown. Raises `InputError` if it is no longer in memory."""
        with self._changed:
            snapshot, n_shown = self._recent.get((series, seq)), len(self._recent)
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
            seqs = sorted(
                number for name, number in self._recent if name == series and number > seq
            )
            return [self._recent[series, number] for number in seqs[:at_most]]

    def set_tone(self, changes: Changes, who: str) -> JsonObject:
        """Change the tone for all viewers; return all its settings. Raises `InputError`."""
        with self._changed:
            self.tone, self.tone_by = self.tone.changed(changes), who
            self._changed.notify_all()
            return self.tone.as_dict()

    def close(self) -> None:
        """End `next_view`. May be called again."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
