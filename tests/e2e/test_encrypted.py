"""A whole rig with CURVE encryption, and unknown peers that try to connect."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from sci_stream.security.curve import client_config
from sci_stream.security.keys import read_key_pair
from sci_stream.transport.pubsub import subscribe_status
from sci_stream.transport.sockets import make_socket
from tests.conftest import RigMaker
from tests.e2e.conftest import CommandHere
from tests.e2e.kit import PATIENCE_S, assert_accounted_for, write_rig
from tests.hostile_messages import hostile_messages
from tests.rig_in_process import RigInProcess


def keys(folder: Path, command: CommandHere) -> dict[str, Any]:
    """Create this host's keys with the command."""
    made = command("keys", "new", "--file", folder / "key", cwd=folder)
    assert made.status == 0, made.output
    public = command("keys", "show", "--file", folder / "key", cwd=folder).output.strip()
    assert public in made.output
    return {
        "encryption": "on",
        "key": str(folder / "key"),
        "allowed": str(folder / "allowed_keys"),
        "acquire_key": public,
        "sink_key": public,
    }


@contextlib.contextmanager
def unknown_peers(rig: RigInProcess) -> Iterator[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]]:
    """Connect without encryption to every address of a rig: one sender, one listener."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    options = {
        "max_message_bytes": 1 << 20,
        "heartbeat_s": 1.0,
        "send_queue": 10_000,
        "receive_queue": 8,
    }
    sender = make_socket(context, zmq.DEALER, **options)
    sender.setsockopt(zmq.IMMEDIATE, 0)
    for endpoint in (rig.rig.network.dispatch, rig.rig.network.results):
        sender.connect(endpoint)
    listener = make_socket(context, zmq.SUB, **options)
    listener.setsockopt(zmq.SUBSCRIBE, b"")
    listener.connect(rig.rig.network.taps)
    try:
        yield sender, listener
    finally:
        context.destroy(linger=0)


def test_encrypted_rig_rejects_unknown_keys(
    tmp_path: Path,
    command_here: CommandHere,
    rig_in_process: RigMaker,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    security = keys(tmp_path, command_here)
    rig = rig_in_process({"security": security}, snapshots=8)
    rig.reconstruct(2)
    own = client_config(read_key_pair(tmp_path / "key"), str(security["sink_key"]))
    status = next(
        subscribe_status(rig.rig.network.taps, timeout_s=PATIENCE_S, configure=own)
    ).status
    assert status["ledger.reconstructed"] == 2
    with unknown_peers(rig) as (sender, listener):
        for case in hostile_messages():
            with contextlib.suppress(
                zmq.Again
            ):  # ZeroMQ stops retrying a peer that rejects the handshake
                sender.send_multipart(case.frames or [b""], zmq.NOBLOCK)
        rig.expose(6)
        summary = rig.finish()
        assert not listener.poll(0), "the taps sent nothing to an unknown peer"
    assert assert_accounted_for(summary)["reconstructed"] == 8
    assert set(summary["wire_errors"]) <= {"handshake"}, "a message of an unknown peer was accepted"
    assert security["acquire_key"] in (tmp_path / "rig.toml").read_text()
    assert read_key_pair(tmp_path / "key").secret.decode() not in caplog.text


def test_missing_key_names_command_to_create_it(tmp_path: Path, command_here: CommandHere) -> None:
    security = {**keys(tmp_path, command_here), "key": str(tmp_path / "elsewhere")}
    ended = command_here("run", write_rig(tmp_path, {"security": security}), cwd=tmp_path)
    assert ended.status == 2
    assert "sci-stream keys new" in ended.output


def test_check_names_missing_key_and_list_that_others_can_write(
    tmp_path: Path, command_here: CommandHere
) -> None:
    security = keys(tmp_path, command_here)
    path = write_rig(tmp_path, {"security": {**security, "key": str(tmp_path / "elsewhere")}})
    without_key = command_here("check", path, cwd=tmp_path)
    assert without_key.status == 2
    assert "sci-stream keys new" in without_key.output
    path = write_rig(tmp_path, {"security": security})
    allowed = tmp_path / "allowed_keys"
    allowed.touch()
    allowed.chmod(0o666)
    open_list = command_here("check", path, cwd=tmp_path)
    assert open_list.status == 2
    assert "chmod go-w" in open_list.output


@pytest.mark.parametrize("command", ["run", "acquire", "sink", "reconstruct", "check"])
def test_public_address_without_keys_is_refused(
    command: str, tmp_path: Path, command_here: CommandHere
) -> None:
    path = tmp_path / "rig.toml"
    path.write_text('[network]\nresults = "tcp://10.0.0.2:5702"\n')
    refused = command_here(command, path, cwd=tmp_path)
    assert refused.status == 2
    assert "unprotected_network" in refused.output
