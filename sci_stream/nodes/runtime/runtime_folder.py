"""Folders that live as long as a run: private to this user, also within a folder that others can
write to.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

from sci_stream.file_guard import lock

RIG_COPY = "rig.toml"
"""Name of a rig file as it was when its run began, in the folder of the run."""
MEMORY = Path("/dev/shm")
"""The memory file system of this machine, if it has one."""


def memory_folder() -> Path:
    """Return the memory file system, or, where there is none, the folder of temporary files."""
    return MEMORY if os.access(MEMORY, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


def user_runtime_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return this user's runtime folder; it need not exist.

    It is that of the service manager (``RuntimeDirectory=``), that of the login session, or one in
    `memory_folder`.
    """
    if service := environment.get("RUNTIME_DIRECTORY"):
        return Path(service.partition(":")[0])
    if session := environment.get("XDG_RUNTIME_DIR"):
        return Path(session) / "sci-stream"
    return private_folder(memory_folder())


def demo_rig_file() -> Path:
    """Return where the rig file of this user's last demo is, for ``sci-stream control demo``."""
    return user_runtime_folder() / "demo.toml"


def private_folder(folder: Path) -> Path:
    """Return the folder, or, if other users can write to it, this user's folder in it; it need not
    exist.

    In a shared folder such as ``/dev/shm`` another user could lock or forge any file that a rig
    looks for.
    """
    try:
        is_shared = folder.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    except OSError:
        return folder
    return folder / f"sci-stream-{os.geteuid()}" if is_shared else folder


def make_private_folder(folder: Path) -> None:
    """Create the folder if it is missing.

    Raises OSError if it cannot be created, is not a folder, or belongs to another user.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(0, "it is not a folder")
    if status.st_uid != os.geteuid():
        raise PermissionError(0, f"the folder belongs to user {status.st_uid}")


def open_own(path: Path, flags: int) -> int:
    """Open a file of this user; a new one is accessible to this user only. Return its descriptor.

    Raises OSError if it cannot be opened, is not a regular file, belongs to another user, or can be
    written by others.
    """
    number = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    status = os.fstat(number)
    problem = ""
    if not stat.S_ISREG(status.st_mode):
        problem = "it is not a regular file"
    elif status.st_uid != os.geteuid():
        problem = f"the file belongs to user {status.st_uid}"
    elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        problem = f"other users can write to the file (mode {stat.S_IMODE(status.st_mode):04o})"
    if problem:
        os.close(number)
        raise PermissionError(0, problem)
    return number


_RUN = "run-"
_LOCK = "lock"


class RunFolder(contextlib.AbstractContextManager["RunFolder"]):
    """A new folder that lives as long as a run, within this user's folder ``place``, which is
    created if missing.

    It is locked while its process lives, so that a later run recognises the folder of one that was
    killed.
    """

    def __init__(self, place: Path) -> None:
        make_private_folder(place)
        self.path = Path(tempfile.mkdtemp(prefix=_RUN, dir=place))
        new = self.path / f"{_LOCK}.new"
        self._number = open_own(new, os.O_RDWR | os.O_CREAT)
        lock(self._number)
        new.rename(
            self.path / _LOCK
        )  # now: a run that starts meanwhile would find it unlocked and delete the folder

    @classmethod
    def in_memory(cls) -> Self:
        """Create a folder on the memory file system: its files never reach a disk."""
        return cls(private_folder(memory_folder()))

    def __exit__(self, *_: object) -> None:
        self.delete()

    def restore(self) -> None:
        """Create the folder again if something has deleted it, such as a cleaner of temporary
        files.
        """
        with contextlib.suppress(OSError):
            self.path.mkdir(mode=0o700, exist_ok=True)

    def delete(self) -> None:
        """Delete the folder with its content. May be called again."""
        shutil.rmtree(self.path, ignore_errors=True)
        # Once: by then the number may be that of another file, of ZeroMQ for example.
        number = self._number
        self._number = -1
        with contextlib.suppress(OSError):
            os.close(number)


def running_rigs() -> list[Path]:
    """Return the rig files, as copied by `freeze`, of this user's runs on this machine."""
    folders = run_folders(private_folder(memory_folder()), running=True)
    copies = (folder / RIG_COPY for folder in folders)
    return [copy for copy in copies if copy.is_file()]


def run_folders(place: Path, *, running: bool) -> Iterator[Path]:
    """Yield the run folders in ``place`` whose process is ``running``, or has ended without
    deleting them.
    """
    for folder in place.glob(f"{_RUN}*"):
        try:
            number = open_own(folder / _LOCK, os.O_RDWR)
        except OSError:
            continue  # of another user, or it has just been made
        try:
            locked = lock(number)
            if locked and not running:
                yield folder
        except BlockingIOError:
            if running:
                yield folder
        finally:
            os.close(number)
