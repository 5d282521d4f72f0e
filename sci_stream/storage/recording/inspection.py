"""Summary of a recording as plain values, for ``sci-stream inspect`` and its ``--json``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sci_stream.model import Array, JsonObject
from sci_stream.optics.calibration import Calibration
from sci_stream.storage.recording.columns import CHUNK_PREFIX, ORDER_NAMES, OUTCOME_NAMES, START_NAMES
from sci_stream.storage.recording.reader import Recording
from sci_stream.storage.recording.series import RecordedSeries

# A run that lost every other snapshot would otherwise print one gap for each.
_MOST_GAPS = 1000


def inspect_recording(path: Path) -> JsonObject:
    """Summarise a recording, finished or not, without reading its frames.

    Returns
    -------
    ``series``, ``segments``, ``stored``, ``ledger`` (the last one stored), ``rows`` (outcomes counted from the rows),
    ``gaps``, ``rates``, ``solving``, ``calibration``, ``health`` (of the calibration during the series, None if not
    measured), ``chunks`` (chunk data of the camera), ``parent``. Times in s, rates in Hz, sizes in bytes.

    Raises
    ------
    FileFormatError
        If the file is not a recording.
    """
    with RecordedSeries(path) as series:
        rows = series.rows
        info = series.info
        return {
            "file": str(path),
            "state": "complete" if series.finished else "unfinished",
            "series": {
                "name": info.series,
                "rig": info.rig,
                "policy": info.policy.value,
                "camera": f"{info.camera_model} {info.camera_serial}".strip(),
                "started_ns": info.started_ns,
                "height_px": info.height_px,
                "width_px": info.width_px,
                "n_frames": info.n_frames,
                "pixel_format": info.pixel_format,
                "bit_depth": info.bit_depth,
                "bayer": None if info.bayer is None else info.bayer.value,
                "versions": info.versions,
            },
            "segments": [_segment(segment) for segment in series.segments],
            "stored": _stored(series),
            "ledger": series.ledger,
            "rows": _outcomes(rows),
            "gaps": _gaps(series),
            "rates": _rates(rows, info.n_frames),
            "solving": _solving(rows) | {"solvers": series.notes.get("solvers", {})},
            "calibration": describe_calibration(series.calibration),
            "health": _health(rows),
            "chunks": _chunks(rows, info.chunks),
            "parent": series.parent,
        }


def _segment(segment: Recording) -> dict[str, object]:
    state = "last" if segment.clean else ("continued" if segment.continued else "unfinished")
    return {
        "file": segment.path.name,
        "state": state,
        "first_seq": segment.first_seq,
        "raw": len(segment.raw_seqs),
        "video": len(segment.video_seqs),
        "bytes": segment.disk_bytes,
    }


def _stored(series: RecordedSeries) -> dict[str, object]:
    raw, video = series.raw, series.video
    disk = sum(segment.disk_bytes for segment in series.segments)
    return {
        "raw": len(raw),
        "raw_dtype": str(raw.dtype),
        "video": len(video),
        "video_frames": len(video) * series.info.n_frames,
        "bytes": raw.nbytes + video.nbytes,
        "disk_bytes": disk,
    }


def _outcomes(rows: Any) -> dict[str, object]:
    settled = rows["outcome"] != 0
    counts = Counter(OUTCOME_NAMES.get(int(code), "unknown") for code in rows["outcome"][settled])
    dropped = Counter(reason.decode("ascii") for reason in rows["reason"][rows["outcome"] == 3].tolist())
    return {
        "settled": int(settled.sum()),
        "reconstructed": counts["reconstructed"],
        "raw_only": counts["raw_only"],
        "dropped": dict(sorted(dropped.items())),
        "open": int(((rows["epoch"] >= 0) & ~settled).sum()),
        "redelivered": int((rows["redelivered"] > 0).sum()),
        "camera_missed": int(rows["dropped_before"].sum()),
        "epochs": len(set(rows["epoch"][rows["epoch"] >= 0].tolist())),
    }


def _gaps(series: RecordedSeries) -> dict[str, object]:
    """Return the runs of sequence numbers, between the first and last known, whose raw counts or video are missing."""
    known = np.flatnonzero((series.rows["epoch"] >= 0) | (series.rows["outcome"] != 0))
    if not len(known):
        return {"raw": [], "video": []}
    span = (int(known[0]) + series.first_seq, int(known[-1]) + 1 + series.first_seq)
    return {
        "raw": _missing_runs(series.seqs_with(raw=True), *span),
        "video": _missing_runs(series.seqs_with(video=True), *span),
    }


def _missing_runs(seqs: npt.NDArray[np.int64], start: int, stop: int) -> list[list[int]]:
    """Return [first, last] of each run of numbers in [start, stop) that ``seqs`` lacks; at most 1000 runs."""
    edges = np.concatenate(([start - 1], seqs, [stop]))
    after = np.flatnonzero(np.diff(edges) > 1)[:_MOST_GAPS]
    return [[int(edges[i]) + 1, int(edges[i + 1]) - 1] for i in after]


def _rates(rows: Any, n_frames: int) -> dict[str, object]:
    came = np.sort(rows["host_time_ns"][rows["host_time_ns"] > 0])
    if len(came) < 2:
        return {"duration_s": 0.0, "snapshots_hz": None, "video_hz": None, "interval_ms": None}
    steps_ms = np.diff(came) / 1e6
    seconds = float(came[-1] - came[0]) / 1e9
    mean_hz = (len(came) - 1) / seconds if seconds > 0 else None
    return {
        "duration_s": seconds,
        "snapshots_hz": mean_hz,
        "video_hz": None if mean_hz is None else mean_hz * n_frames,
        "interval_ms": _spread(steps_ms),
    }


def _solving(rows: Any) -> dict[str, object]:
    solved = rows["outcome"] == 1
    starts = Counter(
        f"{START_NAMES.get(int(start), 'unknown')}: {reason.decode('ascii')}"
        for start, reason in zip(rows["start"][solved].tolist(), rows["start_reason"][solved].tolist(), strict=True)
    )
    return {
        "iterations": _spread(rows["iterations"][solved]),
        "budget_limited": int(rows["budget_limited"][solved].sum()),
        "starts": dict(starts.most_common()),
        "solve_ms": _spread(rows["solve_ns"][solved] / 1e6),
        "residual": _spread(rows["residual"][solved]),
        "saturated_fraction": _spread(rows["saturated_fraction"][solved]),
        "psnr_db": _spread(rows["psnr_db"][solved]),
        "by_solver": dict(Counter(name.decode("ascii") for name in rows["solver"][solved].tolist()).most_common()),
        "nodes": dict(Counter(node.decode("ascii") for node in rows["node"][solved].tolist()).most_common()),
    }


def _health(rows: Any) -> dict[str, object] | None:
    """Summarise the calibration measurements of the series."""
    looked = np.isfinite(rows["below_black_fraction"])
    if not looked.any():
        return None
    names = ("mask_match", "mask_contrast", "below_black_fraction", "brightness", "camera_gain")
    shifts = np.stack([rows["mask_shift_x_px"], rows["mask_shift_y_px"]], axis=1)[looked]
    known = shifts[np.isfinite(shifts).all(axis=1)]
    orders = Counter(ORDER_NAMES.get(int(code), "unknown") for code in rows["mask_order"][looked])
    return {
        "looks": int(looked.sum()),
        "first_shift_px": known[0].tolist() if len(known) else None,
        "last_shift_px": known[-1].tolist() if len(known) else None,
        "largest_shift_px": float(np.hypot(*known.T).max()) if len(known) else None,
        "corrected": int(rows["masks_corrected"].sum()),
        "orders": dict(orders.most_common()),
        **{name: _spread(rows[name]) for name in names},
    }


def _chunks(rows: Any, units: dict[str, str]) -> dict[str, object]:
    """Summarise each chunk value: count, spread and unit."""
    columns = {name: rows[CHUNK_PREFIX + name] for name in units if CHUNK_PREFIX + name in rows}
    return {
        name: {"frames": int(np.isfinite(values).sum()), "unit": units[name], "values": _spread(values)}
        for name, values in columns.items()
    }


def _spread(values: Array) -> dict[str, float] | None:
    """Return minimum, median, mean and maximum of the finite values; None if there are none."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return None
    return {
        "min": float(finite.min()),
        "median": float(np.median(finite)),
        "mean": float(finite.mean(dtype=np.float64)),
        "max": float(finite.max()),
    }


def describe_calibration(calibration: Calibration) -> JsonObject:
    """Describe a calibration: its origin and the quality of its masks."""
    phi = calibration.phi
    unseen = (phi.astype(np.float64) ** 2).sum(axis=0) == 0
    return {
        "hash": calibration.hash,
        "n_frames": calibration.n_frames,
        "height_px": calibration.shape[0],
        "width_px": calibration.shape[1],
        "bayer": None if calibration.bayer is None else calibration.bayer.value,
        "mean_transmission": float(phi.mean(dtype=np.float64)),
        "grey": bool(((phi > 0) & (phi < 1)).any()),
        "unmeasured_px": int(unseen.sum()),
        "bad_px": 0 if calibration.bad_pixels is None else int(calibration.bad_pixels.sum()),
        "dark_dn": float(np.mean(calibration.dark, dtype=np.float64)),
        "full_scale_dn": calibration.full_scale_dn,
        "saturation_dn": calibration.saturation_dn,
        "read_noise_dn": calibration.read_noise_dn,
        "gain_e_per_dn": calibration.gain_e_per_dn,
        "created": calibration.created,
        "source": calibration.source,
    }
