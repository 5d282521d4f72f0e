"""Key pairs and lists of allowed keys on disk, for encrypted connections between hosts (CURVE)."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

import zmq

from sci_stream.config.fields import PUBLIC_KEY
from sci_stream.errors import ConfigError, StorageError
from sci_stream.file_guard import read_small

# Permission bits of group and others, as ssh checks them.
_OTHERS = 0o077
_WRITABLE_BY_OTHERS = 0o022
# Both are read from paths that a rig file names: a wrong path must not fill the memory.
_LONGEST_LIST = 1 << 20
_LONGEST_KEY = 4096


@dataclass(frozen=True, repr=False)
class KeyPair:
    """A host's own keys, as Z85 text in bytes.

    ``repr`` omits them: the secret key must not reach a log.
    """

    public: bytes
    secret: bytes


def make_key_pair(path: Path) -> str:
    """Create a key pair in ``path`` (secret, for this user only) and ``path`` + ``.pub``; return
    the public key.

    Raises `ConfigError` if a key exists: replacing it would lock this host out everywhere;
    `StorageError` if the files cannot be written.
    """
    if path.exists():
        raise ConfigError(
            f"The key {path} exists",
            hint="To show it: sci-stream keys show. To replace it, move it away first.",
        )
    public, secret = zmq.curve_keypair()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Created with its final permissions: at no time can others read it.
        with os.fdopen(
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
        ) as file:
            file.write(
                f"# Secret key of this host. Keep it to yourself.\npublic {_text(public)}\nsecret "
                f"{_text(secret)}\n"
            )
        path.with_name(path.name + ".pub").write_text(_text(public) + "\n", "utf-8")
    except OSError as error:
        raise StorageError(f"The key {path} cannot be written", got=error.strerror) from None
    return _text(public)


def read_key_pair(path: Path) -> KeyPair:
    """Read a key pair.

    Raises `ConfigError` if it is missing, damaged, readable by others, or of another user.
    """
    try:
        status = path.stat()
        text = read_small(path, "a key", _LONGEST_KEY, error=ConfigError).decode()
        fields = dict(
            line.split(None, 1) for line in text.splitlines() if line and not line.startswith("#")
        )
    except OSError as error:
        raise ConfigError(
            f"This host's key {path} cannot be read",
            got=error.strerror,
            hint="Create one with sci-stream keys new; [security] key is its path.",
        ) from None
    except ValueError:
        fields = {}
    _require_owner(f"The secret key {path}", status)  # who owns it knows it
    if hasattr(os, "geteuid") and status.st_mode & _OTHERS:
        raise ConfigError(
            f"The secret key {path} is readable by others",
            expected="a file that only its owner can read",
            got=f"mode {status.st_mode & 0o777:o}",
            hint=f"chmod 600 {path}; if others may have read it, create a new one.",
        )
    keys = [fields.get(name, "").strip() for name in ("public", "secret")]
    if (
        not all(PUBLIC_KEY.fullmatch(key) for key in keys)
        or _text(zmq.curve_public(keys[1].encode())) != keys[0]
    ):
        raise ConfigError(
            f"{path} is not a key of this project, or is damaged",
            hint="Create one: sci-stream keys new.",
        )
    return KeyPair(keys[0].encode(), keys[1].encode())


def read_allowed(path: Path) -> dict[bytes, str]:
    """Read a list of allowed keys, one ``KEY NAME`` per line; return names by key.

    Empty if the file is missing.

    Raises `ConfigError` if a line is not a key, or if other users can write the file: they could
    allow themselves.
    """
    allowed: dict[bytes, str] = {}
    try:
        # Not waiting for a writer, should it be a pipe.
        with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))) as file:
            _require_own(path, os.fstat(file.fileno()))
            lines = file.read(_LONGEST_LIST).splitlines()
    except FileNotFoundError:
        return allowed
    except OSError as error:
        raise ConfigError(
            f"The list of allowed keys {path} cannot be read", got=error.strerror
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"The list of allowed keys {path} is not text") from None
    for number, line in enumerate(lines, 1):
        # Only whole lines are comments: # is a letter of the keys.
        if not line.strip() or line.startswith("# "):
            continue
        key, _, name = line.strip().partition(" ")
        if PUBLIC_KEY.fullmatch(key) is None:
            raise ConfigError(
                f"Line {number} of {path} is not a key",
                expected="KEY NAME, the key of 40 characters",
                got=repr(line[:60]),
            )
        allowed[key.encode()] = name.strip()
    return allowed


def _require_owner(what: str, status: os.stat_result) -> None:
    if not hasattr(os, "geteuid"):
        return  # Windows has neither these owners nor these permissions
    if status.st_uid not in {os.geteuid(), 0}:
        raise ConfigError(
            f"{what} belongs to another user",
            expected="this user or root",
            got=f"user {status.st_uid}",
        )


def _require_own(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"The list of allowed keys {path} is not a regular file")
    _require_owner(f"The list of allowed keys {path}", status)
    if hasattr(os, "geteuid") and status.st_mode & _WRITABLE_BY_OTHERS:
        raise ConfigError(
            f"The list of allowed keys {path} is writable by others",
            expected="a file that only its owner can write",
            got=f"mode {status.st_mode & 0o777:o}",
            hint=f"Check its lines, then: chmod go-w {path}",
        )


def allow_key(path: Path, key: str, name: str) -> bool:
    """Add a public key to a list, creating it if missing; return False if it contains the key
    already.

    Raises `ConfigError` if the key is invalid, or the list is damaged; `StorageError` if the list
    cannot be written.
    """
    if PUBLIC_KEY.fullmatch(key) is None:
        raise ConfigError(
            "Invalid public key",
            expected="40 characters, as printed by sci-stream keys show",
            got=repr(key[:60]),
        )
    if key.encode() in read_allowed(path):
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Not writable by the group, whatever the umask: such a list is refused.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        with os.fdopen(descriptor, "a", encoding="utf-8") as file:
            file.write(f"{key} {name}".rstrip() + "\n")
    except OSError as error:
        raise StorageError(
            f"The list of allowed keys {path} cannot be written", got=error.strerror
        ) from None
    return True


def _text(key: bytes) -> str:
    return key.decode("ascii")
