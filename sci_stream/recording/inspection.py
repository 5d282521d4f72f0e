"""Summary of a recording, for ``sci-stream inspect`` and its ``--json``."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from sci_stream.calibration.diagnosis import WITHHELD
from sci_stream.delivery.ledger import LedgerCounts, not_recorded
from sci_stream.model import F32, Array, JsonObject, SeriesInfo
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.mask_errors import NO_CORRECTION, MaskCorrection
from sci_stream.quantities import Column, OverSeries
from sci_stream.recording.columns import (
    CHUNK_PREFIX,
    HEALTH_QUANTITIES,
    OUTCOME_NAMES,
    SOLVE_QUANTITIES,
    Recorded,
    cell_text,
)
from sci_stream.recording.reader import DAMAGE, Recording, Settings
from sci_stream.recording.series import RecordedSeries

# A run that lost every other snapshot would otherwise print one gap for each.
_MAX_GAPS = 1000

# Of the description of a series, in the order of the summary.
_SERIES = (
    "name",
    "rig",
    "policy",
    "camera",
    "started_ns",
    "height_px",
    "width_px",
    "n_frames",
    "pixel_format",
    "bit_depth",
    "bayer",
    "versions",
)

# Of a calibration, as they are.
_OF_CALIBRATION = (
    "full_scale_dn",
    "saturation_dn",
    "read_noise_dn",
    "gain_e_per_dn",
    "created",
    "source",
)

Runs = list[tuple[int, int]]
"""First and last sequence number of each run."""

Progress = Callable[[int, int], None]
"""Takes the number of parts done, and of all."""

Rows = Mapping[str, Array]
"""Columns of a recording, by name."""


Spread = dict[str, float]
"""Minimum, median, mean and maximum of the finite values of a column, as ``min``, ``median``,
``mean``, ``max``."""

Summary = Spread | int | dict[str, int] | None
"""Summary of a quantity over a series, of the kinds of `OverSeries`; None if it was never
measured."""


def _spread(values: Array) -> Spread | None:
    """Return the spread of the finite values; None if there are none."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return None
    # Not in the column's own type: a float32 sum over a day of snapshots loses digits.
    mean = float(finite.mean(dtype=np.float64))
    return {
        "min": float(finite.min()),
        "median": float(np.median(finite)),
        "mean": mean,
        "max": float(finite.max()),
    }


def _summaries(quantities: Recorded, rows: Rows) -> dict[str, Summary]:
    return {
        quantity.inspected.name or column.name: _summary(
            quantity.inspected.over_series, quantity.divisor, column, rows
        )
        for quantity, column in quantities
        if quantity.inspected is not None
    }


def _summary(over_series: OverSeries, divisor: float, column: Column, rows: Rows) -> Summary:
    values = rows[column.name]
    match over_series:
        case OverSeries.SPREAD:
            return _spread(values / divisor)
        case OverSeries.COUNT:
            return int(values.sum())
        case OverSeries.TALLY:
            words = [
                column.word_of(cell) if column.words else cell_text(cell)
                for cell in values.tolist()
            ]
            if column.name == "start":
                reasons = map(cell_text, rows["start_reason"].tolist())
                words = [f"{word}: {reason}" for word, reason in zip(words, reasons, strict=True)]
            return dict(Counter(words).most_common())


@dataclass(frozen=True)
class RecordingSummary:
    """A recording, finished or not.

    ``figures`` are plain values, as ``inspect --json`` prints them: ``state``, complete, unfinished
    or damaged; known ``damage``, in words, and whether all was ``verified``; ``segments``, each
    ``last``, ``continued``, ``unfinished`` or ``damaged``, with the bytes that are ``missing`` at
    its end; the number of snapshots ``lost``, which should have been recorded; numbers of
    ``stored`` snapshots, with the size of the arrays
    (``bytes``) and on disk; the last ``ledger`` in the file; outcomes counted from the ``rows``, of
    which ``open`` ones have none; ``events``, with the number of their raw ``snapshots``; ``gaps``,
    runs of known snapshots whose ``raw`` counts or ``video`` are missing; ``rates`` by host time,
    None with fewer than two snapshots; ``solving``, with the solvers by their ids as reconstruct
    nodes reported them; the ``calibration``, and its ``health``, None if the masks were not
    measured; ``chunks`` of the camera; ``parent``, the recording that a replay was made from.
    """

    series: SeriesInfo
    figures: dict[str, Any]

    def add_damage(self, problems: list[str]) -> None:
        """Add what reading everything has found."""
        self.figures["verified"] = True
        self.figures["damage"] = problems
        if problems:
            self.figures["state"] = "damaged"


