"""The code of plug-ins: where it is, its hash, and the copies that a run made of it.

Nothing here imports the plug-ins, or torch.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path

DENOISERS = "sci_stream.denoisers"
"""Group of the entry points of denoisers."""
# Packages of this project are installed and updated with it.
_OWN = "sci_stream"
_CACHE = "__pycache__"
# A run keeps its copies in memory. Code and weights of a denoiser take some MiB, torch 2 GiB.
MAX_BYTES = 128 << 20
_copies: dict[Path, Path] = {}


NETWORK_FILES = (".pt", ".pt2", ".onnx")
"""Suffixes of files that are a network, with its weights."""


def runs_code(name: str) -> bool:
    """Return whether a solver of this name runs code that only its user may name."""
    return ":" in name or name.endswith(NETWORK_FILES)


def use_copies(copies: Mapping[Path, Path]) -> None:
    """Read the files of denoisers from these copies from now on."""
    _copies.clear()
    _copies.update(copies)


def source_of(path: Path) -> Path:
    """Return the copy of a file of denoisers, or the file itself if there is none."""
    return _copies.get(path, path)


def code_of(name: str, group: str) -> Path | None:
    """Return the file, or the folder of the package, that a plug-in's code is in.

    ``name`` is ``file.py:function``, a file of a network, ``module:Class`` or an entry point of
    the group. None if it is none of them, is not installed, or belongs to this project; and of a
    library of more than `MAX_BYTES`, which is no part of a run.
    """
    module, _, attribute = name.rpartition(":")
    if module.endswith(".py") or name.endswith(NETWORK_FILES):
        return Path(module or name)
    if not attribute or not module:
        entries = iter(importlib.metadata.entry_points(group=group, name=name))
        entry = next(entries, None)
        module = "" if entry is None else entry.module
    top = module.partition(".")[0]
    if not top or top.startswith(_OWN):
        return None
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        folder = Path(next(iter(spec.submodule_search_locations)))
        return folder if size_of(folder) <= MAX_BYTES else None
    return Path(spec.origin) if spec.has_location and spec.origin else None


def solver_sha256(name: str) -> str:
    """Return the hash of the code of a solver; "" of one of this project."""
    code = code_of(name, DENOISERS)
    return "" if code is None else sha256(source_of(code))


def files_of(path: Path) -> Iterator[Path]:
    """Yield a file, or the files of a folder in order, without those that Python makes."""
    if path.is_file():
        yield path
    elif path.is_dir():
        inside = (file for file in sorted(path.rglob("*")) if _CACHE not in file.parts)
        yield from (file for file in inside if file.is_file())


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of the files of a folder."""
    return sum(file.stat().st_size for file in files_of(path))


def sha256(path: Path) -> str:
    """Return the hash of the names and the content of a file, or of those of a folder."""
    digest = hashlib.sha256()
    for file in files_of(path):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        digest.update(f"{file.relative_to(path.parent)} {content}\n".encode())
    return digest.hexdigest()
