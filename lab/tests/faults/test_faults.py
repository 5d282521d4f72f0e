"""Each fault in turn: the rig recovers or ends with the reason, and the ledger closes."""

from __future__ import annotations

import io
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from lab.tests.faults.faults import FAULTS, RANDOM_KILLS, account, bench, faults_result, run_fault
from lab.tests.faults.patched_node import FaultControl
from lab.tests.faults.tcp_proxy import TcpProxy
from sci_stream.errors import ConfigError
from sci_stream_lab.bench.pipeline.supervised_rig import LedgerFigures, RunSummary
from sci_stream_lab.bench.result import print_result, write_json
from tests.e2e.kit import ROOT, RunningRig, assert_accounted_for
from tests.ports import free_ports

pytestmark = pytest.mark.rig

BY_DEFAULT = {"clock set back"}
"""The faults that no other fast test covers. Killed and frozen nodes, a slow sink, a full disk,
camera faults, a broken
calibration and hostile messages are in `tests/e2e` and in this folder, out-of-memory errors in
`tests/nodes/reconstruct/test_solver_thread.py`."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in BY_DEFAULT else pytest.mark.slow) for name in FAULTS],
)
def test_rig_under_fault_recovers_and_closes_ledger(tmp_path: Path, name: str) -> None:
    row = run_fault(name, tmp_path)
    assert row.wrong == ""
    assert row.happened
    assert row.ledger is not None
    assert row.ledger.closed
    assert (row.ledger.lost, row.twice, row.missing) == (0, 0, 0)
    if name == "camera skips":
        assert row.ledger.camera_missed > 0
    if name == "out of memory":
        assert row.happened in {"solved in smaller chunks", "restarted"}
    assert list(tmp_path.iterdir()) == [], "temporary recordings are deleted"


def test_violated_expectations_are_printed_in_red(tmp_path: Path) -> None:
    ledger = LedgerFigures(
        5, 2, 0, {"queue_full": 1}, redelivered=0, duplicates=0, camera_missed=0, closed=False
    )
    row = account("sink slow", RunSummary("s", ledger, {"queue": {"p50": -3.6e6}}), tmp_path, 4)
    for words in (
        "2 lost",
        "6 missing",
        "not closed",
        "exit status 4, not 0",
        "1 dropped: queue_full",
        "-3.6e+06",
    ):
        assert words in row.wrong
    result = faults_result([row])
    assert result.wrong == {"sink slow": row.wrong}
    assert result.tables[0].wrong == {0}
    shown = io.StringIO()
    print_result(result, Console(file=shown, width=160))
    assert "NOT CLOSED" in shown.getvalue()
    assert "WRONG: sink slow: 2 lost" in shown.getvalue()
    write_json(result, tmp_path / "out.json")
    (written,) = json.loads((tmp_path / "out.json").read_text())["faults"]
    assert written["ledger"]["dropped"] == {"queue_full": 1}


def test_every_fault_is_documented_in_operation_manual() -> None:
    manual = (ROOT / "docs" / "operation.md").read_text()
    for name in [*FAULTS, RANDOM_KILLS]:
        assert f"`{name}`" in manual


def test_unknown_fault_raises_config_error() -> None:
    with pytest.raises(ConfigError, match=r"sink killed.*kill rounds; got 'sink on fire'"):
        bench(["sink on fire"])


def test_control_file_is_shared_between_processes(tmp_path: Path) -> None:
    with FaultControl(tmp_path / "control") as one, FaultControl(tmp_path / "control") as other:
        one.clock_s, one.disk_s, one.detour = (
            -3600.0,
            0.5,
            ("tcp://127.0.0.1:1", "tcp://127.0.0.1:2"),
        )
        assert (other.clock_s, other.disk_s, other.detour) == (-3600.0, 0.5, one.detour)


def test_proxy_blocks_while_cut_and_delivers_after_restore() -> None:
    import socket  # noqa: PLC0415

    (port,) = free_ports(1)
    with socket.create_server(("127.0.0.1", port)) as server, TcpProxy(port) as proxy:
        near = socket.create_connection(
            ("127.0.0.1", int(proxy.near.rpartition(":")[2])), timeout=30
        )
        far, _ = server.accept()
        far.settimeout(30)
        with near, far:
            near.sendall(b"one")
            assert far.recv(3) == b"one"
            proxy.cut()
            near.sendall(b"two")
            far.settimeout(0.3)
            with pytest.raises(TimeoutError):
                far.recv(3)
            far.settimeout(30)
            proxy.restore()
            assert far.recv(3) == b"two"
            far.sendall(b"back")
            assert near.recv(4) == b"back"
            far.close()
            assert near.recv(1) == b"", "closing one end closes the other"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 8 MiB in memory."""
    place = tmp_path / "disk"
    place.mkdir()
    try:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(place)],
            check=False,
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        pytest.skip("mount is not available")
    if mounted.returncode or os.geteuid():
        pytest.skip(f"cannot mount a file system: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("policy", ["live", "record"])
def test_full_disk_drops_only_what_does_not_fit(
    tmp_path: Path, small_disk: Path, policy: str
) -> None:
    changes = {
        "policy": {"mode": policy},
        "record": {"folder": str(small_disk)},
        "camera": {"options": {"snapshot_rate_hz": 50.0, "truth": False}},
        "reconstruct": {"solver": "identity", "iterations": 1},
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
            assert recording.raw_seqs, "snapshots before the disk was full are recorded"
            for seq in recording.raw_seqs:
                assert recording.raw(seq).any()
