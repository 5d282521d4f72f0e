"""Status of the rig: typed in the sink; as JSON for the live page and health server, flattened for
the status tap.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from sci_stream.delivery.ledger import DropReason, LedgerCounts
from sci_stream.delivery.trigger_ring import Event
from sci_stream.model import JsonObject
from sci_stream.nodes.sink.recorder import RecordingStatus
from sci_stream.nodes.sink.statistics import CalibrationStatistics, SeriesStatistics
from sci_stream.nodes.sink.triggered import mean_brightness
from sci_stream.parameters import SOLVER_KEY, SettingChange, is_declaration
from sci_stream.parameters import Value as ParameterValue
from sci_stream.quantities import gauges, live_values, quantities_of
from sci_stream.reports import SolveReport
from sci_stream.transport.results_server import ReportingPeer

StatusValue = int | float | str
if TYPE_CHECKING:
    from sci_stream.health.metrics import Value

_SOLVER_ID = re.compile(r"[0-9a-f]{1,32}")


@dataclass(frozen=True)
class SeriesStatus:
    """Status of a series.

    ``rates`` are those of the last seconds: ``acquired_per_s`` from the camera and
    ``reconstructed_per_s``, in snapshots, and ``video_fps``; ``latency_ms`` holds p50 and p99 by
    stage, ``latency_recent_ms`` the median from camera to sink over the last ten seconds, or that
    of the newest snapshot; None before the first; ``report`` and ``brightness`` (mean of the
    counts, fraction of full scale) are those of the last snapshot; ``open_share`` is the mean
    transmission of the masks; ``chunks`` are numbers that the camera and the analyses add to the
    last snapshot, with their ``units``; ``events`` are the last ones, None unless the recording is
    triggered; ``frame_faults`` are numbers of frames by the name of their fault.
    """

    series: str
    rig: str
    policy: str
    camera: str
    n_frames: int
    bit_depth: int | None
    ledger: LedgerCounts
    rates: Mapping[str, float]
    latency_ms: Mapping[str, Mapping[str, float]]
    latency_recent_ms: float | None
    report: SolveReport | None
    calibration: CalibrationStatistics
    calibration_alerts: list[str]
    brightness: float | None
    recording: RecordingStatus
    open_share: float = 0.0
    chunks: Mapping[str, ParameterValue] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    events: Sequence[Event] | None = None
    frame_faults: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        statistics: SeriesStatistics,
        now_s: float,
        *,
        recording: RecordingStatus,
        open_share: float,
        warn_shift_px: float,
        events: Sequence[Event] | None,
    ) -> SeriesStatus:
        """Return the status of a series with these statistics."""
        info = statistics.info
        last = statistics.last
        rate = statistics.rate.per_s(now_s)
        return cls(
            series=info.series,
            rig=info.rig,
            policy=info.policy.value,
            camera=info.camera,
            n_frames=info.n_frames,
            bit_depth=info.bit_depth,
            ledger=statistics.ledger.counts(),
            frame_faults=dict(statistics.frame_faults),
            rates={
                "acquired_per_s": round(statistics.acquired_rate.per_s(now_s), 3),
                "reconstructed_per_s": round(rate, 3),
                "video_fps": round(rate * info.n_frames, 2),
            },
            latency_ms=statistics.latency_ms(),
            latency_recent_ms=statistics.recent_latency_ms(now_s),
            report=last.report if last else None,
            chunks=dict(last.chunks) if last else {},
            units=info.chunks,
            calibration=statistics.health,
            calibration_alerts=statistics.health.alerts(warn_shift_px),
            brightness=None
            if last is None or last.counts is None
            else mean_brightness(last.counts, info.bit_depth),
            recording=recording,
            open_share=open_share,
            events=events,
        )

    def to_json(self) -> JsonObject:
        """Return the status as JSON; the quantities of the last report are not nested."""
        values = dict(vars(self))
        del values["report"], values["open_share"]
        unknown = {quantity.key: None for quantity in quantities_of(SolveReport) if quantity.live}
        report = unknown if self.report is None else live_values(self.report)
        return {
            **values,
            **report,
            "calibration": self.calibration.to_json(),
            "recording": self.recording.to_json(),
            "events": None if self.events is None else [asdict(event) for event in self.events],
        }

    def heartbeat_figures(self) -> dict[str, StatusValue]:
        """Return the figures that fit a heartbeat: ``ledger.acquired``, ``rate.video_fps``,
        ``latency_ms.p50``, ….
        """
        figures: dict[str, StatusValue] = {
            "series": self.series,
            "rig": self.rig,
            "policy": self.policy,
        }
        figures |= {
            f"ledger.{name}": int(value)
            for name, value in self.ledger.items()
            if isinstance(value, int)
        }
        figures["ledger.dropped"] = sum(self.ledger["dropped"].values())
        figures |= {f"rate.{name}": float(value) for name, value in self.rates.items()}
        figures |= {
            f"latency_ms.{name}": float(value)
            for name, value in self.latency_ms.get("total", {}).items()
        }
        calibration = self.calibration.to_json() or {}
        figures |= {
            f"calibration.{n}": value
            for n, value in calibration.items()
            if isinstance(value, int | float | str)
        }
        report = {} if self.report is None else live_values(self.report)
        figures |= {
            name: float(v)
            for name, v in report.items()
            if isinstance(v, int | float) and not isinstance(v, bool)
        }
        return figures


@dataclass(frozen=True)
class SinkStatus:
    """Status of the whole rig as the sink knows it.

    ``state`` is ``waiting`` before the first series, ``running``, or ``ended``; ``series`` is the
    running or the last one; ``controls`` lists what can be set, by node; ``changes`` the last ones
    that operators made.
    """

    state: str
    rig: str
    nodes: Sequence[Mapping[str, StatusValue]]
    series: SeriesStatus | None = None
    controls: Sequence[JsonObject] = ()
    changes: Sequence[SettingChange] = ()
    alarms: Sequence[JsonObject] = ()
    wire_errors: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> JsonObject:
        """Return the status as JSON; the series' status is not nested."""
        return {
            "state": self.state,
            "rig": self.rig,
            "nodes": self.nodes,
            "controls": self.controls,
            "changes": [
                {"time_ns": one.time_ns, "text": str(one), "who": one.who} for one in self.changes
            ],
            "wire_errors": dict(self.wire_errors),
            "alarms": self.alarms,
            **({} if self.series is None else self.series.to_json()),
        }

    def heartbeat_figures(self) -> dict[str, StatusValue]:
        """Return the figures that fit a heartbeat."""
        series = {} if self.series is None else self.series.heartbeat_figures()
        return {"rig": self.rig, **series, "state": self.state}


