"""Output files and folders that appear complete or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sci_stream.errors import StorageError


@contextmanager
def complete_output(out: Path, *, replace: bool) -> Iterator[Path]:
    """Provide a hidden path that takes the name ``out`` once it is written, and is removed on an error.

    Raises
    ------
    StorageError
        If ``out`` exists and is not to be replaced, its folder does not exist, or it cannot be written.
    """
    if out.exists() and not replace:
        raise StorageError(f"{out} exists", hint="Choose another name, or --force to replace it.")
    if not out.parent.is_dir():
        raise StorageError(f"The folder {out.parent} does not exist", hint="Create it first.")
    partial = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        yield partial
        if out.is_dir() or partial.is_dir():
            _remove(out)  # a file, in contrast, is replaced at once
        partial.replace(out)
    except (StorageError, OSError, RuntimeError) as error:  # h5py raises the last two on a full disk
        # Name the requested path in the error, not the temporary one.
        got = error.got if isinstance(error, StorageError) else getattr(error, "strerror", None)
        raise StorageError(f"{out} cannot be written", got=got or error) from error
    finally:
        _remove(partial)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