def inspect_recording(path: Path) -> RecordingSummary:
    """Summarise a recording, finished or not, without reading its frames.

    Raises `FileFormatError` if the file is not a recording.
    """
    with RecordedSeries(path) as series:
        rows = series.rows
        info = series.info
        described = {**dataclasses.asdict(info), "name": info.series, "camera": info.camera}
        damage = [
            f"{segment.path.name}: {problem}"
            for segment in series.segments
            for problem in segment.damage
        ]
        counted = outcomes(rows)
        state = "complete" if series.finished else "unfinished"
        figures = {
            "file": str(path),
            "state": "damaged" if damage else state,
            "verified": False,
            "damage": damage,
            "lost": not_recorded((series.ledger or cast(LedgerCounts, counted)).get("dropped", {})),
            "series": {name: described[name] for name in _SERIES},
            "segments": [_segment(segment) for segment in series.segments],
            "stored": _stored(series),
            "ledger": series.ledger,
            "rows": counted,
            "events": [
                {**dataclasses.asdict(event), "snapshots": len(series.seqs_of_event(event.number))}
                for event in series.events
            ],
            "gaps": _gaps(series),
            "rates": _rates(rows, info.n_frames),
            "solving": _solving(rows, series.solvers),
            "calibration": _calibration(series.calibration),
            "health": _health(rows),
            "chunks": _chunks(rows, info.chunks),
            "parent": series.parent,
        }
        return RecordingSummary(info, figures)


def verify_segment(path: Path, progress: Progress) -> list[str]:
    """Read all of a file; return what of it is damaged or cannot be read, in words."""
    try:
        with Recording(path) as segment:
            problems = segment.verify(progress)
    except DAMAGE as error:
        problems = [str(error)]
    return [f"{path.name}: {problem}" for problem in problems]


def _segment(segment: Recording) -> JsonObject:
    return {
        "file": segment.path.name,
        "state": _state_of(segment),
        "missing": segment.missing_bytes,
        "first_seq": segment.first_seq,
        "raw": len(segment.raw_seqs),
        "video": len(segment.video_seqs),
        "bytes": segment.disk_bytes,
    }


def _state_of(segment: Recording) -> str:
    if segment.damage:
        return "damaged"
    if not segment.closed:
        return "unfinished"
    return "last" if segment.clean else "continued"


def _stored(series: RecordedSeries) -> JsonObject:
    raw = series.raw
    video = series.video
    return {
        "raw": len(raw),
        "raw_dtype": str(raw.dtype),
        "video": len(video),
        "video_frames": len(video) * series.info.n_frames,
        "bytes": raw.nbytes + video.nbytes,
        "disk_bytes": sum(segment.disk_bytes for segment in series.segments),
    }


def outcomes(rows: Rows) -> JsonObject:
    """Count the outcomes of the rows, and those that have none."""
    settled = rows["outcome"] != 0
    counts = Counter(OUTCOME_NAMES.get(int(code), "unknown") for code in rows["outcome"][settled])
    dropped = Counter(map(cell_text, rows["reason"][rows["outcome"] == 3].tolist()))
    return {
        "settled": int(settled.sum()),
        "reconstructed": counts["reconstructed"],
        "raw_only": counts["raw_only"],
        "not_kept": counts["not_kept"],
        "dropped": dict(sorted(dropped.items())),
        "open": int(((rows["epoch"] >= 0) & ~settled).sum()),
        "redelivered": int((rows["redelivered"] > 0).sum()),
        "camera_missed": int(rows["dropped_before"].sum()),
        "epochs": len(set(rows["epoch"][rows["epoch"] >= 0].tolist())),
    }


def _gaps(series: RecordedSeries) -> dict[str, Runs]:
    known = np.flatnonzero((series.rows["epoch"] >= 0) | (series.rows["outcome"] != 0))
    if not len(known):
        return {"raw": [], "video": []}
    span = (int(known[0]) + series.first_seq, int(known[-1]) + 1 + series.first_seq)
    return {name: _missing_runs(series.stack(name).seqs, *span) for name in ("raw", "video")}


