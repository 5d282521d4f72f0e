"""Summary of a recording, for ``sci-stream inspect`` and its ``--json``."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sci_stream.calibration.diagnosis import WITHHELD
from sci_stream.delivery.ledger import LedgerCounts
from sci_stream.model import Array, Json, SeriesInfo
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
from sci_stream.recording.reader import Recording, Settings
from sci_stream.recording.series import RecordedSeries

# A run that lost every other snapshot would otherwise print one gap for each.
_MAX_GAPS = 1000

# Of the description of a series, in the order of the summary.
_SERIES = (
    *("name", "rig", "policy", "camera", "started_ns", "height_px", "width_px", "n_frames", "pixel_format"),
    *("bit_depth", "bayer", "versions"),
)

Runs = list[tuple[int, int]]
"""First and last sequence number of each run."""

Rows = Mapping[str, Array]
"""Columns of a recording, by name."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Minimum, median, mean and maximum of the finite values of a column."""

    min: float
    median: float
    mean: float
    max: float

    @classmethod
    def of(cls, values: Array) -> Spread | None:
        """Return the spread of the finite values; None if there are none."""
        finite = values[np.isfinite(values)]
        if not len(finite):
            return None
        # Not in the column's own type: a float32 sum over a day of snapshots loses digits.
        mean = float(finite.mean(dtype=np.float64))
        return cls(float(finite.min()), float(np.median(finite)), mean, float(finite.max()))


Summary = Spread | int | dict[str, int] | None
"""Summary of a quantity over a series, of the kinds of `OverSeries`; None if it was never measured."""


def _summaries(quantities: Recorded, rows: Rows) -> dict[str, Summary]:
    return {
        quantity.inspected.name or column.name: _summary(quantity.inspected.over_series, quantity.divisor, column, rows)
        for quantity, column in quantities
        if quantity.inspected is not None
    }


def _summary(over_series: OverSeries, divisor: float, column: Column, rows: Rows) -> Summary:
    values = rows[column.name]
    match over_series:
        case OverSeries.SPREAD:
            return Spread.of(values / divisor)
        case OverSeries.COUNT:
            return int(values.sum())
        case OverSeries.TALLY:
            words = [column.word_of(cell) if column.words else cell_text(cell) for cell in values.tolist()]
            if column.name == "start":
                reasons = map(cell_text, rows["start_reason"].tolist())
                words = [f"{word}: {reason}" for word, reason in zip(words, reasons, strict=True)]
            return dict(Counter(words).most_common())


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """One file of a recording; ``state`` is ``last``, ``continued`` or ``unfinished``."""

    file: str
    state: str
    first_seq: int
    raw: int
    video: int
    bytes: int


@dataclass(frozen=True, slots=True)
class StoredData:
    """Numbers of stored snapshots, and their size as arrays (``bytes``) and on disk."""

    raw: int
    raw_dtype: str
    video: int
    video_frames: int
    bytes: int
    disk_bytes: int


@dataclass(frozen=True, slots=True)
class OutcomeCounts:
    """Outcomes counted from the rows; ``open`` rows have none."""

    settled: int
    reconstructed: int
    raw_only: int
    dropped: dict[str, int]
    open: int
    redelivered: int
    camera_missed: int
    epochs: int


@dataclass(frozen=True, slots=True)
class SnapshotRates:
    """Rates by host time; None with fewer than two snapshots."""

    duration_s: float
    snapshots_hz: float | None
    video_hz: float | None
    interval_ms: Spread | None


@dataclass(frozen=True, slots=True)
class SolvingSummary:
    """Reconstruction of the series.

    ``quantities`` are those of `SolveReport`; ``solvers`` describes each solver by its id, as reconstruct nodes
    reported it.
    """

    quantities: dict[str, Summary]
    nodes: dict[str, int]
    solvers: dict[str, Settings]


@dataclass(frozen=True, slots=True)
class MaskSummary:
    """Measurements of the calibration during the series; shifts are (x, y), to the right and downwards.

    ``quantities`` are those of `CalibrationHealth` that are summarised alike.
    """

    looks: int
    first_shift_px: tuple[float, float] | None
    last_shift_px: tuple[float, float] | None
    largest_shift_px: float | None
    corrected: int
    last_shift_sd_px: float | None
    last_jitter_px: float
    last_gain_error: float
    last_error_log_odds: float | None
    withheld: int
    orders: dict[str, int]
    quantities: dict[str, Summary]


@dataclass(frozen=True, slots=True)
class ChunkSummary:
    """Values of one chunk of the camera and the number of frames that had it."""

    frames: int
    unit: str
    values: Spread | None


