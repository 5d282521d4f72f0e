"""Notifications to systemd: ready, status, and a watchdog that is fed by progress."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sci_stream.nodes.runtime.health_reporter import SystemdNotifier


class Manager:
    """The receiving end, as systemd has it."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.setblocking(False)

    def heard(self) -> list[str]:
        try:
            return self._socket.recv(4096).decode().split("\n")
        except BlockingIOError:
            return []

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["file", "abstract"])
def ends(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[Manager, SystemdNotifier]]:
    named = (
        str(tmp_path / "notify") if request.param == "file" else f"@sci-stream-test-{tmp_path.name}"
    )
    manager = Manager("\0" + named[1:] if named.startswith("@") else named)
    node = SystemdNotifier({"NOTIFY_SOCKET": named})
    yield manager, node
    node.close()
    manager.close()


Ends = tuple[Manager, SystemdNotifier]


def test_ready_is_sent_once_and_status_on_change(ends: Ends) -> None:
    manager, node = ends
    node.report("the camera is being opened", progress=0, idle=True)
    assert manager.heard() == ["READY=1", "STATUS=the camera is being opened", "WATCHDOG=1"]
    node.report("ready", progress=0, idle=True)
    assert manager.heard() == ["STATUS=ready", "WATCHDOG=1"]


def test_watchdog_is_fed_by_progress_or_idleness_only(ends: Ends) -> None:
    manager, node = ends
    node.report("ready", progress=5, idle=False)
    assert "WATCHDOG=1" in manager.heard()
    for _ in range(3):
        node.report("ready", progress=5, idle=False)
        assert manager.heard() == []
    node.report("ready", progress=6, idle=False)
    assert manager.heard() == ["WATCHDOG=1"]
    node.report("ready", progress=6, idle=True)
    assert manager.heard() == ["WATCHDOG=1"]


def test_line_break_in_status_cannot_forge_a_message(ends: Ends) -> None:
    manager, node = ends
    node.report("lost\nSTOPPING=1", progress=0, idle=False)
    assert "STATUS=lost STOPPING=1" in manager.heard()


def test_stop_is_announced(ends: Ends) -> None:
    manager, node = ends
    node.close()
    assert manager.heard() == ["STOPPING=1"]


def test_missing_manager_is_survived(ends: Ends) -> None:
    manager, node = ends
    manager.close()
    node.report("ready", progress=1, idle=False)
    alone = SystemdNotifier({})
    alone.report("ready", progress=1, idle=False)
    alone.close()