def _missing_runs(seqs: npt.NDArray[np.int64], start: int, stop: int) -> Runs:
    """Return first and last of each run of numbers in [start, stop) that ``seqs`` lacks; at most
    1000 runs.
    """
    edges = np.concatenate(([start - 1], seqs, [stop]))
    after = np.flatnonzero(np.diff(edges) > 1)[:_MAX_GAPS]
    return [(int(edges[i]) + 1, int(edges[i + 1]) - 1) for i in after]


def _rates(rows: Rows, n_frames: int) -> dict[str, float | Spread | None]:
    host_ns = np.sort(rows["host_time_ns"][rows["host_time_ns"] > 0])
    seconds = float(host_ns[-1] - host_ns[0]) / 1e9 if len(host_ns) > 1 else 0.0
    mean_hz = (len(host_ns) - 1) / seconds if seconds > 0 else None
    return {
        "duration_s": seconds,
        "snapshots_hz": mean_hz,
        "video_hz": None if mean_hz is None else mean_hz * n_frames,
        "interval_ms": _spread(np.diff(host_ns) / 1e6),
    }


def _solving(rows: Rows, solvers: dict[str, Settings]) -> JsonObject:
    solved = {name: values[rows["outcome"] == 1] for name, values in rows.items()}
    nodes = Counter(map(cell_text, solved["node"].tolist()))
    return {
        **_summaries(SOLVE_QUANTITIES, solved),
        "nodes": dict(nodes.most_common()),
        "solvers": solvers,
    }


def _health(rows: Rows) -> JsonObject | None:
    """Summarise the calibration measurements of the series; shifts are (x, y), to the right and
    downwards.
    """
    looked = np.isfinite(rows["below_black_fraction"])
    if not looked.any():
        return None
    quantities = _summaries(
        HEALTH_QUANTITIES, {name: values[looked] for name, values in rows.items()}
    )
    shifts = np.stack([rows["mask_shift_x_px"], rows["mask_shift_y_px"]], axis=1)[looked]
    known = shifts[np.isfinite(shifts).all(axis=1)]
    corrections = rows["masks_at"][rows["masks_corrected"] > 0]
    last = (
        MaskCorrection.from_text(corrections[-1].decode("ascii"))
        if len(corrections)
        else NO_CORRECTION
    )
    return {
        "looks": int(looked.sum()),
        "first_shift_px": known[0].tolist() if len(known) else None,
        "last_shift_px": known[-1].tolist() if len(known) else None,
        "largest_shift_px": float(np.hypot(*known.T).max()) if len(known) else None,
        "corrected": int(rows["masks_corrected"].sum()),
        "last_shift_sd_px": _last(rows["mask_shift_sd_px"]),
        "last_correction": last.words,
        "last_jitter_px": last.jitter_px,
        "last_gain_error": last.gain_error,
        "last_frame_times": last.frame_times(len(last.masks)) if last.gain_error else None,
        "last_error_log_odds": _last(rows["mask_error_log_odds"]),
        "withheld": int((rows["start_reason"] == WITHHELD.encode()).sum()),
        "orders": quantities.pop("orders"),
        **quantities,
    }


def _last(values: F32) -> float | None:
    """Return the last value that was measured."""
    known = values[np.isfinite(values)]
    return float(known[-1]) if len(known) else None


def _chunks(rows: Rows, units: dict[str, str]) -> JsonObject:
    """Summarise each chunk value of the camera: number of frames that had it, unit and spread."""
    columns = {name: rows[CHUNK_PREFIX + name] for name in units if CHUNK_PREFIX + name in rows}
    return {
        name: {
            "frames": int(np.isfinite(values).sum()),
            "unit": units[name],
            "values": _spread(values),
        }
        for name, values in columns.items()
    }


def _calibration(calibration: Calibration) -> JsonObject:
    """Describe a calibration: its origin and the quality of its masks."""
    phi = calibration.phi
    unseen = (phi.astype(np.float64) ** 2).sum(axis=0) == 0
    return {
        "hash": calibration.hash,
        "n_frames": calibration.n_frames,
        "height_px": calibration.shape[0],
        "width_px": calibration.shape[1],
        "bayer": calibration.bayer,
        "mean_transmission": float(phi.mean(dtype=np.float64)),
        "grey": bool(((phi > 0) & (phi < 1)).any()),
        "unmeasured_px": int(unseen.sum()),
        "bad_px": int((~calibration.good).sum()),
        "dark_dn": float(np.mean(calibration.dark, dtype=np.float64)),
        **{name: getattr(calibration, name) for name in _OF_CALIBRATION},
    }
