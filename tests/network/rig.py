"""An encrypted rig whose nodes run on virtual hosts; started, watched and always cleaned up."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from sci_stream.config import load_rig
from sci_stream.config.toml_text import table_text
from sci_stream.recording.reader import Recording
from sci_stream.security.keys import allow_key, make_key_pair
from tests.e2e.kit import (
    COMMAND,
    PATIENCE_S,
    Tables,
    assert_accounted_for,
    environment,
    merged,
    small_rig,
    wait_for,
)
from tests.network.ether import Host, hosts

ADDRESSES = {
    "camera": "10.77.0.1",
    "disk": "10.77.0.2",
    "solver0": "10.77.0.10",
    "solver1": "10.77.0.11",
}
_STATUS_PORTS = {"camera": 5711, "disk": 5712, "solver0": 5720, "solver1": 5721}


class NetworkRig:
    """Acquire node, two reconstruct nodes and sink, each alone on its host.

    Parameters
    ----------
    folder
        Where rig file, keys, outputs, summary and recordings go.
    changes
        Changes to `tests.e2e.kit.small_rig` with the addresses of the hosts.
    snapshots
        Length of the series; 0: until it is stopped.
    """

    def __init__(self, folder: Path, changes: Tables | None = None, *, snapshots: int = 0) -> None:
        self.folder = folder
        self.snapshots = snapshots
        self._stack = contextlib.ExitStack()
        self.hosts: dict[str, Host] = {}
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._keys = {name: make_key_pair(folder / f"{name}.key") for name in ADDRESSES}
        for name, key in self._keys.items():
            allow_key(folder / "allowed_keys", key, name)
        own = {
            "network": {
                "dispatch": f"tcp://{ADDRESSES['camera']}:5701",
                "results": f"tcp://{ADDRESSES['disk']}:5702",
                "taps": f"tcp://{ADDRESSES['disk']}:5703",
                "heartbeat_s": 0.5,
            },
            "reconstruct": {"nodes": 2},
            "health": {"enabled": True},
            "security": {
                "allowed": str(folder / "allowed_keys"),
                "acquire_key": self._keys["camera"],
                "sink_key": self._keys["disk"],
            },
        }
        tables = merged(merged(small_rig(), own), changes or {})
        self.path = folder / "rig.toml"
        self.path.write_text("\n".join(table_text(name, table) for name, table in tables.items()))
        self.rig = load_rig(self.path, overrides={})
        assert self.rig.encrypted

    def __enter__(self) -> Self:
        self.hosts = self._stack.enter_context(hosts(**ADDRESSES))
        self.start("disk", "sink", "--summary", str(self.folder / "summary.json"))
        self.start("solver0", "reconstruct", "--index", "0")
        self.start("solver1", "reconstruct", "--index", "1")
        self.start(
            "camera", "acquire", *(["--snapshots", str(self.snapshots)] if self.snapshots else [])
        )
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.nodes.values():
            process.kill()
            process.wait()
        self._stack.close()

    def start(self, host: str, *arguments: str) -> None:
        """Start a node on a host."""
        kind, *options = arguments
        with (self.folder / f"{host}.log").open("ab") as log:
            self.nodes[host] = subprocess.Popen(
                [*self.hosts[host].prefix, *COMMAND, "--verbose", kind, str(self.path), *options],
                cwd=self.folder,
                env=environment(SCI_STREAM_RIG__SECURITY__KEY=str(self.folder / f"{host}.key")),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def said(self, host: str) -> str:
        """Return the output of a host's node so far."""
        return (self.folder / f"{host}.log").read_text(errors="replace")

    @property
    def output(self) -> str:
        """The output of all nodes, host by host."""
        return "\n".join(f"--- {host}\n{self.said(host)}" for host in self.nodes)

    def status_of(self, host: str) -> dict[str, Any]:
        """Return the status of a host's node, requested on that host; empty while it does not
        answer.
        """
        port = _STATUS_PORTS[host]

        def ask() -> dict[str, Any]:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=5) as response:
                report: dict[str, Any] = json.load(response)
                return report

        try:
            return self.hosts[host].call(ask)
        except OSError:
            return {}

    def status(self) -> dict[str, Any]:
        """Return the sink's status."""
        return self.status_of("disk")

    def wait_for(
        self,
        what: str,
        condition: Callable[[dict[str, Any]], object],
        timeout_s: float = PATIENCE_S,
    ) -> None:
        """Wait until the sink's status meets a condition."""

        def came_about() -> object:
            for host, process in self.nodes.items():
                assert process.poll() in (None, 0), (
                    f"{host} ended with {process.returncode}\n{self.output}"
                )
            return condition(self.status())

        try:
            wait_for(came_about, what, timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{json.dumps(self.status())}\n{self.output}") from None

    def wait_for_count(self, name: str, least: int, timeout_s: float = PATIENCE_S) -> None:
        """Wait until a count of the ledger reaches ``least``."""
        self.wait_for(
            f"{least} {name}",
            lambda status: status.get("ledger", {}).get(name, 0) >= least,
            timeout_s,
        )

    def count(self, name: str) -> int:
        """Return a count of the ledger now."""
        found: int = self.status().get("ledger", {}).get(name, 0)
        return found

    def wait_for_words(self, host: str, words: str, times: int = 1) -> None:
        """Wait for a text in the output of a host's node."""
        wait_for(
            lambda: self.said(host).count(words) >= times, f"{host} says {words!r}\n{self.output}"
        )

    def stop(self) -> None:
        """Request the end of the series."""
        self.nodes["camera"].send_signal(signal.SIGTERM)

    def finish(self, timeout_s: float = 2 * PATIENCE_S) -> dict[str, Any]:
        """Wait for the end of the series, stop all nodes and return the summary of the successful
        run.
        """
        for host in ("camera", "solver0", "solver1", "disk"):
            process = self.nodes[host]
            if host != "camera":
                process.send_signal(signal.SIGTERM)
            try:
                status = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                raise AssertionError(
                    f"{host} does not end\n{json.dumps(self.status())}\n{self.output}"
                ) from None
            assert status == 0, f"{host} ended with {status}\n{self.output}"
        assert "Traceback" not in self.output, self.output
        summary: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return summary

    def assert_complete(self, summary: dict[str, Any]) -> dict[str, Any]:
        """Assert that the ledger closes to the snapshot and the recording has each once; return the
        ledger.
        """
        ledger = assert_accounted_for(summary)
        with contextlib.ExitStack() as stack:
            folder = Path(self.rig.record.folder)
            recordings = [
                stack.enter_context(Recording(path)) for path in sorted(folder.glob("*.h5"))
            ]
            raws = sorted(seq for recording in recordings for seq in recording.raw_seqs)
            videos = sorted(seq for recording in recordings for seq in recording.video_seqs)
        assert len(set(raws)) == len(raws)
        assert len(set(videos)) == len(videos) == ledger["reconstructed"]
        if not ledger["dropped"]:
            assert raws == list(range(ledger["acquired"]))
        return ledger
