"""Network faults between nodes on virtual hosts: the run continues and the ledger closes."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kit import PATIENCE_S, wait_for
from tests.network.ether import missing
from tests.network.rig import NetworkRig

MISSING = missing()
pytestmark = [pytest.mark.rig(seconds=30), pytest.mark.skipif(bool(MISSING), reason=MISSING)]

RECORD = {"policy": {"mode": "record"}, "reconstruct": {"solver": "identity", "iterations": 1}}


def wait_until_both_work(rig: NetworkRig) -> None:
    """Wait until each reconstruct node has reconstructed another snapshot.

    A fast node gets every block, because warm starts need consecutive snapshots: each gets its turn
    while the other is paused.
    """
    for host, other in (("solver0", "solver1"), ("solver1", "solver0")):
        with held(rig, other):
            wait_until_works(rig, host)


@contextlib.contextmanager
def held(rig: NetworkRig, host: str) -> Iterator[None]:
    """Pause the node of a host."""
    rig.nodes[host].send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        rig.nodes[host].send_signal(signal.SIGCONT)


def wait_until_works(rig: NetworkRig, host: str) -> None:
    """Wait until the reconstruct node of a host has reconstructed another snapshot."""
    least = reconstructed_by(rig, host) + 1
    wait_for(
        lambda: reconstructed_by(rig, host) >= least, f"{host} works\n{rig.output}", PATIENCE_S
    )


def reconstructed_by(rig: NetworkRig, host: str) -> int:
    """Return the number of snapshots that a host's node reports as reconstructed."""
    return int(rig.status_of(host).get("reconstructed", 0))


@pytest.mark.timeout(360)
def test_network_cut_on_slow_lossy_link_loses_nothing(tmp_path: Path) -> None:
    with NetworkRig(tmp_path, RECORD) as rig:
        for host in rig.hosts.values():
            host.cable.delay_s, host.cable.loss = 0.01, 0.005
        rig.wait_for_count(
            "reconstructed", 4, timeout_s=3 * PATIENCE_S
        )  # four processes load at once
        with held(rig, "solver1"):
            wait_until_works(rig, "solver0")
            rig.hosts["solver0"].cable.cut = True
            # The paused node takes a few. The others go to the node that still seems connected.
            wait_for_acquired(rig, SHORT)
        rig.wait_for_words("camera", "lost: heartbeat timeout")
        rig.wait_for_count("reconstructed", rig.count("reconstructed") + 4)
        rig.hosts["solver0"].cable.cut = False
        rig.wait_for_words(
            "camera", "reconstruct-0@", times=3
        )  # it joined, was lost, and joined again
        wait_until_both_work(rig)
        rig.stop()
        ledger = rig.assert_complete(rig.finish())
        assert ledger["reconstructed"] == ledger["acquired"]
        # If the result had just reached the sink, the second one was discarded.
        assert ledger["redelivered"] + ledger["duplicates"] >= 1


def acquired(rig: NetworkRig) -> int:
    """Return the number of snapshots delivered by the camera, requested on its host."""
    return int(rig.status_of("camera").get("acquired", 0))


def wait_for_acquired(rig: NetworkRig, more: int) -> None:
    """Wait for this many more snapshots from the camera: the clock of these tests,
    10 per second.
    """
    least = acquired(rig) + more
    wait_for(
        lambda: acquired(rig) >= least,
        f"{least} acquired\n{rig.output}",
        timeout_s=PATIENCE_S + more,
    )


def assert_nothing_lost(rig: NetworkRig) -> dict[str, Any]:
    """Stop the rig and assert that every snapshot is recorded and reconstructed, once; return the
    ledger.
    """
    rig.stop()
    ledger = rig.assert_complete(rig.finish())
    assert ledger["dropped"] == {}
    assert ledger["reconstructed"] == ledger["acquired"]
    return ledger


