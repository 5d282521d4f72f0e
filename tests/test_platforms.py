"""What needs no node works without the modules and functions that Windows and macOS lack.

They are hidden in another process: this shows what an import or a call needs, and is no test of
these systems.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sci_stream.recording.writer import RecordingWriter

HIDE = """
import importlib.abc  # before the hiding, and packages that know these systems, below
import os
import platform
import signal
import socket
import sys
import time

import cv2, getpass, h5py, numpy, pydantic.fields, rich.console, torch, typer, zmq, zoneinfo

LACKS = {
    "win32": {
        "modules": "fcntl resource grp termios",
        os: "fork register_at_fork geteuid getuid getegid sched_getaffinity posix_fallocate "
        "posix_fadvise statvfs fchmod O_NOFOLLOW O_NONBLOCK O_CLOEXEC O_NOCTTY getloadavg pread "
        "pwrite killpg getpgid sysconf memfd_create",
        signal: "SIGHUP SIGUSR1 SIGUSR2 SIGKILL SIGPIPE pthread_sigmask",
        socket: "AF_UNIX",
        time: "clock_gettime clock_gettime_ns CLOCK_MONOTONIC CLOCK_REALTIME CLOCK_BOOTTIME",
    },
    "darwin": {
        "modules": "",
        os: "sched_getaffinity posix_fallocate posix_fadvise memfd_create",
        time: "CLOCK_BOOTTIME",
    },
}[sys.argv[1]]
hidden = LACKS.pop("modules").split()


class Hide(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


for name in hidden:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Hide())
for module, names in LACKS.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
sys.platform = sys.argv[1]
system = {"win32": "Windows", "darwin": "Darwin"}[sys.argv[1]]
platform.system = lambda: system
"""
WORK = """
from pathlib import Path

import numpy as np

import sci_stream
from sci_stream.__main__ import main


def run(*words):
    sys.argv = ["sci-stream", *words]
    try:
        main()
    except SystemExit as end:
        print(words[0], end.code or 0)


for name in sci_stream.__all__:
    getattr(sci_stream, name)
masks = np.random.default_rng(0).integers(0, 2, (4, 32, 32))
np.savez("a.npz", y=(masks * 0.5).sum(0), masks=masks)
run("solve", "a.npz", "-o", "a.npy", "--solver", "tv", "--iterations", "2", "--device", "cpu")
with sci_stream.open("run.h5") as recording:
    print("raw", recording.raw[0].shape)
run("inspect", "run.h5")
run("export", "run.h5", "b.npy")
try:
    next(sci_stream.subscribe("127.0.0.1:9", timeout_s=0.1))
except sci_stream.errors.TransportError:
    print("subscribe")
print("control", sci_stream.control("http://127.0.0.1:9").url)
for command in ("run", "check", "acquire", "reconstruct", "sink"):
    run(command, "rig.toml")
"""


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_clients_work_and_nodes_need_linux(tmp_path: Path, series, system: str) -> None:
    with RecordingWriter(tmp_path / "run.h5", series.info, series.calibration) as writer:
        writer.write_raw(series.snapshot(0))
        writer.write_reconstruction(series.reconstruction(0))
        writer.close({"acquired": 1, "reconstructed": 1, "closed": True})
    done = subprocess.run(
        [sys.executable, "-c", HIDE + WORK, system],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "USERNAME": "user"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for line in ("solve 0", "inspect 0", "export 0", "subscribe", "control http://127.0.0.1:9"):
        assert line in done.stdout
    assert np.load(tmp_path / "a.npy").shape[-3:] == (4, 32, 32)
    assert [line for line in done.stdout.splitlines() if line.endswith(" 3")] == [
        "run 3", "check 3", "acquire 3", "reconstruct 3", "sink 3",
    ]  # fmt: skip
    assert done.stderr.count("error: The nodes of a rig need Linux") == 5
    assert "Traceback" not in done.stderr
