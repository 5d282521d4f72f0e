"""Monitoring of a running rig by a service manager and by Prometheus."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from sci_stream.delivery.ledger import DropReason
from tests import plain_http
from tests.deploy.test_deploy import dashboard_queries
from tests.e2e.conftest import CommandHere
from tests.e2e.kit import COMMAND, ITERATIONS, PATIENCE_S, environment, wait_for, write_rig
from tests.ports import free_ports
from tests.rig_in_process import RigInProcess

pytestmark = pytest.mark.rig

KINDS = ("acquire", "sink", "reconstruct")
WatchedRig = tuple[RigInProcess, dict[str, str]]

SOLVED = 3
"""Snapshots before the first test."""


def get(url: str) -> httpx.Response:
    return plain_http.get(url, timeout=PATIENCE_S)


def figures(url: str) -> dict[str, dict[str, float]]:
    """Return samples by name and the value of their one label, if any."""
    out: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(get(url + "/metrics").text):
        for sample in family.samples:
            out.setdefault(sample.name, {})[" ".join(sample.labels.values())] = sample.value
    return out


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedRig]:
    ports = dict(zip(KINDS, free_ports(3), strict=True))
    health = {"enabled": True, **{f"{kind}_port": port for kind, port in ports.items()}}
    with RigInProcess(tmp_path_factory.mktemp("watched"), {"health": health}) as rig:
        rig.reconstruct(SOLVED)
        urls = {kind: f"http://127.0.0.1:{port}" for kind, port in ports.items()}
        wait_for(lambda: all(is_ready(url) for url in urls.values()), "every node is ready")
        wait_for(lambda: has_results(urls), "both nodes report the first snapshots")
        yield rig, urls


def has_results(urls: dict[str, str]) -> bool:
    """Return whether the figures of a result are published: histograms at once, counters at the
    next report.
    """
    sink, reconstruct = figures(urls["sink"]), figures(urls["reconstruct"])
    timed = sink.get("sci_stream_latency_seconds_count", {})
    settled = sum(sink.get("sci_stream_snapshots_total", {}).values()) >= SOLVED
    reported = settled and "sci_stream_disk_free_bytes" in sink
    return (
        "total" in timed
        and reported
        and reconstruct["sci_stream_solver_busy_seconds_total"][""] > 0
    )


def is_ready(url: str) -> bool:
    try:
        return get(url + "/readyz").status_code == 200
    except httpx.TransportError:
        return False


def test_prometheus_ledger_adds_up_and_grows(watched: WatchedRig) -> None:
    rig, urls = watched

    def ledger() -> tuple[float, float]:
        found = figures(urls["sink"])
        settled = sum(found["sci_stream_snapshots_total"].values())
        assert (
            found["sci_stream_ledger_acquired_total"][""]
            == settled + found["sci_stream_ledger_in_flight"][""]
        )
        return settled, found["sci_stream_latency_seconds_count"]["total"]

    before, timed = ledger()
    rig.expose(3)
    wait_for(lambda: ledger()[0] >= before + 3, "three more snapshots are in the ledger")
    assert ledger()[1] > timed


def test_every_node_reports_status(watched: WatchedRig) -> None:
    _, urls = watched
    up = {"acquire up": 1.0, "reconstruct up": 1.0}
    wait_for(
        lambda: figures(urls["sink"])["sci_stream_nodes"] == up, "no node is late on a busy machine"
    )
    wait_for(
        lambda: figures(urls["acquire"])["sci_stream_reconstruct_nodes"][""] == 1,
        "the same for the acquire node",
    )
    acquire, reconstruct, sink = (
        figures(urls[kind]) for kind in ("acquire", "reconstruct", "sink")
    )
    assert acquire["sci_stream_acquired_total"][""] > 0
    # From 0, or an alert does not see the first.
    assert {"missed": 0, "incomplete": 0, "lost": 0}.items() <= acquire[
        "sci_stream_camera_events_total"
    ].items()
    assert {f"dropped: {reason}": 0 for reason in DropReason}.items() <= sink[
        "sci_stream_snapshots_total"
    ].items()
    assert reconstruct["sci_stream_solve_seconds_count"][""] > 0
    assert (
        reconstruct["sci_stream_iterations_sum"][""]
        == ITERATIONS * reconstruct["sci_stream_iterations_count"][""]
    )
    assert reconstruct["sci_stream_solver_busy_seconds_total"][""] > 0
    assert sink["sci_stream_disk_free_bytes"][""] > 0


def test_acquire_is_not_ready_without_reconstruct_node(watched: WatchedRig) -> None:
    rig, urls = watched
    reasons: list[str] = []
    rig.nodes["reconstruct-0"].stop()

    def unready() -> bool:
        answer = get(urls["acquire"] + "/readyz")
        reasons.append(answer.text)
        return answer.status_code == 503

    wait_for(unready, "the acquire node is not ready")
    assert reasons[-1] == "no reconstruct node is ready\n"
    assert get(urls["acquire"] + "/healthz").status_code == 200
    rig.start_reconstruct()
    wait_for(lambda: is_ready(urls["acquire"]), "the acquire node is ready again")
    rig.expose()
    wait_for(
        lambda: is_ready(urls["reconstruct"]) and has_results(urls),
        "the restarted node reports a snapshot",
    )


def test_public_health_without_token_is_refused(tmp_path: Path, command_here: CommandHere) -> None:
    path = tmp_path / "rig.toml"
    path.write_text('[health]\nhost = "0.0.0.0"\n')
    refused = command_here("check", path, cwd=tmp_path)
    assert refused.status == 2
    assert "SCI_STREAM_RIG__HEALTH__TOKEN" in refused.output


def status_of(url: str) -> dict[str, Any]:
    return dict(get(url + "/status").json())


def test_status_lists_health_addresses(watched: WatchedRig) -> None:
    _, urls = watched
    nodes = {node["kind"]: node["health"] for node in status_of(urls["sink"])["nodes"]}
    assert nodes == {kind: urls[kind] for kind in ("acquire", "reconstruct")}


def test_dashboard_queries_have_data(watched: WatchedRig) -> None:
    """All metrics except those that only some rigs have: a GPU, shifted masks, refused messages."""
    _, urls = watched
    live = {name for url in urls.values() for name in figures(url)}
    asked = {
        name
        for query in dashboard_queries()
        for name in re.findall(r"(?:sci_stream|process)_\w+", query)
    }
    rare = {
        "sci_stream_device_memory_bytes",
        "sci_stream_calibration_shift_px",
        "sci_stream_wire_errors_total",
    }
    assert asked - live <= rare


def test_node_notifies_service_manager(tmp_path: Path) -> None:
    """As under systemd: READY once it is set up, then WATCHDOG at every progress."""
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    manager.settimeout(60)
    node = subprocess.Popen(
        [*COMMAND, "sink", str(write_rig(tmp_path))],
        env=environment(NOTIFY_SOCKET=str(tmp_path / "notify")),
        stderr=subprocess.DEVNULL,
    )
    try:
        first = manager.recv(4096).decode().splitlines()
        assert first == ["READY=1", "STATUS=no acquire node connected", "WATCHDOG=1"]
        assert manager.recv(4096) == b"WATCHDOG=1"
        node.terminate()
        while manager.recv(4096) != b"STOPPING=1":
            pass
        assert node.wait(60) == 0
    finally:
        node.kill()
        node.wait()
        manager.close()
