"""A modulator served to another host: the contract over the wire, encryption, hostile calls, a host
like Windows.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq
from pydantic import ValidationError

from sci_stream.config import Rig
from sci_stream.errors import CameraError, ConfigError
from sci_stream.modulation.timing import MaskTiming
from sci_stream.security.keys import make_key_pair
from sci_stream_drivers.simulated import SimulatedModulator, SimulatedModulatorOptions
from sci_stream_modulators import remote, server
from sci_stream_modulators.remote import RemoteModulator, RemoteOptions
from sci_stream_testing.modulators import ModulatorContract
from tests.e2e.kit import PATIENCE_S, ROOT, environment
from tests.ports import free_ports

pytestmark = pytest.mark.rig
_BENCHES = itertools.count()


def secured(key: Path | None) -> Rig:
    """Return the rig file of the modulator's host, which encrypts if it has a key."""
    if key is None:
        return Rig()
    keys = dict.fromkeys(("acquire_key", "sink_key"), public_key(key))
    security = {"encryption": "on", "key": str(key), "allowed": str(key.parent / "allowed"), **keys}
    return Rig.model_validate({"security": security})


def public_key(key: Path) -> str:
    return key.with_name(key.name + ".pub").read_text().strip()


def remote_at(port: int, key: Path | None = None, server_key: str = "") -> RemoteModulator:
    options = {"address": f"tcp://127.0.0.1:{port}", "public_key": server_key}
    return RemoteModulator(
        RemoteOptions.model_validate(options if key is None else {**options, "key": key})
    )


class Served:
    """A simulated modulator behind a server in a thread."""

    def __init__(self, key: Path | None, monkeypatch: pytest.MonkeyPatch) -> None:
        (self.port,) = free_ports(1)
        self._key = key
        monkeypatch.setattr(server, "_POLL_MS", 20)
        self.start()

    def start(self) -> None:
        options = {"width_px": 16, "height_px": 12, "bench": f"served-{next(_BENCHES)}"}
        modulator = SimulatedModulator(SimulatedModulatorOptions.model_validate(options))
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=server.serve_modulator,
            args=(secured(self._key), modulator, f"tcp://127.0.0.1:{self.port}"),
            kwargs={"until": self._stop.is_set},
        )
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def restart(self) -> None:
        self.stop()
        self.start()


class TestRemoteModulator(ModulatorContract):
    @pytest.fixture(autouse=True, params=["plain", "encrypted"])
    def _served(
        self, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[None]:
        self.key, self.server_key = None, ""
        if request.param == "encrypted":
            self.key = tmp_path / "key"
            self.server_key = make_key_pair(self.key)
        served = Served(self.key, monkeypatch)
        self.port = served.port
        yield
        served.stop()

    def make(self) -> RemoteModulator:
        return remote_at(self.port, self.key, self.server_key)


def test_unencrypted_address_beyond_this_machine_is_refused() -> None:
    with pytest.raises(ValidationError, match="public_key"):
        RemoteOptions.model_validate({"address": "tcp://192.168.1.7:5704"})


def test_client_with_another_key_is_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = tmp_path / "key", tmp_path / "other"
    server_key = make_key_pair(own)
    make_key_pair(other)
    served = Served(own, monkeypatch)
    monkeypatch.setattr(remote, "OPEN", remote.OPEN._replace(limit_s=1.0))
    with pytest.raises(CameraError, match="does not answer"):
        remote_at(served.port, other, server_key).open()
    served.stop()


def test_hostile_calls_are_refused_and_the_next_one_works(monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served(None, monkeypatch)
    with zmq.Context() as context, context.socket(zmq.REQ) as socket:
        socket.connect(f"tcp://127.0.0.1:{served.port}")
        calls = [
            [],
            [b"\xff"],
            [b"{}", b"null"],
            [b"__class__", b"null"],
            [b"open", b"1"],
            [b"load", b"[2, 12, 16]"],
            [b"load", b"[-1, -12, 16]", b"x" * 192],
            [b"load", b"[1, 1, 1, 1, 1]", b"x"],
            [b"advance", b"1e99"],
            [b"arm", b'{"pattern_us": "x"}'],
            [b"hold", b'"grey"'],
        ]
        for frames in calls:
            socket.send_multipart([b"lease", *frames])
            kind, text = socket.recv_multipart()
            assert kind, frames
            assert text, frames
        socket.send_multipart([b"lease", b"open", b"null"])
        kind, capabilities = socket.recv_multipart()
        assert not kind
        assert json.loads(capabilities)["width_px"] == 16
    served.stop()


def test_second_client_is_refused_until_the_first_has_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote, "LEASE_S", 0.0)  # the second does not wait
    served = Served(None, monkeypatch)
    first = remote_at(served.port)
    second = remote_at(served.port)
    first.open()
    masks = np.zeros((2, 12, 16), np.uint8)
    loaded = first.load(masks)
    with pytest.raises(CameraError, match=f"used by another rig.*process {os.getpid()}"):
        second.open()
    assert first.load(masks) == loaded
    first.close()
    assert second.open().width_px == 16
    with pytest.raises(CameraError, match=r"used by"):
        first.open()
    second.close()
    served.stop()


def test_lease_of_a_silent_client_ends_but_not_while_it_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "LEASE_S", 1.0)
    monkeypatch.setattr(remote, "_KEEP_EVERY_S", 0.1)
    served = Served(None, monkeypatch)
    kept = remote_at(served.port)
    kept.open()
    time.sleep(2.0)
    monkeypatch.setattr(remote, "LEASE_S", -1.0)  # does not wait
    with pytest.raises(CameraError, match="used by another rig"):
        remote_at(served.port).open()
    monkeypatch.setattr(remote, "LEASE_S", PATIENCE_S)
    with zmq.Context() as context, context.socket(zmq.REQ) as killed:
        kept.close()
        killed.connect(f"tcp://127.0.0.1:{served.port}")
        killed.send_multipart([b"lease of a killed client", b"open", b"null"])
        killed.recv_multipart()
    after = remote_at(served.port)
    assert after.open().width_px == 16
    after.close()
    served.stop()