def node_statuses(peers: Iterable[ReportingPeer]) -> list[dict[str, StatusValue]]:
    """Return the status of every connected or lost node: its last heartbeat's, without what can be
    set on it.
    """
    return [
        {
            **{key: value for key, value in peer.status.items() if not is_declaration(key)},
            "name": peer.hello.node,
            "kind": peer.hello.kind_of_node,
            "device": peer.hello.device,
            "state": "lost" if peer.lost else "up",
        }
        for peer in peers
    ]


def solvers(peers: Iterable[ReportingPeer]) -> dict[str, dict[str, StatusValue]]:
    """Return the solver settings reported by the reconstruct nodes, by id."""
    known = {}
    for peer in peers:
        settings = {
            name.removeprefix(SOLVER_KEY): value
            for name, value in peer.status.items()
            if name.startswith(SOLVER_KEY)
        }
        name = settings.pop("id", None)
        if isinstance(name, str) and _SOLVER_ID.fullmatch(name):
            known[name] = settings
    return known


def sink_metrics(status: SinkStatus) -> dict[str, Value]:
    """Return the sink's metrics; see `sci_stream.health.metrics`."""
    figures: dict[str, Value] = {
        "wire_errors": dict(status.wire_errors),
        "nodes": dict(Counter(f"{node['kind']} {node['state']}" for node in status.nodes)),
        "alarms": dict(
            Counter(str(alarm["level"]) for alarm in status.alarms if alarm["cleared_ns"] is None)
        ),
    }
    series = status.series
    if series is None:
        return figures
    ledger = series.ledger
    recording = series.recording
    figures |= {
        "snapshots": {
            "reconstructed": ledger["reconstructed"],
            "raw_only": ledger["raw_only"],
            "not_kept": ledger["not_kept"],
            # From 0: Prometheus does not see the increase of a count that appears with its first
            # loss.
            **{
                f"dropped: {why}": count
                for why, count in (dict.fromkeys(DropReason, 0) | ledger["dropped"]).items()
            },
        },
        "ledger_acquired": ledger["acquired"],
        "ledger_in_flight": ledger["in_flight"],
        "duplicates": ledger["duplicates"],
    }
    if recording.enabled:
        figures |= {
            "disk_free_bytes": recording.free_bytes or 0,
            "recorded_bytes": recording.bytes,
            "recorded_bytes_per_second": recording.mb_per_s * 1e6,
            "recorder_state": {recording.state: 1.0},
        }
    figures["chunk"] = {
        name: float(value) for name, value in series.chunks.items() if not isinstance(value, str)
    }
    for report in (series.calibration.last, series.report):
        if report is not None:
            figures |= gauges(report)
    return figures
