"""Decode a folder of photographs or clips once, in bounded memory."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sci_stream.errors import ConfigError, FileFormatError

_LOG = logging.getLogger(__name__)

Item = npt.NDArray[np.uint8]
"""A decoded photograph or clip."""


@dataclass(frozen=True, slots=True)
class MediaKind:
    """A kind of files: its name, the suffixes that are read, and a sample of an item that
    identifies it.
    """

    noun: str
    suffixes: frozenset[str]
    sample: tuple[slice, ...]

    def paths(self, folder: Path) -> list[Path]:
        """Return the files of this kind in a folder and its sub-folders, sorted.

        Raises
        ------
        ConfigError
            If the folder is missing.
        """
        if not folder.is_dir():
            raise ConfigError(
                f"The folder {folder} does not exist", expected=f"a folder of {self.noun}s"
            )
        return sorted(
            path
            for path in folder.rglob("*")
            if path.suffix.lower() in self.suffixes and path.is_file()
        )


@dataclass(frozen=True, slots=True, eq=False)
class MediaSet:
    """Decoded files of one kind and their names, sorted by name; and the names of files that were
    not used.
    """

    kind: MediaKind
    items: tuple[Item, ...]
    names: tuple[str, ...]
    unreadable: tuple[str, ...] = ()
    too_small: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Sixteen hexadecimal digits that identify the set, from names, sizes and pixels."""
        digest = hashlib.blake2b(digest_size=8)
        for name, item in zip(self.names, self.items, strict=True):
            digest.update(f"{name} {item.shape}".encode())
            digest.update(np.ascontiguousarray(item[self.kind.sample]).tobytes())
        return digest.hexdigest()

    def split(self, held_out: int) -> tuple[MediaSet, MediaSet]:
        """Return training and validation set; the ``held_out`` items of the latter are evenly
        spread over the names.

        Raises
        ------
        ConfigError
            If one of the two would be empty.
        """
        n, noun = len(self.items), self.kind.noun
        if not 1 <= held_out < n:
            raise ConfigError(
                f"There are too few {noun}s for training and validation",
                expected=f"at least {max(1, held_out) + 1}, of which {held_out} are held out",
                got=n,
                hint=f"Add {noun}s to the folder, or hold out fewer.",
            )
        chosen = {(2 * k + 1) * n // (2 * held_out) for k in range(held_out)}
        return self._of([k for k in range(n) if k not in chosen]), self._of(sorted(chosen))

    def _of(self, indices: Sequence[int]) -> MediaSet:
        items, names = tuple(self.items[k] for k in indices), tuple(self.names[k] for k in indices)
        return dataclasses.replace(self, items=items, names=names, unreadable=(), too_small=())


def load_media(
    kind: MediaKind,
    folder: Path,
    read: Callable[[Path, int | None], Item],
    *,
    least: tuple[int, ...],
    memory_bytes: int | None,
) -> MediaSet:
    """Decode all files of a kind in a folder and its sub-folders; skip unusable ones with a
    warning.

    Parameters
    ----------
    read
        Decodes a file to about its share of the remaining memory, in bytes (None for no limit);
        small items leave more to those after them.
    least
        Least size of an item along each axis: rows and columns, after the number of frames if it
        has frames.
    memory_bytes
        Memory limit for all items; None for no limit.

    Raises
    ------
    ConfigError
        If the folder is missing, or no file in it is usable.
    """
    paths = kind.paths(folder)
    items: list[Item] = []
    names: list[str] = []
    unreadable: list[str] = []
    too_small: list[str] = []
    left = memory_bytes
    for number, path in enumerate(paths):
        name = path.relative_to(folder).as_posix()
        try:
            item = read(path, None if left is None else left // (len(paths) - number))
        except FileFormatError as error:
            _LOG.warning("Skipping a %s: %s", kind.noun, error)
            unreadable.append(name)
            continue
        size = item.shape[: len(least)]
        if any(have < need for have, need in zip(size, least, strict=True)):
            _LOG.warning("Skipping %s: %s, less than %s", path, _in_words(size), _in_words(least))
            too_small.append(name)
            continue
        if left is not None:
            left = max(0, left - item.nbytes)
        items.append(item)
        names.append(name)
    if not items:
        raise ConfigError(
            f"The folder {folder} contains no usable {kind.noun}",
            expected=f"{kind.noun}s of at least {_in_words(least)}: "
            f"{', '.join(sorted(kind.suffixes))}",
            got=f"{len(paths)} files, {len(unreadable)} unreadable, {len(too_small)} too small",
        )
    return MediaSet(kind, tuple(items), tuple(names), tuple(unreadable), tuple(too_small))


def _in_words(size: tuple[int, ...]) -> str:
    *frames, height, width = size
    return "".join(f"{n} frames of " for n in frames) + f"{height}×{width} pixels"
