"""A service manager hears when a node is ready, how it goes, and of progress: not of the passing of time."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sci_stream.nodes.runtime.systemd import SystemdNotifier


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
def ends(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Manager, SystemdNotifier]]:
    named = str(tmp_path / "notify") if request.param == "file" else f"@sci-stream-test-{tmp_path.name}"
    manager = Manager("\0" + named[1:] if named.startswith("@") else named)
    node = SystemdNotifier({"NOTIFY_SOCKET": named})
    yield manager, node
    node.close()
    manager.close()


Ends = tuple[Manager, SystemdNotifier]


def test_readiness_is_told_once_and_words_when_they_change(ends: Ends) -> None:
    manager, node = ends
    node.report("the camera is being opened", progress=0, idle=True)
    assert manager.heard() == ["READY=1", "STATUS=the camera is being opened", "WATCHDOG=1"]
    node.report("ready", progress=0, idle=True)
    assert manager.heard() == ["STATUS=ready", "WATCHDOG=1"]


def test_the_watchdog_is_fed_by_progress_and_when_there_is_nothing_to_do_but_not_by_time(ends: Ends) -> None:
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


def test_a_line_break_in_a_reason_cannot_forge_another_message(ends: Ends) -> None:
    manager, node = ends
    node.report("lost\nSTOPPING=1", progress=0, idle=False)
    assert "STATUS=lost STOPPING=1" in manager.heard()


def test_the_beginning_of_the_end_is_told(ends: Ends) -> None:
    manager, node = ends
    node.stopping()
    assert manager.heard() == ["STOPPING=1"]


def test_a_manager_that_is_gone_and_none_at_all_are_survived(ends: Ends) -> None:
    manager, node = ends
    manager.close()
    node.report("ready", progress=1, idle=False)
    alone = SystemdNotifier({})
    alone.report("ready", progress=1, idle=False)
    alone.stopping()
    alone.close()
