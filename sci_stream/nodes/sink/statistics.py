"""Statistics of one series at the sink: ledger, latencies, quality and calibration health."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from sci_stream.calibration.diagnosis import findings
from sci_stream.delivery.ledger import Ledger
from sci_stream.delivery.throughput import ThroughputMeter
from sci_stream.model import CalibrationHealth, JsonObject, Reconstruction, SeriesInfo, SolveReport, StageTimes, Start
from sci_stream.optics.mask_errors import NO_CORRECTION, MaskCorrection
from sci_stream.parameters import SettingChange

# Percentiles of a run of days would hide what the rig does now, and grow without bound.
_RECENT = 4096
# An operator judges by now: the headline latency of the page is that of the last seconds only.
_HEADLINE_S = 10.0
# Number of snapshots whose PSNR the summary lists; mean and minimum cover all.
_LISTED = 1000

STAGES = ("queue", "transfer", "wait", "solve", "deliver", "record", "total")


class _Mean:
    """Running mean, extremes and count."""

    def __init__(self) -> None:
        self.n = 0
        self._sum = 0.0
        self.low = float("inf")
        self.high = float("-inf")

    def add(self, value: float) -> None:
        self.n += 1
        self._sum += value
        self.low = min(self.low, value)
        self.high = max(self.high, value)

    @property
    def mean(self) -> float | None:
        return self._sum / self.n if self.n else None


def _percentiles(values: deque[float]) -> dict[str, float]:
    p50, p99 = np.percentile(np.asarray(values), [50, 99])
    return {"p50": round(float(p50), 3), "p99": round(float(p99), 3)}


def stage_seconds(times: StageTimes, acquire_ns: int | None = 0, node_ns: int | None = 0) -> dict[str, float]:
    """Return the time of an accepted snapshot in each stage, and from camera to sink, s.

    Parameters
    ----------
    acquire_ns, node_ns
        The sink's clock minus those of the acquire and reconstruct hosts, ns; None if unknown: stages that start and
        end on different clocks are then left out.
    """
    stamps = (
        (times.acquired_ns, "acquire", acquire_ns),
        (times.dispatched_ns, "acquire", acquire_ns),
        (times.received_ns, "node", node_ns),
        (times.started_ns, "node", node_ns),
        (times.finished_ns, "node", node_ns),
        (times.accepted_ns, "sink", 0),
    )
    stages = {}
    for stage, earlier, later in (*zip(STAGES, stamps, stamps[1:], strict=False), ("total", stamps[0], stamps[-1])):
        (begun_ns, clock, ahead_ns), (ended_ns, other_clock, other_ahead_ns) = earlier, later
        if clock == other_clock:
            stages[stage] = (ended_ns - begun_ns) / 1e9
        # A difference between clocks of unknown offset is not a duration: better none than a wrong one.
        elif ahead_ns is not None and other_ahead_ns is not None:
            stages[stage] = (ended_ns + other_ahead_ns - begun_ns - ahead_ns) / 1e9
    return stages


class SeriesStatistics:
    """Ledger and statistics of one series. Percentiles are over the most recent snapshots, means over all."""

    def __init__(self, info: SeriesInfo, ledger: Ledger) -> None:
        self.info = info
        self.ledger = ledger
        self.rate = ThroughputMeter()
        self.acquired_rate = ThroughputMeter()
        self.end_reason = ""
        self._latency_ms: dict[str, deque[float]] = {stage: deque(maxlen=_RECENT) for stage in STAGES}
        self._total_ms: deque[tuple[float, float]] = deque(maxlen=_RECENT)
        self._psnr_db = _Mean()
        self._psnr_listed: list[tuple[int, float]] = []
        self._iterations = _Mean()
        self._starts: Counter[str] = Counter()
        self._budget_limited = 0
        self._taken = 0
        self._devices: set[str] = set()
        self._by_node: Counter[str] = Counter()
        self.last: Reconstruction | None = None
        self.health = CalibrationStatistics()
        self.changes: list[SettingChange] = []
        """Operator changes; earlier ones that are still in force come first."""

    def add(self, reconstruction: Reconstruction, stages: Mapping[str, float], now_s: float) -> None:
        """Add an accepted reconstruction and its `stage_seconds`."""
        self.last = reconstruction
        self._taken += 1
        self.rate.update(now_s, self._taken)
        self._devices.add(reconstruction.device)
        self.add_figures(
            reconstruction.id.seq, reconstruction.report, reconstruction.node, redelivered=reconstruction.redelivered
        )
        for stage, seconds in stages.items():
            self.add_latency(stage, seconds)
        if "total" in stages:
            self._total_ms.append((now_s, stages["total"] * 1e3))

    def add_figures(self, seq: int, report: SolveReport, node: str, *, redelivered: int) -> None:
        """Add the solve report of a snapshot; also for one recorded before a restart of the sink."""
        self.ledger.redelivered += redelivered > 0
        self._iterations.add(report.iterations)
        self._starts[f"{report.start.value}: {report.start_reason}"] += 1
        self._starts[report.start.value] += 1
        self._budget_limited += report.budget_limited
        self._by_node[node] += 1
        if report.health is not None:
            self.health.add(report.health, report.masks_at)
        if report.psnr_db is not None:
            self._psnr_db.add(report.psnr_db)
            if len(self._psnr_listed) < _LISTED:
                self._psnr_listed.append((seq, round(report.psnr_db, 3)))

    def add_latency(self, stage: str, seconds: float) -> None:
        """Add the time that a snapshot spent in a stage."""
        self._latency_ms[stage].append(seconds * 1e3)

    def latency_ms(self) -> dict[str, dict[str, float]]:
        """Return p50 and p99 by stage, in ms, over the most recent snapshots."""
        return {stage: _percentiles(values) for stage, values in self._latency_ms.items() if values}

    def recent_latency_ms(self, now_s: float) -> float | None:
        """Return the median time from camera to sink over the last ten seconds, in ms; None if nothing came."""
        recent = [value for at_s, value in self._total_ms if at_s >= now_s - _HEADLINE_S]
        return round(float(np.median(recent)), 3) if recent else None

    def summary(self, versions: Mapping[str, str], wire_errors: Counter[str], recording: JsonObject) -> JsonObject:
        """Return the summary of the whole series, as written by ``--summary`` (docs/architecture.md)."""
        health = self.health.figures()
        psnr: JsonObject | None = None
        if self._psnr_db.n:
            psnr = {
                "mean": round(self._psnr_db.mean or 0.0, 3),
                "min": round(self._psnr_db.low, 3),
                "per_snapshot": [{"seq": seq, "psnr_db": psnr_db} for seq, psnr_db in sorted(self._psnr_listed)],
            }
        return {
            "series": self.info.series,
            "rig": self.info.rig,
            "policy": self.info.policy.value,
            "camera": {"model": self.info.camera_model, "serial": self.info.camera_serial},
            "shape": [self.info.n_frames, self.info.height_px, self.info.width_px],
            "ended": self.end_reason,
            "ledger": self.ledger.counts().to_json(),
            "latency_ms": self.latency_ms(),
            "psnr_db": psnr,
            "iterations": {
                "mean": None if self._iterations.mean is None else round(self._iterations.mean, 2),
                "min": int(self._iterations.low) if self._iterations.n else None,
                "max": int(self._iterations.high) if self._iterations.n else None,
                "budget_limited": self._budget_limited,
            },
            "warm_starts": self._starts[Start.WARM.value],
            "starts": {name: count for name, count in sorted(self._starts.items()) if ": " in name},
            "calibration": None if health is None else health.to_json(),
            "by_node": dict(sorted(self._by_node.items())),
            "device": ", ".join(sorted(self._devices)),
            "wire_errors": dict(wire_errors),
            "recording": recording,
            "changes": [change.to_json() for change in self.changes],
            "versions": versions,
        }


@dataclass(frozen=True, slots=True)
class CalibrationFigures:
    """Calibration health of a series: the latest evaluation, and the worst of all ``looks``. None: not measured.

    ``jitter_px`` and ``gain_error`` are corrected errors of single masks, root mean square.
    """

    looks: int
    shift_px: tuple[float, float] | None
    shift_x_px: float | None
    shift_y_px: float | None
    shift_sd_px: float | None
    largest_shift_px: float | None
    jitter_px: float
    gain_error: float
    error_log_odds: float | None
    match: float | None
    least_match: float | None
    contrast: float | None
    below_black_fraction: float | None
    brightness: float | None
    brightness_drift: float | None
    camera_gain: float | None
    order: str | None
    first_mask: int | None
    corrected: bool
    corrected_looks: int

    def to_json(self) -> JsonObject:
        """Return the figures as JSON."""
        return asdict(self)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


class CalibrationStatistics:
    """Calibration health during a series: the latest and the worst values."""

    def __init__(self) -> None:
        self._last: CalibrationHealth | None = None
        self._correction = NO_CORRECTION
        self._largest_shift_px: float | None = None
        self._least_match: float | None = None
        self._first_brightness: float | None = None
        self._looks = 0
        self._corrected = 0

    def add(self, health: CalibrationHealth, masks_at: str = "") -> None:
        """Add an evaluation, and the correction that its snapshot was reconstructed with."""
        self._last = health
        self._correction = MaskCorrection.from_text(masks_at)
        self._looks += 1
        self._corrected += health.corrected
        if health.shift_px is not None:
            self._largest_shift_px = max(health.shift_px, self._largest_shift_px or 0.0)
        if self._first_brightness is None:
            self._first_brightness = health.brightness
        if health.match is not None:
            self._least_match = min(health.match, 1.0 if self._least_match is None else self._least_match)

    def alerts(self, warn_shift_px: float) -> list[str]:
        """Return the problems found by the last evaluation, one sentence each."""
        return list(findings(self._last, warn_shift_px).values()) if self._last is not None else []

    def figures(self) -> CalibrationFigures | None:
        """Return the figures, None before the first evaluation."""
        last = self._last
        if last is None:
            return None
        return CalibrationFigures(
            looks=self._looks,
            shift_px=None if last.shift_x_px is None or last.shift_y_px is None else (last.shift_x_px, last.shift_y_px),
            shift_x_px=_rounded(last.shift_x_px),
            shift_y_px=_rounded(last.shift_y_px),
            shift_sd_px=_rounded(last.shift_sd_px),
            largest_shift_px=_rounded(self._largest_shift_px),
            jitter_px=round(self._correction.jitter_px, 4),
            gain_error=round(self._correction.gain_error, 4),
            error_log_odds=_rounded(last.error_log_odds),
            match=_rounded(last.match),
            least_match=_rounded(self._least_match),
            contrast=_rounded(last.contrast),
            below_black_fraction=_rounded(last.below_black_fraction),
            brightness=_rounded(last.brightness),
            brightness_drift=_rounded(self._brightness_drift),
            camera_gain=_rounded(last.gain),
            order=last.order,
            first_mask=last.first_mask,
            corrected=last.corrected,
            corrected_looks=self._corrected,
        )

    @property
    def _brightness_drift(self) -> float | None:
        """Brightness of the last evaluation relative to the first; 1 if light and scene are unchanged."""
        last = self._last.brightness if self._last is not None else None
        return last / self._first_brightness if last is not None and self._first_brightness else None
