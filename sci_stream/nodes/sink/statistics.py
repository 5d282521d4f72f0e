"""Statistics of one series at the sink: ledger, latencies, quality and calibration health."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np

from sci_stream.calibration.diagnosis import findings
from sci_stream.delivery.ledger import Ledger
from sci_stream.delivery.throughput import ThroughputMeter
from sci_stream.model import Json, JsonObject, Reconstruction, SeriesInfo, StageTimes
from sci_stream.optics.mask_errors import NO_CORRECTION, MaskCorrection
from sci_stream.parameters import SettingChange
from sci_stream.quantities import InRun, Value, quantities_of
from sci_stream.reports import CalibrationHealth, SolveReport, Start

# Percentiles of a run of days would hide the present, and grow without bound.
_RECENT = 4096
# An operator judges by now: the headline latency of the page is that of the last seconds, or of the
# newest snapshot where one takes longer.
_HEADLINE_S = 10.0
# Number of snapshots whose PSNR the summary lists; mean and minimum cover all.
_LISTED = 1000

STAGES = ("queue", "transfer", "wait", "solve", "deliver", "record", "total")


class _Running:
    """Running mean, extremes and count."""

    def __init__(self) -> None:
        self.n = 0
        self._sum = 0.0
        self._min = float("inf")
        self._max = float("-inf")

    def add(self, value: float) -> None:
        self.n += 1
        self._sum += value
        self._min = min(self._min, value)
        self._max = max(self._max, value)

    def figures(self, declared: InRun) -> dict[str, float | None]:
        """Return the declared ones of ``mean``, ``min`` and ``max``, rounded;
        None without values.
        """
        values = {"mean": self._sum / max(self.n, 1), "min": self._min, "max": self._max}
        return {
            name: round(values[name], declared.digits) if self.n else None
            for name in declared.figures
        }


def _percentiles(values: deque[float]) -> dict[str, float]:
    p50, p99 = np.percentile(np.asarray(values), [50, 99])
    return {"p50": round(float(p50), 3), "p99": round(float(p99), 3)}


def stage_seconds(
    times: StageTimes, acquire_ns: int | None = 0, node_ns: int | None = 0
) -> dict[str, float]:
    """Return the time of an accepted snapshot in each stage, and from camera to sink, s.

    ``acquire_ns`` and ``node_ns`` are the sink's clock minus those of the acquire and reconstruct
    hosts, ns; None if unknown: stages that start and end on different clocks are then left out.
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
    for stage, earlier, later in (
        *zip(STAGES, stamps, stamps[1:], strict=False),
        ("total", stamps[0], stamps[-1]),
    ):
        begun_ns, clock, ahead_ns = earlier
        ended_ns, other_clock, other_ahead_ns = later
        if clock == other_clock:
            stages[stage] = (ended_ns - begun_ns) / 1e9
        # A difference between clocks of unknown offset is not a duration: better none than a wrong
        # one.
        elif ahead_ns is not None and other_ahead_ns is not None:
            stages[stage] = (ended_ns + other_ahead_ns - begun_ns - ahead_ns) / 1e9
    return stages


class SeriesStatistics:
    """Ledger and statistics of one series.

    Percentiles are over the most recent snapshots, means over all.
    """

    def __init__(self, info: SeriesInfo, ledger: Ledger) -> None:
        self.info = info
        self.ledger = ledger
        self.rate = ThroughputMeter()
        self.acquired_rate = ThroughputMeter()
        self.end_reason = ""
        self._latency_ms: dict[str, deque[float]] = {
            stage: deque(maxlen=_RECENT) for stage in STAGES
        }
        self._total_ms = deque[tuple[float, float]](maxlen=_RECENT)
        self._summarised = {
            quantity: _Running() for quantity in quantities_of(SolveReport) if quantity.in_run
        }
        self._psnr_listed: list[tuple[int, float]] = []
        self._starts = Counter[str]()
        self._budget_limited = 0
        self._taken = 0
        self._devices = set[str]()
        self._by_node = Counter[str]()
        self.last: Reconstruction | None = None
        self.health = CalibrationStatistics()
        self.frame_faults: dict[str, int] = {}
        """Numbers of frames with a fault, by its name."""
        self.changes: list[SettingChange] = []
        """Operator changes; earlier ones that are still in force come first."""

    def add(
        self, reconstruction: Reconstruction, stages: Mapping[str, float], now_s: float
    ) -> None:
        """Add an accepted reconstruction and its `stage_seconds`."""
        self.last = reconstruction
        self._taken += 1
        self.rate.update(now_s, self._taken)
        self._devices.add(reconstruction.device)
        self.add_figures(
            reconstruction.id.seq,
            reconstruction.report,
            reconstruction.node,
            redelivered=reconstruction.redelivered,
        )
        for stage, seconds in stages.items():
            self.add_latency(stage, seconds)
        if "total" in stages:
            self._total_ms.append((now_s, stages["total"] * 1e3))

    def add_figures(self, seq: int, report: SolveReport, node: str, *, redelivered: int) -> None:
        """Add the solve report of a snapshot; also for one recorded before a restart of
        the sink.
        """
        self.ledger.redelivered += redelivered > 0
        for quantity, running in self._summarised.items():
            value = quantity.value_in(report)
            if isinstance(value, int | float):
                running.add(value)
        self._starts[f"{report.start.value}: {report.start_reason}"] += 1
        self._starts[report.start.value] += 1
        self._budget_limited += report.budget_limited
        self._by_node[node] += 1
        if report.health is not None:
            self.health.add(report.health, report.masks_at)
        if report.psnr_db is not None and len(self._psnr_listed) < _LISTED:
            self._psnr_listed.append((seq, round(report.psnr_db, 3)))

    def add_latency(self, stage: str, seconds: float) -> None:
        """Add the time that a snapshot spent in a stage."""
        self._latency_ms[stage].append(seconds * 1e3)

    def latency_ms(self) -> dict[str, dict[str, float]]:
        """Return p50 and p99 by stage, in ms, over the most recent snapshots."""
        return {stage: _percentiles(values) for stage, values in self._latency_ms.items() if values}

    def recent_latency_ms(self, now_s: float) -> float | None:
        """Return the median time from camera to sink over the last ten seconds, in ms.

        If nothing came in that time, return the time of the newest snapshot; None before the first.
        """
        if not self._total_ms:
            return None
        recent = [value for at_s, value in self._total_ms if at_s >= now_s - _HEADLINE_S]
        return round(float(np.median(recent or self._total_ms[-1][1])), 3)

    def summary(
        self, versions: Mapping[str, str], wire_errors: Counter[str], recording: JsonObject
    ) -> JsonObject:
        """Return the summary of the whole series, as written by ``--summary``
        (docs/architecture.md).
        """
        figures: dict[str, dict[str, float | None]] = {
            quantity.key: running.figures(quantity.in_run)
            for quantity, running in self._summarised.items()
            if quantity.in_run is not None
        }
        listed = [{"seq": seq, "psnr_db": psnr_db} for seq, psnr_db in sorted(self._psnr_listed)]
        psnr_db = figures.pop("psnr_db")
        iterations = figures.pop("iterations")
        return {
            "series": self.info.series,
            "rig": self.info.rig,
            "policy": self.info.policy.value,
            "camera": {"model": self.info.camera_model, "serial": self.info.camera_serial},
            "shape": [self.info.n_frames, self.info.height_px, self.info.width_px],
            "ended": self.end_reason,
            "ledger": cast(Json, self.ledger.counts()),
            "frame_faults": dict(self.frame_faults),
            "latency_ms": self.latency_ms(),
            "psnr_db": {**psnr_db, "per_snapshot": listed} if listed else None,
            "iterations": {**iterations, "budget_limited": self._budget_limited},
            **figures,
            "warm_starts": self._starts[Start.WARM.value],
            "starts": {name: count for name, count in sorted(self._starts.items()) if ": " in name},
            "calibration": self.health.to_json(),
            "by_node": dict(sorted(self._by_node.items())),
            "device": ", ".join(sorted(self._devices)),
            "wire_errors": dict(wire_errors),
            "recording": recording,
            "changes": [change.to_json() for change in self.changes],
            "versions": versions,
        }


