"""``sci-stream run``: a supervised rig with a live status line."""

from __future__ import annotations

import json
import os
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from sci_stream.config import Rig, load_rig
from sci_stream.delivery.frame_faults import fault_lines
from sci_stream.delivery.ledger import LedgerCounts, outcomes_in_words
from sci_stream.devices.modulators import make_coded_camera
from sci_stream.errors import (
    ConfigError,
    DataError,
    EnvironmentFault,
    FileFormatError,
    LedgerError,
    StorageError,
)
from sci_stream.file_guard import read_small, reading
from sci_stream.nodes.launcher.supervisor import Supervisor
from sci_stream.nodes.runtime.logs import as_line, lossy, set_up_logging
from sci_stream.nodes.runtime.network import client_security
from sci_stream.nodes.runtime.process import stop_on_signals
from sci_stream.nodes.runtime.runtime_folder import RunFolder
from sci_stream.recording.segments import first_segment
from sci_stream.transport.pubsub import subscribe_status
from sci_stream.wire.messages import Heartbeat

# A summary has a figure of each snapshot: this is enough for ten million.
_MAX_SUMMARY_BYTES = 256 << 20
# A series with a larger share of faulty frames is faulty data. Chosen, not measured.
_MAX_FAULTY = 0.01
_WORSE = (
    0,
    DataError.exit_status,
    StorageError.exit_status,
    LedgerError.exit_status,
)
# One of these is set where a browser can open a window, or the user has chosen one.
_DISPLAYS = {"DISPLAY", "WAYLAND_DISPLAY", "BROWSER"}


def run_rig(
    path: Path, *, snapshots: int, duration_s: float, summary: Path | None, verbose: bool
) -> int:
    """Run a rig's nodes on this machine until they end; return the exit status."""
    set_up_logging("run", verbose=verbose)
    rig = load_rig(path)
    make_coded_camera(
        rig
    )  # created but not opened: report a wrong driver or option before any process starts
    # Like the nodes it must not wait for a reader: it restarts them.
    console = Console(file=lossy(sys.stderr), stderr=True)

    def report(line: str) -> None:
        console.print(as_line("run", line), highlight=False, markup=False, soft_wrap=True)

    # A run folder: a later run deletes the rest of one that was killed.
    with stop_on_signals() as stop, RunFolder.in_memory() as scratch:
        account = _writable(summary) if summary is not None else scratch.path / "summary.json"
        supervisor = Supervisor(
            rig,
            path,
            stop,
            report,
            snapshots=snapshots,
            duration_s=duration_s,
            summary=account,
            verbose=verbose,
        )
        line = StatusLine(rig, console, report, total=snapshots)
        line.start()
        try:
            status = supervisor.run()
        finally:
            line.stop()
        if not account.exists():
            return status
        try:
            lines, ended = complete_summary(account, supervisor.restarts)
        except (FileFormatError, OSError) as error:
            report(f"cannot complete the summary {account}: {error}")
            return status or EnvironmentFault.exit_status
        for words in lines:
            report(words)
    return status or ended


def complete_summary(path: Path, restarts: int) -> tuple[list[str], int]:
    """Add the number of restarts to a sink's summary.

    Return the result of the run in a few lines, and the exit status that its series deserve. A
    sink that was restarted knows the last series only.

    Raises `FileFormatError` if the file is not a summary; OSError if it cannot be written.
    """
    with reading(path, "a summary"):
        result = json.loads(read_small(path, "a summary", _MAX_SUMMARY_BYTES))
        result["restarts"] = restarts
        lines = list(result_lines(result))
        status = max(map(_status_of, (*result["earlier"], result)), key=_WORSE.index)
        text = json.dumps(result, indent=2) + "\n"
    path.write_text(text, encoding="utf-8")
    return lines, status


def _status_of(series: Mapping[str, Any]) -> int:
    """Return the exit status that a series deserves."""
    ledger = series["ledger"]
    if not ledger["closed"]:
        return LedgerError.exit_status
    if series["recording"].get("incomplete"):
        return StorageError.exit_status
    faulty = sum(series["frame_faults"].values())
    return DataError.exit_status if faulty > _MAX_FAULTY * ledger["acquired"] else 0


def _writable(summary: Path) -> Path:
    """Check before the run that the summary can be written, and delete an old one."""
    try:
        summary.write_text("", encoding="utf-8")
        summary.unlink()
    except OSError as error:
        raise ConfigError(
            f"Cannot write --summary {summary}",
            got=error.strerror,
            hint="Name a file in a folder that exists.",
        ) from None
    return summary.resolve()


