"""The guard around all readers of files, which may be damaged, of another kind, or malicious; and
around writers.

A reader first checks the sizes that a file declares (`require_regular`, `require_memory`,
`require_ratio`), since libraries allocate as much, and then reads within `reading`, since they
raise any exception on damaged content.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sci_stream.errors import FileFormatError, InputError, SciStreamError, StorageError

with contextlib.suppress(ImportError):  # Windows has other locks, and no nodes
    import fcntl

NO_LOCKS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS})
"""Error numbers of disks without file locks, as some NFS, SMB, Lustre and FUSE mounts are."""

# A file must not claim more of the memory than leaves the rest of the rig running.
_MEMORY_FRACTION = 0.5
# Images compress to a tenth at best, and LZ4 to a 255th at most: a file that declares more than
# this many times its stored bytes is empty or a bomb (deflate reaches 1032 on zeros).
_MAX_EXPANSION = 300
SMALL_BYTES = 64 << 20
"""Below this size, a file is not refused for the size that it declares."""


@contextlib.contextmanager
def reading(
    path: Path | str,
    what: str,
    *,
    error: type[InputError] = FileFormatError,
    hint: str | None = None,
) -> Iterator[None]:
    """Convert any exception of a library on the content of a file to one ``error`` that names the
    file.

    ``what`` is its kind, for the message: ``"a recording"``; ``hint`` the advice.
    """
    try:
        yield
    except SciStreamError as cause:
        if isinstance(cause, error) or not isinstance(cause, FileFormatError):
            raise
        raise error(
            cause.what, expected=cause.expected, got=cause.got, hint=hint or cause.hint
        ) from cause
    except (
        Exception
    ) as cause:  # parsers of damaged data raise RuntimeError, AttributeError, struct.error, …
        raise error(
            f"{path} cannot be read as {what}",
            expected=f"{what}, undamaged",
            got=in_words(cause),
            hint=hint or "The file has another format or is damaged.",
        ) from cause


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Convert an error of the system while a file is written to a `StorageError` that names the
    file.
    """
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path} cannot be written", got=error.strerror or str(error)) from error


def in_words(error: BaseException) -> str:
    """Return the first line of an error's message, or its type where it has none."""
    lines = str(error).strip().splitlines()
    if isinstance(error, MemoryError) or not lines:
        return type(error).__name__
    return lines[0]


def lock(number: int, *, shared: bool = False) -> bool:
    """Lock an open file for its process; return False if its disk has no locks.

    Raises BlockingIOError if another process has locked it.
    """
    try:
        fcntl.flock(number, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return False
    return True


def require_regular(path: Path, what: str, *, error: type[InputError] = FileFormatError) -> int:
    """Return the size of a file. Reading a pipe waits for a writer, reading a device may never end.

    Raises `FileFormatError` if it is missing or is not a regular file.
    """
    try:
        status = path.stat()
    except (OSError, ValueError) as cause:
        reason = "nothing" if isinstance(cause, FileNotFoundError) else in_words(cause)
        noun = what.removeprefix("a ").removeprefix("an ").removesuffix(" file")
        raise error(
            f"There is no {noun} file {path}",
            expected="an existing file",
            got=reason,
            hint="Check the path and the mount"
            + ("; `sci-stream calibrate` makes one." if noun == "calibration" else "."),
        ) from None
    if not stat.S_ISREG(status.st_mode):
        raise error(
            f"{path} cannot be read as {what}",
            expected="a regular file",
            got=_kind_of(status.st_mode),
        )
    return status.st_size


def read_small(
    path: Path, what: str, max_bytes: int, *, error: type[InputError] = FileFormatError
) -> bytes:
    """Return the content of a regular file of limited size.

    Raises `FileFormatError` if it is missing, not a regular file, too large, or cannot be read.
    """
    size = require_regular(path, what, error=error)
    if size > max_bytes:
        raise error(
            f"{path} cannot be read as {what}",
            expected=f"at most {max_bytes} bytes",
            got=f"{size} bytes",
        )
    with reading(path, what, error=error), path.open("rb") as file:
        return file.read(size)


def require_memory(
    n_bytes: int, where: object, *, error: type[InputError] = FileFormatError
) -> None:
    """Refuse to read more than fits into a part of this machine's memory.

    Raises `FileFormatError` if it does not fit; ``where`` names the file or the part of it that
    declares this size.
    """
    most = int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * _MEMORY_FRACTION)
    if n_bytes > most:
        raise error(
            f"{where} is too large for the memory of this machine",
            expected=f"at most {most >> 20} MiB",
            got=f"{n_bytes >> 20} MiB",
        )


def require_ratio(
    n_bytes: int, stored_bytes: int, where: object, *, error: type[InputError] = FileFormatError
) -> None:
    """Refuse content that declares far more than is stored of it.

    Raises `FileFormatError` if ``n_bytes`` of images could not be stored in ``stored_bytes``.
    """
    if n_bytes > SMALL_BYTES and n_bytes > stored_bytes * _MAX_EXPANSION:
        raise error(
            f"{where} declares more than it stores",
            expected=f"at most {stored_bytes * _MAX_EXPANSION} bytes in {stored_bytes} stored ones",
            got=f"{n_bytes} bytes",
            hint="The file is damaged, incomplete, or made to fill the memory.",
        )


def _kind_of(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def check_output(
    out: Path, *, replace: bool, folder: str = "", sources: Iterable[Path] = ()
) -> None:
    """Check that ``out`` can be written. Raises as `complete_output`."""
    if out.exists() and not replace:
        raise StorageError(f"{out} exists", hint="Choose another name, or --force to replace it.")
    if not out.parent.is_dir():
        raise StorageError(f"The folder {out.parent} does not exist", hint="Create it first.")
    if out.exists() and any(source.exists() and out.samefile(source) for source in sources):
        raise StorageError(f"{out} is a source of this output", hint="Choose another name.")
    if out.is_dir() and not (
        folder and all(re.fullmatch(folder, path.name) for path in out.iterdir())
    ):
        raise StorageError(
            f"{out} is a folder, no earlier output of its kind",
            hint="Use another name, or remove it.",
        )


@contextmanager
def complete_output(
    out: Path, *, replace: bool, folder: str = "", sources: Iterable[Path] = ()
) -> Iterator[Path]:
    """Provide a hidden path that takes the name ``out`` once it is written, and is removed on an
    error.

    ``folder`` matches the names in an output that is a folder: only a folder of these is replaced.

    Raises `StorageError` if ``out`` exists and is not to be replaced, is one of its ``sources`` or
    another folder, its folder does not exist, or it cannot be written.
    """
    check_output(out, replace=replace, folder=folder, sources=sources)
    partial = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        _remove(partial)  # through a symbolic link of this name another file would be overwritten
        yield partial
        if partial.is_dir():  # a file, in contrast, is replaced at once
            check_output(out, replace=replace, folder=folder)
            _remove(out)
        partial.replace(out)
    except (
        StorageError,
        OSError,
        RuntimeError,
    ) as error:  # h5py raises the last two on a full disk
        # Name the requested path in the error, not the temporary one.
        got = error.got if isinstance(error, StorageError) else getattr(error, "strerror", None)
        raise StorageError(f"{out} cannot be written", got=got or error) from error
    finally:
        _remove(partial)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