@dataclass(frozen=True, slots=True)
class CalibrationSummary:
    """Origin of a calibration and the quality of its masks."""

    hash: str
    n_frames: int
    height_px: int
    width_px: int
    bayer: str | None
    mean_transmission: float
    grey: bool
    unmeasured_px: int
    bad_px: int
    dark_dn: float
    full_scale_dn: float
    saturation_dn: float | None
    read_noise_dn: float | None
    gain_e_per_dn: float | None
    created: str
    source: str


@dataclass(frozen=True, slots=True)
class RecordingSummary:
    """A recording, finished or not.

    ``ledger`` is the last one stored, as JSON in the file; ``rows`` has the outcomes counted from the rows; ``gaps``
    are runs of known snapshots whose ``raw`` counts or ``video`` are missing; ``health`` is None if the masks were not
    measured; ``parent`` describes the recording that a replay was made from.
    """

    file: str
    state: str
    series: SeriesInfo
    segments: tuple[SegmentSummary, ...]
    stored: StoredData
    ledger: LedgerCounts | None
    rows: OutcomeCounts
    gaps: dict[str, Runs]
    rates: SnapshotRates
    solving: SolvingSummary
    calibration: CalibrationSummary
    health: MaskSummary | None
    chunks: dict[str, ChunkSummary]
    parent: dict[str, Json] | None

    def to_json(self) -> dict[str, Json]:
        """Return the summary as plain values; quantities are not nested."""
        values = dataclasses.asdict(self)
        series = {**values["series"], "name": self.series.series, "camera": self.camera}
        values["series"] = {name: series[name] for name in _SERIES}
        values["solving"] = values["solving"].pop("quantities") | values["solving"]
        if values["health"] is not None:
            values["health"].update(values["health"].pop("quantities"))
        return values

    @property
    def camera(self) -> str:
        """Model and serial number of the camera."""
        return f"{self.series.camera_model} {self.series.camera_serial}".strip()


def inspect_recording(path: Path) -> RecordingSummary:
    """Summarise a recording, finished or not, without reading its frames.

    Raises
    ------
    FileFormatError
        If the file is not a recording.
    """
    with RecordedSeries(path) as series:
        rows = series.rows
        return RecordingSummary(
            file=str(path),
            state="complete" if series.finished else "unfinished",
            series=series.info,
            segments=tuple(_segment(segment) for segment in series.segments),
            stored=_stored(series),
            ledger=series.ledger,
            rows=_outcomes(rows),
            gaps=_gaps(series),
            rates=_rates(rows, series.info.n_frames),
            solving=_solving(rows, series.solvers),
            calibration=describe_calibration(series.calibration),
            health=_health(rows),
            chunks=_chunks(rows, series.info.chunks),
            parent=series.parent,
        )


def _segment(segment: Recording) -> SegmentSummary:
    state = "last" if segment.clean else ("continued" if segment.continued else "unfinished")
    return SegmentSummary(
        file=segment.path.name,
        state=state,
        first_seq=segment.first_seq,
        raw=len(segment.raw_seqs),
        video=len(segment.video_seqs),
        bytes=segment.disk_bytes,
    )


def _stored(series: RecordedSeries) -> StoredData:
    raw, video = series.raw, series.video
    disk = sum(segment.disk_bytes for segment in series.segments)
    return StoredData(
        raw=len(raw),
        raw_dtype=str(raw.dtype),
        video=len(video),
        video_frames=len(video) * series.info.n_frames,
        bytes=raw.nbytes + video.nbytes,
        disk_bytes=disk,
    )


def _outcomes(rows: Rows) -> OutcomeCounts:
    settled = rows["outcome"] != 0
    counts = Counter(OUTCOME_NAMES.get(int(code), "unknown") for code in rows["outcome"][settled])
    dropped = Counter(map(cell_text, rows["reason"][rows["outcome"] == 3].tolist()))
    return OutcomeCounts(
        settled=int(settled.sum()),
        reconstructed=counts["reconstructed"],
        raw_only=counts["raw_only"],
        dropped=dict(sorted(dropped.items())),
        open=int(((rows["epoch"] >= 0) & ~settled).sum()),
        redelivered=int((rows["redelivered"] > 0).sum()),
        camera_missed=int(rows["dropped_before"].sum()),
        epochs=len(set(rows["epoch"][rows["epoch"] >= 0].tolist())),
    )


def _gaps(series: RecordedSeries) -> dict[str, Runs]:
    known = np.flatnonzero((series.rows["epoch"] >= 0) | (series.rows["outcome"] != 0))
    if not len(known):
        return {"raw": [], "video": []}
    span = (int(known[0]) + series.first_seq, int(known[-1]) + 1 + series.first_seq)
    return {
        "raw": _missing_runs(series.seqs_with(raw=True), *span),
        "video": _missing_runs(series.seqs_with(video=True), *span),
    }


