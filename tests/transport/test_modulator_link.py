"""A modulator served to another host: the contract over the wire, encryption, hostile calls, a host like Windows."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq

from sci_stream.config import Rig
from sci_stream.errors import CameraError
from sci_stream.modulation.timing import MaskTiming
from sci_stream.security.keys import make_key_pair
from sci_stream.testing.modulators import ModulatorContract
from sci_stream.transport import modulator_link
from sci_stream.transport.modulator_link import RemoteModulator, serve_modulator
from sci_stream_drivers.simulated import SimulatedModulator, SimulatedModulatorOptions
from tests.e2e.kit import PATIENCE_S, ROOT, environment
from tests.ports import free_ports

pytestmark = pytest.mark.rig
_BENCHES = itertools.count()


def rig_at(port: int, key: Path | None = None) -> Rig:
    tables: dict[str, object] = {"modulator": {"driver": "simulated", "address": f"tcp://127.0.0.1:{port}"}}
    if key is not None:
        public = key.with_name(key.name + ".pub").read_text().strip()
        keys = dict.fromkeys(("acquire_key", "sink_key", "modulator_key"), public)
        tables["security"] = {"encryption": "on", "key": str(key), "allowed": str(key.parent / "allowed"), **keys}
    return Rig.model_validate(tables)


class Served:
    """A simulated modulator behind a server in a thread."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        options = {"width_px": 16, "height_px": 12, "bench": f"served-{next(_BENCHES)}"}
        self.modulator = SimulatedModulator(SimulatedModulatorOptions.model_validate(options))
        self._stop = threading.Event()
        monkeypatch.setattr(modulator_link, "_POLL_MS", 20)
        self._thread = threading.Thread(
            target=serve_modulator,
            args=(rig, self.modulator, rig.modulator.address),
            kwargs={"until": self._stop.is_set},
        )
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


@pytest.fixture(params=["plain", "encrypted"])
def served(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    (port,) = free_ports(1)
    key = None
    if request.param == "encrypted":
        key = tmp_path / "key"
        make_key_pair(key)
    rig = rig_at(port, key)
    server = Served(rig, monkeypatch)
    yield rig
    server.stop()


class TestRemoteModulator(ModulatorContract):
    @pytest.fixture(autouse=True)
    def _served(self, served: Rig) -> None:
        self.rig = served

    def make(self) -> RemoteModulator:
        return RemoteModulator(self.rig)


def test_client_with_another_key_is_not_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    own, other = tmp_path / "key", tmp_path / "other"
    make_key_pair(own)
    make_key_pair(other)
    server = Served(rig_at(port, own), monkeypatch)
    monkeypatch.setattr(modulator_link, "_OPEN", modulator_link._OPEN._replace(limit_s=1.0))
    stranger = rig_at(port, own)
    stranger = stranger.model_copy(update={"security": stranger.security.model_copy(update={"key": other})})
    with pytest.raises(CameraError, match="does not answer"):
        RemoteModulator(stranger).open()
    server.stop()


def test_hostile_calls_are_refused_and_the_next_one_works(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    server = Served(rig_at(port), monkeypatch)
    with zmq.Context() as context, context.socket(zmq.REQ) as socket:
        socket.connect(f"tcp://127.0.0.1:{port}")
        calls = [
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
            socket.send_multipart(frames)
            kind, text = socket.recv_multipart()
            assert kind, frames
            assert text, frames
        socket.send_multipart([b"open", b"null"])
        kind, capabilities = socket.recv_multipart()
        assert not kind
        assert json.loads(capabilities)["width_px"] == 16
    server.stop()


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
for name in ("geteuid", "getuid", "getppid", "fork", "O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC", "sched_getaffinity"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGUSR1", "SIGUSR2", "SIGKILL", "SIGHUP"):
    delattr(signal, name)
"""


def test_modulate_runs_on_a_host_without_posix_and_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
address = "tcp://127.0.0.1:{port}"
[security]
encryption = "on"
key = "{key}"
allowed = "{tmp_path / "allowed"}"
acquire_key = "{public}"
sink_key = "{public}"
modulator_key = "{public}"
"""
    path = tmp_path / "rig.toml"
    path.write_text(toml)
    process = subprocess.Popen(
        [sys.executable, "-m", "sci_stream", "modulate", str(path)],
        env={**environment(), "PYTHONPATH": f"{folder}:{ROOT}:{ROOT / 'drivers'}"},
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts its background jobs with SIGINT ignored, and the test may be one.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no lock is taken
    )
    try:
        monkeypatch.setattr(modulator_link, "_OPEN", modulator_link._OPEN._replace(limit_s=PATIENCE_S))
        remote = RemoteModulator(rig_at(port, key))
        assert remote.open().width_px == 16
        remote.load(np.zeros((3, 12, 16), np.uint8))
        assert remote.arm(MaskTiming(pattern_us=1000.0, n_patterns=3)).pattern_us == 1000.0
        remote.start()
        assert remote.counters()["restarts"] == 0
        remote.close()
    finally:
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 0, said
    assert "encrypted" in said
    assert "Traceback" not in said
