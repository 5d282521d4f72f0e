"""``sci-stream top``: live status of a rig in the terminal, from the sink's health server."""

from __future__ import annotations

import time
import urllib.error
import urllib.request

from pydantic import BaseModel, ValidationError
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from sci_stream.config import Rig
from sci_stream.config.fields import network_location
from sci_stream.delivery.ledger import LedgerCounts
from sci_stream.errors import ConfigError, EnvironmentFault
from sci_stream.file_guard import in_words
from sci_stream.nodes.sink.status import SinkRates

# The sink publishes its status twice a second.
_PERIOD_S = 0.5
_PATIENCE_S = 2.0
# Minimum column widths, so that the table does not jump.
_LEAST = {"node": 13, "state": 7, "done": 6, "clock ms": 10}


class ShownNode(BaseModel):
    """A node in the status; the counts that its kind has."""

    name: str = "?"
    state: str = "?"
    phase: str | None = None
    device: str = ""
    held: int | str = ""
    in_hand: int | None = None
    acquired: int | str = ""
    reconstructed: int | None = None
    warm: int | str = ""
    iterations: int | float | str = ""
    unsafe: int | str = ""
    clock_offset_ms: float | None = None
    clock_uncertainty_ms: float = 0.0


class ShownRecording(BaseModel):
    """The recording."""

    enabled: bool = False
    state: str = ""
    bytes: int = 0
    mb_per_s: float = 0.0
    free_bytes: int | None = None


class RigStatus(BaseModel):
    """The part of the sink's status that is shown here."""

    state: str = "?"
    ready: bool = False
    not_ready: str = ""
    rig: str = "?"
    series: str | None = "–"
    camera: str | None = ""
    policy: str | None = ""
    nodes: list[ShownNode] = []
    ledger: LedgerCounts | None = None
    rates: SinkRates | None = None
    recording: ShownRecording | None = None
    psnr_db: float | None = None
    latency_ms: dict[str, dict[str, float]] | None = None


def status_url(rig: Rig) -> str:
    """Return the URL of the sink's status.

    Raises
    ------
    ConfigError
        If the health server is disabled or its port is not fixed.
    """
    section = rig.health
    if not section.enabled or not section.sink_port:
        raise ConfigError(
            "The sink's status has no fixed address",
            expected="[health] enabled = true and a sink_port other than 0",
            got=f"enabled = {str(section.enabled).lower()}, sink_port = {section.sink_port}",
        )
    return f"http://{network_location(section.host, section.sink_port)}/status"


def read_status(url: str, token: str = "") -> RigStatus:
    """Fetch a node's status.

    Raises
    ------
    EnvironmentFault
        If there is no answer, or the answer is not a status.
    """
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=_PATIENCE_S) as answer:
            return RigStatus.model_validate_json(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            raise EnvironmentFault(
                f"Access denied by {url}",
                got=error.read(200).decode(errors="replace").strip(),
                hint="Set [health] token.",
            ) from None
    except ValidationError as error:
        raise EnvironmentFault(f"Invalid status from {url}", got=in_words(error)) from None
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise EnvironmentFault(
            f"No sink answers at {url}", got=str(reason), hint="Is the rig running? Start it: sci-stream run RIG.toml"
        ) from None


def watch(rig: Rig, console: Console, *, once: bool = False) -> None:
    """Show the rig until interrupted, or once.

    Raises
    ------
    ConfigError, EnvironmentFault
        If there is no address or, at the start, no answer. Later losses are displayed.
    """
    url, token = status_url(rig), rig.health.token
    status = read_status(url, token)
    if once or not console.is_terminal:
        console.print(picture(status))
        return
    with Live(picture(status), console=console, refresh_per_second=4, screen=True) as live:
        received_s = time.monotonic()
        while True:
            time.sleep(_PERIOD_S)
            try:
                status = read_status(url, token)
                received_s = time.monotonic()
                live.update(picture(status))
            except EnvironmentFault as error:
                no_data = Text(f"NO DATA for {time.monotonic() - received_s:.0f} s: {error}", style="bold white on red")
                live.update(Group(no_data, picture(status, stale=True)))


def picture(status: RigStatus, *, stale: bool = False) -> RenderableType:
    """Return a rig's status as tables."""
    ready = "ready" if status.ready else f"not ready: {status.not_ready}"
    title = f"{status.rig} · {status.state} · {ready}"
    head = Text(f"series {status.series} · {status.camera} · {status.policy}")
    style = "dim" if stale else ("green" if status.ready else "yellow")
    return Panel(Group(head, _nodes(status), _accounts(status), _latencies(status)), title=title, border_style=style)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        # In a narrow terminal, drop the device name, not the figures.
        least = None if column == "device" else max(len(column), _LEAST.get(column, 0))
        is_text = column in {"node", "state", "device"}
        table.add_column(column, justify="left" if is_text else "right", no_wrap=True, min_width=least)
    return table


def _nodes(status: RigStatus) -> Table:
    table = _table("node", "state", "device", "held", "done", "warm", "iter", "unsafe", "clock ms")
    for node in sorted(status.nodes, key=lambda node: node.name):
        lost = node.state != "up"
        clock = node.clock_offset_ms
        row = [
            node.name,
            (node.phase or node.state) if not lost else "LOST",
            node.device,
            node.held if node.in_hand is None else node.in_hand,
            node.acquired if node.reconstructed is None else node.reconstructed,
            node.warm,
            node.iterations,
            node.unsafe,
            "" if clock is None else f"{clock:+.1f} ± {node.clock_uncertainty_ms:.1f}",
        ]
        table.add_row(*map(str, row), style="bold red" if lost else "")
    return table


def _accounts(status: RigStatus) -> Table:
    ledger, rates, recording = status.ledger, status.rates, status.recording
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    if ledger is not None:
        dropped = ", ".join(f"{count} {reason}" for reason, count in ledger.dropped.items()) or "0"
        account = (
            f"{ledger.acquired} acquired = {ledger.reconstructed} reconstructed + {ledger.raw_only} raw only "
            f"+ {dropped} dropped + {ledger.in_flight} in flight"
        )
        table.add_row("ledger", Text(account, style="red" if ledger.dropped else ""))
    if rates is not None:
        words = f"{rates.acquired_per_s:.2f} snapshots/s in, {rates.reconstructed_per_s:.2f} out"
        table.add_row("rate", f"{words} = {rates.video_fps:.1f} video frames/s")
    if recording is not None and recording.enabled:
        words = f"{recording.state}, {recording.bytes / 1e6:.1f} MB, {recording.mb_per_s:.1f} MB/s"
        free = "" if recording.free_bytes is None else f", {recording.free_bytes / 1e9:.1f} GB free"
        table.add_row("recording", words + free)
    if status.psnr_db is not None:
        table.add_row("PSNR", f"{status.psnr_db:.2f} dB")
    return table


def _latencies(status: RigStatus) -> Table:
    stages = status.latency_ms or {}
    table = _table("ms", *stages)
    for percentile in ("p50", "p99"):
        if stages:
            table.add_row(percentile, *(f"{stages[stage][percentile]:.1f}" for stage in stages))
    return table