SHORT, LONG = 8, 400
"""Snapshots acquired during a cut: shorter than the heartbeat timeout; longer than every timeout of
ours and of TCP."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("host", ["disk", "camera", "solver0"])
@pytest.mark.parametrize("for_snapshots", [SHORT, LONG], ids=["short", "long"])
def test_network_cut_of_any_host_and_duration_loses_nothing(
    tmp_path: Path, host: str, for_snapshots: int
) -> None:
    with NetworkRig(tmp_path, RECORD) as rig:
        rig.wait_for_count("reconstructed", 4)
        rig.hosts[host].cable.cut = True
        wait_for_acquired(rig, for_snapshots)
        rig.hosts[host].cable.cut = False
        rig.wait_for_count("reconstructed", acquired(rig) + 4, timeout_s=4 * PATIENCE_S)
        wait_until_both_work(rig)
        assert_nothing_lost(rig)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("host", ["disk", "camera", "solver0"])
def test_interface_down_and_up_loses_nothing(tmp_path: Path, host: str) -> None:
    with NetworkRig(tmp_path, RECORD) as rig:
        rig.wait_for_count("reconstructed", 4)
        for for_snapshots in (SHORT, 60):
            rig.hosts[host].ip("link", "set", "eth0", "down")
            wait_for_acquired(rig, for_snapshots)
            rig.hosts[host].ip("link", "set", "eth0", "up")
            rig.wait_for_count("reconstructed", acquired(rig) + 4, timeout_s=4 * PATIENCE_S)
        assert_nothing_lost(rig)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("host", ["disk", "camera", "solver0"])
def test_address_removed_and_restored_loses_nothing(tmp_path: Path, host: str) -> None:
    with NetworkRig(tmp_path, RECORD) as rig:
        rig.wait_for_count("reconstructed", 4)
        address = rig.hosts[host].address
        rig.hosts[host].ip("addr", "flush", "dev", "eth0")
        wait_for_acquired(rig, 60)
        rig.hosts[host].readdress(address)
        rig.wait_for_count("reconstructed", acquired(rig) + 4, timeout_s=4 * PATIENCE_S)
        assert_nothing_lost(rig)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_node_with_new_address_reconnects(tmp_path: Path) -> None:
    with NetworkRig(tmp_path, RECORD) as rig:
        rig.wait_for_count("reconstructed", 4)
        rig.hosts["solver0"].readdress("10.77.0.20")
        rig.wait_for_words(
            "camera", "reconstruct-0@", times=3
        )  # it joined, was lost, and joined again
        wait_until_both_work(rig)
        assert_nothing_lost(rig)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_high_delay_and_loss_only_slow_the_rig(tmp_path: Path) -> None:
    # Round trip 0.2 s and 2 % packet loss: TCP reaches about 60 kB/s.
    with NetworkRig(tmp_path, {**RECORD, "camera": {"options": {"snapshot_rate_hz": 1.0}}}) as rig:
        for host in rig.hosts.values():
            host.cable.delay_s, host.cable.loss = 0.05, 0.01
        rig.wait_for_count("reconstructed", 30, timeout_s=4 * PATIENCE_S)
        assert_nothing_lost(rig)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("host", ["solver0", "disk", "camera"])
def test_slow_link_is_not_mistaken_for_lost_peer(tmp_path: Path, host: str) -> None:
    # At 100 kB/s, 1 MiB of video takes 10 s and 128 KiB of counts 1.3 s; the timeout is 3 s.
    changes = {
        **RECORD,
        "network": {"heartbeat_s": 1.0},
        "camera": {
            "options": {
                "width_px": 256, "height_px": 256, "n_frames": 8, "loop_snapshots": 2,
                "snapshot_rate_hz": 0.2,
                "truth": False,
            },
        },
    }  # fmt: skip
    with NetworkRig(tmp_path, changes) as rig:
        rig.wait_for_count("reconstructed", 2, timeout_s=2 * PATIENCE_S)
        rig.hosts[host].cable.bytes_per_s = 100_000
        rig.wait_for_count("reconstructed", 8, timeout_s=4 * PATIENCE_S)
        rig.hosts[host].cable.bytes_per_s = 0
        ledger = assert_nothing_lost(rig)
        # tests/transport/test_silence.py tests the liveness rules with a simulated clock.
        assert ledger["duplicates"] <= ledger["reconstructed"] // 2, (
            "messages in flight are not resent repeatedly"
        )
