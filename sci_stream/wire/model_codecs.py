"""Messages with the values of the model: series, snapshots, reconstructions, calibrations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from sci_stream.model import (
    BayerPhase,
    CalibrationHealth,
    Policy,
    Reconstruction,
    SeriesInfo,
    Snapshot,
    SnapshotId,
    SolveReport,
    StageTimes,
    Start,
)
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.mask_errors import CORRECTION_PATTERN, MOST_MASKS, correction_length
from sci_stream.wire.field_checks import (
    BAYER,
    CHUNKS,
    COUNT,
    DIM,
    ID_FIELDS,
    LABEL,
    NAME,
    SMALL_COUNT,
    UNITS,
    VERSIONS,
)
from sci_stream.wire.message_kind import MessageKind
from sci_stream.wire.payload import Arrays, PayloadSpec
from sci_stream.wire.validators import (
    Choice,
    FieldError,
    Fields,
    FiniteOrNil,
    Flag,
    Integer,
    Maybe,
    Number,
    Prose,
    Record,
    Text,
    quoted,
)

_ID_PATHS: Final = {name: f"id.{name}" for name in ID_FIELDS}


def _with_id(make: Callable[..., Any]) -> Callable[[Fields, Arrays], Any]:
    def build(fields: Fields, arrays: Arrays) -> Any:
        identity = SnapshotId(fields.pop("series"), fields.pop("epoch"), fields.pop("seq"))
        return make(id=identity, **fields, **arrays)

    return build


def _fits(what: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if shape != expected:
        raise FieldError(f"shape {expected}", str(shape), what)


def _even_if_bayer(shape: tuple[int, ...], bayer: BayerPhase | None) -> None:
    if bayer is not None and (shape[-1] % 2 or shape[-2] % 2):
        raise FieldError("even height and width, as a Bayer mosaic has", str(shape[-2:]), "bayer")


def _validate_snapshot(snapshot: Snapshot) -> None:
    _even_if_bayer(snapshot.counts.shape, snapshot.bayer)
    if snapshot.truth is not None:
        _fits("truth", snapshot.truth.shape, (snapshot.n_frames, *snapshot.counts.shape))


def _validate_reconstruction(reconstruction: Reconstruction) -> None:
    _even_if_bayer(reconstruction.video.shape, reconstruction.bayer)
    if reconstruction.counts is not None:
        _fits("counts", reconstruction.counts.shape, reconstruction.video.shape[1:])


def _validate_series(info: SeriesInfo) -> None:
    _even_if_bayer((info.height_px, info.width_px), info.bayer)


def _calibration_arrays(calibration: Calibration) -> Arrays:
    bad = calibration.bad_pixels
    return {
        "phi": calibration.phi,
        "dark": calibration.dark,
        "bad_pixels": None if bad is None else bad.view(np.uint8),
    }


def _build_calibration(fields: Fields, arrays: Arrays) -> Calibration:
    stated = fields.pop("hash")
    bad = arrays.pop("bad_pixels")
    values: Fields = {**fields, **arrays, "bad_pixels": None if bad is None else bad != 0}
    calibration = Calibration(**values)
    if calibration.hash != stated:
        raise FieldError(f"the hash of the content, {calibration.hash}", quoted(stated), "hash")
    return calibration


_COUNTS = ("uint8", "uint16", "float32")
_VIDEO = ("float16", "float32")

_HEALTH = Record(
    CalibrationHealth,
    {
        "shift_x_px": FiniteOrNil(),
        "shift_y_px": FiniteOrNil(),
        "shift_sd_px": FiniteOrNil(),
        "match": FiniteOrNil(),
        "contrast": FiniteOrNil(),
        "order": LABEL,
        "first_mask": SMALL_COUNT,
        "corrected": Flag(),
        "below_black_fraction": Number(0, 1),
        "brightness": FiniteOrNil(),
        "gain": FiniteOrNil(),
        "error_log_odds": FiniteOrNil(),
    },
)
_REPORT = Record(
    SolveReport,
    {
        "iterations": SMALL_COUNT,
        "start": Choice({start.value: start for start in Start}),
        "start_reason": LABEL,
        "budget_limited": Flag(),
        "solve_ns": COUNT,
        "residual": Number(0),
        "saturated_fraction": Number(0, 1),
        # Infinite if the video equals the truth, as for a black scene; that must not make the message invalid.
        "psnr_db": FiniteOrNil(),
        "health": Maybe(_HEALTH),
        "solver": Text(32, r"[0-9a-f]*", "hexadecimal digits"),
        "masks_at": Text(correction_length(MOST_MASKS), CORRECTION_PATTERN, "a correction of the masks"),
        "noise": FiniteOrNil(),
        "mismatch": FiniteOrNil(),
    },
)
_TIMES = Record(
    StageTimes,
    dict.fromkeys(("acquired_ns", "dispatched_ns", "received_ns", "started_ns", "finished_ns", "accepted_ns"), COUNT),
)

SERIES_START: Final = MessageKind(
    "series_start",
    SeriesInfo,
    Record(
        SeriesInfo,
        {
            "series": NAME,
            "started_ns": COUNT,
            "rig": LABEL,
            "policy": Choice({policy.value: policy for policy in Policy}),
            "camera_model": LABEL,
            "camera_serial": LABEL,
            "height_px": DIM,
            "width_px": DIM,
            "pixel_format": LABEL,
            "bit_depth": Integer(1, 64),
            "n_frames": DIM,
            "calibration_hash": NAME,
            "bayer": BAYER,
            "frame_period_ns": Maybe(COUNT),
            "rig_toml": Text(65536),
            "versions": VERSIONS,
            "chunks": UNITS,
        },
    ),
    validate=_validate_series,
)
SNAPSHOT: Final = MessageKind(
    "snapshot",
    Snapshot,
    Record(
        Snapshot,
        {
            **ID_FIELDS,
            "calibration_hash": NAME,
            "n_frames": DIM,
            "host_time_ns": COUNT,
            "camera_time_ns": Maybe(COUNT),
            "camera_clock": LABEL,
            "camera_frame_id": Maybe(COUNT),
            "pixel_format": LABEL,
            "bayer": BAYER,
            "dropped_before": COUNT,
            "backlog": SMALL_COUNT,
            "period_ns": COUNT,
            "redelivered": SMALL_COUNT,
            "dispatched_ns": COUNT,
            "chunks": CHUNKS,
        },
        _ID_PATHS,
    ),
    payloads=(
        PayloadSpec("counts", _COUNTS, 2),
        PayloadSpec("truth", ("uint8", *_VIDEO), 3, optional=True),
    ),
    arrays=lambda snapshot: {"counts": snapshot.counts, "truth": snapshot.truth},
    build=_with_id(Snapshot),
    validate=_validate_snapshot,
)
RECONSTRUCTION: Final = MessageKind(
    "reconstruction",
    Reconstruction,
    Record(
        Reconstruction,
        {
            **ID_FIELDS,
            "calibration_hash": NAME,
            "report": _REPORT,
            "times": _TIMES,
            "node": NAME,
            "device": LABEL,
            "bayer": BAYER,
            "camera_time_ns": Maybe(COUNT),
            "camera_frame_id": Maybe(COUNT),
            "redelivered": SMALL_COUNT,
            "dropped_before": COUNT,
            "chunks": CHUNKS,
        },
        _ID_PATHS,
    ),
    payloads=(PayloadSpec("video", _VIDEO, 3), PayloadSpec("counts", _COUNTS, 2, optional=True)),
    arrays=lambda reconstruction: {"video": reconstruction.video, "counts": reconstruction.counts},
    build=_with_id(Reconstruction),
    validate=_validate_reconstruction,
)
CALIBRATION: Final = MessageKind(
    "calibration",
    Calibration,
    Record(
        Calibration,
        {
            "hash": NAME,
            "full_scale_dn": Number(0),
            "saturation_dn": Maybe(Number()),
            "read_noise_dn": Maybe(Number(0)),
            "gain_e_per_dn": Maybe(Number(0)),
            "bit_depth": Maybe(Integer(1, 64)),
            "bayer": BAYER,
            "camera_serial": LABEL,
            "exposure_ns": Maybe(COUNT),
            "gain_db": Maybe(Number()),
            "created": LABEL,
            "source": Prose(1024),
        },
    ),
    payloads=(
        PayloadSpec("phi", ("float32",), 3),
        PayloadSpec("dark", ("float32",), 2),
        PayloadSpec("bad_pixels", ("uint8",), 2, optional=True),
    ),
    arrays=_calibration_arrays,
    build=_build_calibration,
)