def test_restarted_server_has_a_closed_modulator(monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served(None, monkeypatch)
    client = remote_at(served.port)
    client.open()
    served.restart()
    with pytest.raises(RuntimeError, match="not open"):
        client.counters()
    client.stop()
    client.close()
    assert client.open().width_px == 16
    client.close()
    served.stop()


@pytest.mark.parametrize("encryption", ["off", "auto"])
def test_unencrypted_service_needs_unprotected_network(encryption: str) -> None:
    (port,) = free_ports(1)
    security = {"encryption": encryption, "unprotected_network": True}
    served = Rig.model_validate({"security": security})
    serve = functools.partial(
        server.serve_modulator,
        modulator=SimulatedModulator(),
        endpoint=f"tcp://0.0.0.0:{port}",
        until=lambda: True,
    )
    serve(served)
    security["unprotected_network"] = False
    with pytest.raises(ConfigError, match=r"without encryption|This host's key"):
        serve(Rig.model_validate({"security": security}))


_LIKE_WINDOWS = """
import os, signal, sys
absent = {"torch", "fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "crypt"}
class Absent:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in absent or name in ("sci_stream_drivers.harvesters", "sci_stream_cameras.aravis"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
for name in absent:
    sys.modules.pop(name, None)
for name in (
    "geteuid", "getuid", "getppid", "fork",
    "O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC", "sched_getaffinity",
):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGUSR1", "SIGUSR2", "SIGKILL", "SIGHUP"):
    delattr(signal, name)
"""


def test_modulate_runs_on_a_host_without_posix_and_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "windows"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_LIKE_WINDOWS)
    key = tmp_path / "key"
    public = make_key_pair(key)
    (port,) = free_ports(1)
    toml = f"""
[modulator]
driver = "simulated"
options = {{ width_px = 16, height_px = 12 }}
[security]
encryption = "on"
key = "{key}"
allowed = "{tmp_path / "allowed"}"
acquire_key = "{public}"
sink_key = "{public}"
"""
    path = tmp_path / "rig.toml"
    path.write_text(toml)
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "sci_stream",
            "modulate",
            str(path),
            "--listen",
            f"tcp://127.0.0.1:{port}",
        ],
        env={
            **environment(),
            "PYTHONPATH": f"{folder}:{ROOT}:{ROOT / 'drivers'}:{ROOT / 'drivers/modulators'}",
        },
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts its background jobs with SIGINT ignored, and the test may be one.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no lock is taken
    )
    try:
        monkeypatch.setattr(remote, "OPEN", remote.OPEN._replace(limit_s=PATIENCE_S))
        client = remote_at(port, key, public)
        assert client.open().width_px == 16
        client.load(np.zeros((3, 12, 16), np.uint8))
        assert client.arm(MaskTiming(pattern_us=1000.0, n_patterns=3)).pattern_us == 1000.0
        client.start()
        assert client.counters()["restarts"] == 0
        client.close()
    finally:
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 0, said
    assert "encrypted" in said
    assert "Traceback" not in said