def result_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """Return the result of a run in a few lines."""
    ledger = summary["ledger"]
    for earlier in summary["earlier"]:
        yield f"series {earlier['series']}: {_account(earlier['ledger'])}"
        yield from _incomplete(earlier["recording"])
    yield _account(ledger)
    for _, words in fault_lines(summary["frame_faults"]):
        yield words
    calibration = summary.get("calibration") or {}
    for line in calibration.get("defects", "").splitlines():
        yield line.partition(": ")[2]
    figures = []
    if summary["psnr_db"]:
        figures.append(
            f"PSNR {summary['psnr_db']['mean']:.2f} dB (lowest {summary['psnr_db']['min']:.2f})"
        )
    if summary["iterations"]["mean"] is not None:
        figures.append(f"{summary['iterations']['mean']:.1f} iterations")
    if "total" in summary["latency_ms"]:
        total = summary["latency_ms"]["total"]
        figures.append(f"camera to sink {total['p50']:.0f} ms (p99 {total['p99']:.0f})")
    if summary["restarts"]:
        figures.append(
            f"{summary['restarts']} node restarts, {ledger['redelivered']} snapshots redelivered"
        )
    if figures:
        yield " · ".join(figures)
    recording = summary["recording"]
    if recording.get("file"):
        # After a restart of the sink the recording has several segments: the first opens all.
        yield f"recording: {first_segment(Path(recording['file']))}"
    yield from _incomplete(recording)


def _incomplete(recording: Mapping[str, Any]) -> Iterator[str]:
    if recording.get("incomplete"):
        yield f"THE RECORDING IS NOT COMPLETE: {recording['incomplete']}"


def _account(ledger: LedgerCounts) -> str:
    """Return the ledger of a series in a line."""
    missing = (
        f"{ledger['in_flight']} missing" if ledger["in_flight"] else "the series was not ended"
    )
    closes = "the ledger closes" if ledger["closed"] else f"THE LEDGER DOES NOT CLOSE: {missing}"
    missed = f", {ledger['camera_missed']} missed by the camera" if ledger["camera_missed"] else ""
    return f"{ledger['acquired']} acquired{missed} = {outcomes_in_words(ledger)}: {closes}"


class StatusLine:
    """A status line updated from the sink's reports; only the address of the page without a
    terminal.
    """

    def __init__(
        self, rig: Rig, console: Console, report: Callable[[str], None], *, total: int
    ) -> None:
        self._rig = rig
        self._report = report
        self._configure_socket = client_security(rig, "sink")
        self._total = total
        self._text = "starting: nodes are loading and connecting …"
        self._line = console.status(self._text)
        self._thread = threading.Thread(target=self._follow, name="status", daemon=True)
        self._announced = False
        self._stopped = False

    def start(self) -> None:
        """Begin."""
        self._line.start()
        self._thread.start()

    def stop(self) -> None:
        """Stop and restore the terminal."""
        self._stopped = True
        self._line.stop()

    def _follow(self) -> None:
        for report in subscribe_status(self._rig.network.taps, configure=self._configure_socket):
            if self._stopped:
                return
            self._announce(report)
            self._text = self._words(report)
            self._line.update(escape(self._text))

    def _announce(self, report: Heartbeat) -> None:
        url = report.status.get("preview")
        if self._announced or not isinstance(url, str) or not url:
            return
        self._announced = True
        self._report(f"live page: {url}")
        # Without a display a browser for texts would take the terminal.
        if self._rig.preview.open_browser and _DISPLAYS & os.environ.keys():
            webbrowser.open(url)

    def _words(self, report: Heartbeat) -> str:
        status = report.status
        if "ledger.acquired" not in status:
            if status.get("state") == "ended":
                return self._text
            return "waiting for the camera and a reconstruct node …"
        of = f"/{self._total}" if self._total else ""
        parts = [
            f"acquired {status['ledger.acquired']}{of}",
            f"reconstructed {status['ledger.reconstructed']}",
            f"raw only {status['ledger.raw_only']}" if status.get("ledger.raw_only") else "",
            f"not kept {status['ledger.not_kept']}" if status.get("ledger.not_kept") else "",
            f"dropped {status['ledger.dropped']}" if status.get("ledger.dropped") else "",
            f"in flight {status['ledger.in_flight']}",
            f"{status.get('rate.reconstructed_per_s', 0.0):.2f} snapshots/s",
            f"{status.get('rate.video_fps', 0.0):.1f} video frames/s",
            f"{status['latency_ms.p50']:.0f} ms" if "latency_ms.p50" in status else "",
            f"{status['iterations']:.0f} iterations" if "iterations" in status else "",
            f"{status['psnr_db']:.2f} dB" if "psnr_db" in status else "",
        ]
        return " · ".join(part for part in parts if part)
