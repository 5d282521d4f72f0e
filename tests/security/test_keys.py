"""Key pairs of hosts, and lists of allowed keys."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq

from sci_stream.cli import app
from sci_stream.config.fields import PUBLIC_KEY
from sci_stream.errors import ConfigError
from sci_stream.security.keys import allow_key, make_key_pair, read_allowed, read_key_pair


def test_key_pair_round_trip_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "key"
    public = make_key_pair(path)
    pair = read_key_pair(path)
    assert pair.public.decode() == public == path.with_name("key.pub").read_text().strip()
    assert zmq.curve_public(pair.secret) == pair.public
    assert path.stat().st_mode & 0o777 == 0o600
    assert pair.secret.decode() not in repr(pair)


def test_existing_key_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "key"
    before = make_key_pair(path)
    with pytest.raises(ConfigError, match="exists"):
        make_key_pair(path)
    assert read_key_pair(path).public.decode() == before


def test_key_readable_by_others_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    make_key_pair(path)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_key_pair(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
@pytest.mark.parametrize("read", [read_key_pair, read_allowed], ids=lambda read: read.__name__)
def test_key_file_of_another_user_is_refused(
    tmp_path: Path, read: Callable[[Path], object]
) -> None:
    path = tmp_path / "key"
    public = make_key_pair(path)
    if read is read_allowed:
        path.write_text(f"{public} lab\n")
    read(path)
    os.chown(path, 12345, 12345)
    with pytest.raises(
        ConfigError, match=r"belongs to another user.*this user or root.*user 12345"
    ):
        read(path)


@pytest.mark.parametrize("content", ["", "public x\nsecret y\n", "nonsense", "\0\1\2"])
def test_damaged_key_error_names_the_remedy(content: str, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="sci-stream keys new"):
        read_key_pair(path)


def test_mismatched_public_key_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "key"
    make_key_pair(path)
    other = zmq.curve_keypair()[0].decode()
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], f"public {other}", lines[2]]))
    with pytest.raises(ConfigError, match="damaged"):
        read_key_pair(path)


def test_missing_key_error_names_keys_new(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sci-stream keys new"):
        read_key_pair(tmp_path / "none")


def test_allow_key_adds_once_with_every_letter(tmp_path: Path) -> None:
    path = tmp_path / "allowed_keys"
    keys = {zmq.curve_keypair()[0].decode(): f"host {n} # two" for n in range(50)}
    assert read_allowed(path) == {}
    for key, name in keys.items():
        assert PUBLIC_KEY.fullmatch(key)
        assert allow_key(path, key, name)
        assert not allow_key(path, key, "again")
    path.write_text("# hosts of the lab\n\n" + path.read_text())
    assert read_allowed(path) == {key.encode(): name for key, name in keys.items()}


@pytest.mark.parametrize("begin", ["-", "-l", "--", "-="])
def test_key_that_looks_like_an_option_is_allowed(begin: str, tmp_path: Path) -> None:
    key = begin.ljust(40, "h")
    app(
        ["keys", "allow", key, "bench", "--list", str(tmp_path / "allowed_keys")],
        standalone_mode=False,
    )
    assert read_allowed(tmp_path / "allowed_keys") == {key.encode(): "bench"}


def test_invalid_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "allowed_keys"
    path.write_text("# fine\nssh-ed25519 AAAA\n")
    with pytest.raises(ConfigError, match="Line 2"):
        read_allowed(path)
    with pytest.raises(ConfigError, match="nvalid public key"):
        allow_key(tmp_path / "other", "short", "x")


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o602])
def test_list_of_keys_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "allowed_keys"
    allow_key(path, make_key_pair(tmp_path / "key"), "bench")
    assert path.stat().st_mode & 0o022 == 0, "as created by keys allow"
    path.chmod(mode)
    with pytest.raises(ConfigError, match="chmod go-w"):
        read_allowed(path)


def test_list_of_keys_that_is_no_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "allowed_keys"
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="regular file"):
        read_allowed(path)
