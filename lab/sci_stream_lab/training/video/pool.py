"""The newest entries, from which batches are drawn, and their files in the folder of the run."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch

from sci_stream.errors import FileFormatError, StorageError
from sci_stream.file_guard import reading
from sci_stream.recon.denoisers.weights import read_pickled
from sci_stream_lab.training.checkpoint import write_atomically
from sci_stream_lab.training.data import Samples
from sci_stream_lab.training.video.entries import PoolEntry

_LOG = logging.getLogger(__name__)


class EntryPool:
    """Keep the newest entries, at least ``most`` of them once there are as many.

    An entry is learnt from many times, at random places: a solve costs as much as tens of steps. Entries come in
    sources, numbered from 0: a noisy video gives one, a solve several.

    Parameters
    ----------
    most
        How many entries to keep. Sources are kept or dropped as a whole, so that it can be a few more.
    device
        Where the entries are kept.
    folder
        Where `save` writes a file for each source.
    """

    def __init__(self, most: int, device: torch.device, folder: Path) -> None:
        self._most = most
        self._device = device
        self._folder = folder
        self._sources: deque[tuple[int, Sequence[PoolEntry]]] = deque()
        self._entries: list[PoolEntry] = []
        self._saved: set[Path] = set()

    @property
    def next_source(self) -> int:
        """Number of the source to add next."""
        return self._sources[-1][0] + 1 if self._sources else 0

    def add(self, number: int, entries: Sequence[PoolEntry]) -> None:
        """Add the entries of a source, and drop the oldest that are no longer needed."""
        self._sources.append((number, entries))
        self._entries += entries
        while len(self._entries) - (n := len(self._sources[0][1])) >= self._most:
            self._sources.popleft()
            del self._entries[:n]

    def draw(self, rng: np.random.Generator, n: int, patch_px: int) -> Samples:
        """Draw patches of this height and width at full resolution: the same for the same entries and ``rng``."""
        size = patch_px // 2
        inputs, truths, weights = [], [], []
        for _ in range(n):
            entry = self._entries[rng.integers(len(self._entries))]
            b = int(rng.integers(len(entry.inputs)))
            top, left = (int(rng.integers(px - size + 1)) for px in entry.inputs.shape[-2:])
            inputs.append(entry.inputs[b, :, top : top + size, left : left + size])
            truths.append(entry.truth[b, 2 * top : 2 * (top + size), 2 * left : 2 * (left + size)])
            weights.append(entry.weight)
        return Samples(
            torch.stack(inputs).float(),
            torch.stack(truths).float().unsqueeze(1),
            torch.tensor(weights, dtype=torch.float32, device=self._device),
        )

    def save(self) -> None:
        """Write the sources that have no file, and remove the files of those that were dropped before the last call.

        Those dropped since belong to the checkpoint that is about to be replaced.

        Raises
        ------
        StorageError
            If a file cannot be written.
        """
        for number, entries in self._sources:
            if not (path := self._path(number)).exists():
                content = [(e.inputs.cpu(), e.truth.cpu(), e.weight) for e in entries]
                write_atomically(path, lambda file, content=content: torch.save(content, file))  # type: ignore[misc]  # of the default
        kept = {self._path(number) for number, _ in self._sources}
        _remove(set(self._folder.glob("*.pt")) - kept - self._saved)
        self._saved = kept

    def restore(self, n_sources: int, make: Callable[[int], Sequence[PoolEntry]]) -> int:
        """Read the newest of the first ``n_sources`` sources, as many as `add` would have kept.

        A source without a usable file is made again. Files of later sources are removed.

        Returns
        -------
        How many were made again.

        Raises
        ------
        StorageError
            If a file cannot be removed.
        """
        _remove(path for path in self._folder.glob("*.pt") if path >= self._path(n_sources))
        found: list[tuple[int, Sequence[PoolEntry]]] = []
        missing = 0
        for number in range(n_sources - 1, -1, -1):
            entries: Sequence[PoolEntry] | None = self._read(self._path(number))
            if entries is None:
                entries, missing = make(number), missing + 1
            found.append((number, entries))
            if sum(len(entries) for _, entries in found) >= self._most:
                break
        for number, entries in reversed(found):
            self.add(number, entries)
        return missing

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:07d}.pt"

    def _read(self, path: Path) -> list[PoolEntry] | None:
        if not path.is_file():
            return None
        try:
            content = read_pickled(path, "entries of a pool", device=self._device)
            with reading(path, "entries of a pool"):
                return [PoolEntry(inputs, truth, float(weight)) for inputs, truth, weight in content]  # type: ignore[attr-defined]  # or the guard says so
        except FileFormatError as error:
            _LOG.warning("Cannot read %s (%s): it is made again", path, error.got)
            _remove([path])
            return None


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        try:
            path.unlink()
        except OSError as error:
            raise StorageError(f"{path} cannot be removed", got=error.strerror or str(error)) from error