def _missing_runs(seqs: npt.NDArray[np.int64], start: int, stop: int) -> Runs:
    """Return first and last of each run of numbers in [start, stop) that ``seqs`` lacks; at most 1000 runs."""
    edges = np.concatenate(([start - 1], seqs, [stop]))
    after = np.flatnonzero(np.diff(edges) > 1)[:_MAX_GAPS]
    return [(int(edges[i]) + 1, int(edges[i + 1]) - 1) for i in after]


def _rates(rows: Rows, n_frames: int) -> SnapshotRates:
    host_ns = np.sort(rows["host_time_ns"][rows["host_time_ns"] > 0])
    if len(host_ns) < 2:
        return SnapshotRates(0.0, None, None, None)
    steps_ms = np.diff(host_ns) / 1e6
    seconds = float(host_ns[-1] - host_ns[0]) / 1e9
    mean_hz = (len(host_ns) - 1) / seconds if seconds > 0 else None
    return SnapshotRates(
        duration_s=seconds,
        snapshots_hz=mean_hz,
        video_hz=None if mean_hz is None else mean_hz * n_frames,
        interval_ms=Spread.of(steps_ms),
    )


def _solving(rows: Rows, solvers: dict[str, Settings]) -> SolvingSummary:
    solved = {name: values[rows["outcome"] == 1] for name, values in rows.items()}
    nodes = Counter(map(cell_text, solved["node"].tolist()))
    return SolvingSummary(_summaries(SOLVE_QUANTITIES, solved), dict(nodes.most_common()), solvers)


def _health(rows: Rows) -> MaskSummary | None:
    """Summarise the calibration measurements of the series."""
    looked = np.isfinite(rows["below_black_fraction"])
    if not looked.any():
        return None
    quantities = _summaries(HEALTH_QUANTITIES, {name: values[looked] for name, values in rows.items()})
    orders = quantities.pop("orders")
    assert isinstance(orders, dict)
    shifts = np.stack([rows["mask_shift_x_px"], rows["mask_shift_y_px"]], axis=1)[looked]
    known = shifts[np.isfinite(shifts).all(axis=1)]
    corrections = rows["masks_at"][rows["masks_corrected"] > 0]
    last = MaskCorrection.from_text(corrections[-1].decode("ascii")) if len(corrections) else NO_CORRECTION
    return MaskSummary(
        looks=int(looked.sum()),
        first_shift_px=_pair(known[0]) if len(known) else None,
        last_shift_px=_pair(known[-1]) if len(known) else None,
        largest_shift_px=float(np.hypot(*known.T).max()) if len(known) else None,
        corrected=int(rows["masks_corrected"].sum()),
        last_shift_sd_px=_last(rows["mask_shift_sd_px"]),
        last_jitter_px=last.jitter_px,
        last_gain_error=last.gain_error,
        last_error_log_odds=_last(rows["mask_error_log_odds"]),
        withheld=int((rows["start_reason"] == WITHHELD.encode()).sum()),
        orders=orders,
        quantities=quantities,
    )


def _last(values: npt.NDArray[np.float32]) -> float | None:
    """Return the last value that was measured."""
    known = values[np.isfinite(values)]
    return float(known[-1]) if len(known) else None


def _pair(shift: npt.NDArray[np.float32]) -> tuple[float, float]:
    return float(shift[0]), float(shift[1])


def _chunks(rows: Rows, units: dict[str, str]) -> dict[str, ChunkSummary]:
    """Summarise each chunk value: count, spread and unit."""
    columns = {name: rows[CHUNK_PREFIX + name] for name in units if CHUNK_PREFIX + name in rows}
    return {
        name: ChunkSummary(int(np.isfinite(values).sum()), units[name], Spread.of(values))
        for name, values in columns.items()
    }


def describe_calibration(calibration: Calibration) -> CalibrationSummary:
    """Describe a calibration: its origin and the quality of its masks."""
    phi = calibration.phi
    unseen = (phi.astype(np.float64) ** 2).sum(axis=0) == 0
    return CalibrationSummary(
        hash=calibration.hash,
        n_frames=calibration.n_frames,
        height_px=calibration.shape[0],
        width_px=calibration.shape[1],
        bayer=None if calibration.bayer is None else calibration.bayer.value,
        mean_transmission=float(phi.mean(dtype=np.float64)),
        grey=bool(((phi > 0) & (phi < 1)).any()),
        unmeasured_px=int(unseen.sum()),
        bad_px=0 if calibration.bad_pixels is None else int(calibration.bad_pixels.sum()),
        dark_dn=float(np.mean(calibration.dark, dtype=np.float64)),
        full_scale_dn=calibration.full_scale_dn,
        saturation_dn=calibration.saturation_dn,
        read_noise_dn=calibration.read_noise_dn,
        gain_e_per_dn=calibration.gain_e_per_dn,
        created=calibration.created,
        source=calibration.source,
    )
