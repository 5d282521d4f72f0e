"""The units in deploy/ under a real service manager: start, watchdog, restart, clean stop."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sci_stream.recording.reader import Recording
from tests.e2e.kit import ROOT, environment, write_rig

UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
HERE = Path(__file__).parent

_OF_THE_SYSTEM = re.compile(
    r"(User|Group|SupplementaryGroups|AmbientCapabilities|CapabilityBoundingSet|Nice|EnvironmentFile|LimitMEMLOCK"
    r"|LimitRTPRIO|Protect\w+|PrivateTmp|Restrict[A-Z]\w+|ReadWritePaths|StateDirectory|SystemCallArchitectures|LockPersonality)="
)
"""Settings that a user's manager may not set; the rest of each unit stays as it is."""


def of_a_user(unit: Path, program: str, folder: Path, rig: Path) -> str:
    """Return a unit for a user's manager, with a short watchdog timeout."""
    lines = [line for line in unit.read_text().splitlines() if not _OF_THE_SYSTEM.match(line)]
    text = "\n".join(lines)
    for old, new in (
        ("/opt/sci-stream/bin/sci-stream", program),
        ("/etc/sci-stream/rig.toml", str(rig)),
        ("/run/sci-stream", "%t/sci-stream"),
        ("WorkingDirectory=/var/lib/sci-stream", f"WorkingDirectory={folder}"),
    ):
        assert old in text, old
        text = text.replace(old, new)
    if "reconstruct" in unit.name:
        text = text.replace("WatchdogSec=60", "WatchdogSec=15")
    inherited = environment()
    kept = "".join(
        f"Environment={name}={inherited[name]}\n" for name in ("PYTHONPATH", "OMP_NUM_THREADS")
    )
    # systemd forgets the result of a unit with the unit: it is recorded when the unit ends.
    last = f"ExecStopPost=/bin/sh -c 'echo %n $$SERVICE_RESULT $$EXIT_STATUS >> {folder}/ended'\n"
    return text.replace("[Service]\n", f"[Service]\n{kept}{last}") + "\n"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_rig_under_systemd_starts_restarts_and_stops(tmp_path: Path) -> None:
    if os.geteuid() or not Path("/lib/systemd/systemd").exists() or shutil.which("unshare") is None:
        pytest.skip("needs root, systemd and unshare: the manager gets name spaces of its own")
    changes = {
        "policy": {"mode": "record"},
        "camera": {"options": {"snapshot_rate_hz": 2.0, "truth": False}},
    }
    rig = write_rig(tmp_path, changes)
    units = tmp_path / "systemd" / "user"
    units.mkdir(parents=True)
    program = f"{sys.executable} -m sci_stream"
    for unit in UNITS:
        (units / unit.name).write_text(of_a_user(unit, program, tmp_path, rig))
    (units / "sci-stream.target").write_text(
        (ROOT / "deploy" / "systemd" / "sci-stream.target").read_text()
    )
    spaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    manager = [sys.executable, str(HERE / "under_systemd.py")]
    report = subprocess.run(
        [*spaces, *manager, str(tmp_path), sys.executable, str(HERE / "watched_by_systemd.py")],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    if report.returncode == 77 or "unshare" in report.stderr:
        pytest.skip(
            f"cannot start a service manager here: {report.stdout[-500:]}{report.stderr[-200:]}"
        )
    assert report.returncode == 0, f"{report.stdout}\n{report.stderr}"
    seen = json.loads(report.stdout.splitlines()[-1])
    assert set(seen["stopped"]) == {"inactive"}
    ended = (tmp_path / "ended").read_text().splitlines()
    assert ended[0] == "sci-stream-reconstruct@0.service signal KILL"
    assert ended[1].startswith("sci-stream-reconstruct@0.service watchdog")
    # Each is removed when it is no longer needed.
    assert ended[2:] == [
        "sci-stream-acquire.service success 0",
        "sci-stream-reconstruct@0.service success 0",
        "sci-stream-sink.service success 0",
    ]
    (recording,) = [Recording(path) for path in sorted((tmp_path / "recordings").glob("*.h5"))]
    with recording:
        ledger = recording.ledger
        assert ledger is not None
        assert ledger["closed"]
        assert ledger["dropped"] == {}
        assert recording.raw_seqs == list(range(ledger["acquired"]))
        assert ledger["redelivered"] >= 1, "the snapshots of the node that hung"
