"""Everything that can befall a rig, one after the other: it goes on, or ends with the reason, and the ledger closes."""

from __future__ import annotations

import io
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from sci_stream.errors import ConfigError
from tests.chaos.faults import FAULTS, RANDOM_KILLS, account, bench, print_figures, suffer
from tests.chaos.patched_node import Control
from tests.chaos.tcp_proxy import Cable
from tests.e2e.kit import ROOT, RunningRig, assert_accounted_for, free_ports

BY_DEFAULT = {"clock set back"}
"""What no other test of the default suite has: nodes killed and frozen, a slow sink, a full disk, a camera that does
what cameras do, a calibration that breaks and hostile messages are in `tests/e2e` and beside this, memory that runs out
in `tests/nodes/reconstruct/test_solver_thread.py`."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in BY_DEFAULT else pytest.mark.slow) for name in FAULTS]
)
def test_a_rig_survives_or_says_why_not_and_the_ledger_closes(tmp_path: Path, name: str) -> None:
    row = suffer(FAULTS[name], tmp_path)
    assert row["wrong"] == ""
    assert row["happened"]
    assert row["closed"]
    assert (row["lost"], row["twice"], row["missing"]) == (0, 0, 0)
    if name == "camera skips":
        assert row["camera_missed"] > 0
    if name == "out of memory":
        assert row["happened"] in {"took less at once", "started again"}
    assert list(tmp_path.iterdir()) == [], "what was recorded to measure is gone"


def test_what_is_wrong_is_shown_and_ends_the_command(tmp_path: Path) -> None:
    summary = {
        "series": "s",
        "latency_ms": {"queue": {"p50": -3.6e6}},
        "ledger": {
            **{"acquired": 5, "reconstructed": 2, "raw_only": 0, "dropped": {"queue_full": 1}, "closed": False},
            **{"redelivered": 0, "duplicates": 0, "camera_missed": 0},
        },
    }
    row = account(FAULTS["sink slow"], summary, tmp_path, 4)
    for words in ("2 lost", "6 missing", "not closed", "exit status 4, not 0", "1 dropped: queue_full", "-3.6e+06"):
        assert words in row["wrong"]
    shown = io.StringIO()
    rows = {"sink slow": {"done": "it", "happened": "that", "restarts": 0, **row}}
    print_figures({"machine": "here", "faults": rows}, Console(file=shown, width=160), tmp_path / "out.json")
    assert "NOT CLOSED" in shown.getvalue()
    assert "WRONG: 2 lost" in shown.getvalue()
    assert json.loads((tmp_path / "out.json").read_text())["faults"]["sink slow"]["lost"] == 2


def test_the_manual_says_of_each_fault_what_is_to_be_expected() -> None:
    manual = (ROOT / "docs" / "operation.md").read_text()
    for name in [*FAULTS, RANDOM_KILLS]:
        assert f"`{name}`" in manual


def test_a_fault_that_there_is_not_is_named() -> None:
    with pytest.raises(ConfigError, match=r"sink killed.*random kills; got 'sink on fire'"):
        bench(["sink on fire"])


def test_what_is_to_befall_nodes_is_told_to_all_of_them(tmp_path: Path) -> None:
    with Control(tmp_path / "control") as one, Control(tmp_path / "control") as other:
        one.clock_s, one.disk_s, one.detour = -3600.0, 0.5, ("tcp://127.0.0.1:1", "tcp://127.0.0.1:2")
        assert (other.clock_s, other.disk_s, other.detour) == (-3600.0, 0.5, one.detour)


def test_a_cable_lets_nothing_through_while_it_is_pulled_and_then_all_of_it() -> None:
    import socket  # noqa: PLC0415

    (port,) = free_ports(1)
    with socket.create_server(("127.0.0.1", port)) as server, Cable(port) as cable:
        near = socket.create_connection(("127.0.0.1", int(cable.near.rpartition(":")[2])), timeout=30)
        far, _ = server.accept()
        far.settimeout(30)
        with near, far:
            near.sendall(b"one")
            assert far.recv(3) == b"one"
            cable.pull()
            near.sendall(b"two")
            far.settimeout(0.3)
            with pytest.raises(TimeoutError):
                far.recv(3)
            far.settimeout(30)
            cable.plug()
            assert far.recv(3) == b"two"
            far.sendall(b"back")
            assert near.recv(4) == b"back"
            far.close()
            assert near.recv(1) == b"", "an end that is closed is closed on both sides"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Give a file system of 8 MiB in memory."""
    place = tmp_path / "disk"
    place.mkdir()
    try:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(place)], check=False, capture_output=True, text=True
        )
    except FileNotFoundError:
        pytest.skip("there is no mount")
    if mounted.returncode or os.geteuid():
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("policy", ["live", "record"])
def test_a_disk_that_is_really_full_costs_what_does_not_fit(tmp_path: Path, small_disk: Path, policy: str) -> None:
    changes = {
        "policy": {"mode": policy},
        "record": {"folder": str(small_disk)},
        "camera": {"options": {"snapshot_rate_hz": 50.0, "truth": False}},
        "reconstruct": {"denoiser": "identity", "iterations": 1},
    }
    with RunningRig(tmp_path, changes, "--snapshots", "300") as rig:
        assert rig.wait(200.0) == 3, rig.output
        assert "Traceback" not in rig.output
        assert "is full" in rig.output
        ledger = assert_accounted_for(rig.summary())
        assert ledger["acquired"] == 300
        assert ledger["dropped"]["not_recorded"] > 0
        with rig.recordings() as (recording,):
            assert recording.raw_seqs == list(range(len(recording.raw_seqs)))
            assert recording.raw_seqs, "what fits is there"
            for seq in recording.raw_seqs:
                assert recording.raw(seq).any()