@dataclass
class CalibrationStatistics:
    """Calibration health during a series: the last evaluation of ``looks``, and the worst values.

    ``correction`` is that of the last evaluated snapshot. None: not measured.
    """

    looks: int = 0
    last: CalibrationHealth | None = None
    before_last: CalibrationHealth | None = None
    correction: MaskCorrection = NO_CORRECTION
    largest_shift_px: float | None = None
    least_match: float | None = None
    first_brightness: float | None = None
    corrected_looks: int = 0

    def add(self, health: CalibrationHealth, masks_at: str = "") -> None:
        """Add an evaluation, and the correction that its snapshot was reconstructed with."""
        self.before_last = self.last
        self.last = health
        self.correction = MaskCorrection.from_text(masks_at)
        self.looks += 1
        self.corrected_looks += health.corrected
        if health.shift_px is not None:
            self.largest_shift_px = max(health.shift_px, self.largest_shift_px or 0.0)
        if self.first_brightness is None:
            self.first_brightness = health.brightness
        if health.match is not None:
            self.least_match = min(
                health.match, 1.0 if self.least_match is None else self.least_match
            )

    def alerts(self, warn_shift_px: float) -> list[str]:
        """Return the problems found by the last two evaluations, one sentence each; at once that
        masks do not match.
        """
        if self.last is None:
            return []
        before: dict[str, str] = {}
        if self.before_last is not None:
            before = findings(self.before_last, warn_shift_px)
        found = findings(self.last, warn_shift_px)
        return [text for name, text in found.items() if name in before or self.last.match == 0]

    def to_json(self) -> JsonObject | None:
        """Return the last and the worst values, None before the first evaluation.

        ``jitter_px`` and ``gain_error`` are corrected errors of single masks, root mean square;
        ``brightness_drift`` is relative to the first evaluation: 1 if light and scene are
        unchanged. ``frame_times``, of corrected gains, are begin and duration of each frame as
        shares of the exposure; ``correction`` states the correction in words.
        """
        last = self.last
        if last is None:
            return None
        begun = self.first_brightness
        over_series: dict[str, dict[str, Value]] = {
            "shift_sd_px": {
                "largest_shift_px": self.largest_shift_px,
                "jitter_px": self.correction.jitter_px,
                "gain_error": self.correction.gain_error,
            },
            "match": {"least_match": self.least_match},
            "brightness": {
                "brightness_drift": last.brightness / begun
                if last.brightness is not None and begun
                else None
            },
            "corrected": {"corrected_looks": self.corrected_looks},
        }
        values: dict[str, Value] = {}
        for quantity in quantities_of(CalibrationHealth):
            values |= {quantity.key: quantity.value_in(last), **over_series.get(quantity.name, {})}
        shift = (
            None
            if last.shift_x_px is None or last.shift_y_px is None
            else (last.shift_x_px, last.shift_y_px)
        )
        rounded = {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in values.items()
        }
        times = (
            self.correction.frame_times(len(self.correction.masks))
            if self.correction.gain_error
            else None
        )
        words = self.correction.words
        return {
            "looks": self.looks,
            "shift_px": shift,
            **rounded,
            "frame_times": times,
            "correction": words,
        }
