"""The kinds of messages: for each its fields, its payloads, and how it is taken apart and put together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from sci_stream.model import (
    Array,
    BayerPhase,
    Policy,
    Reconstruction,
    SeriesInfo,
    Snapshot,
    SnapshotId,
    SolveReport,
    Start,
    StageTimes,
)
from sci_stream.optics.calibration import Calibration
from sci_stream.wire import messages as msg
from sci_stream.wire.header import (
    Check,
    Choice,
    Flag,
    Integer,
    Maybe,
    Number,
    Prose,
    Record,
    Table,
    Text,
    UnfitError,
    shown,
)
from sci_stream.wire.payload import MAX_DIM, PayloadSpec

# Names become files, folders and socket identities: no separators, no leading dot, nothing that a shell would read.
NAME = Text(96, r"[A-Za-z0-9][A-Za-z0-9._-]*", "a name of letters, digits and . _ -")
WORD = Text(64, r"[a-z][a-z0-9_]*", "a word of small letters, digits and _")
ONE_LINE = Text(256)
COUNT = Integer(0, 2**63 - 1)
SMALL_COUNT = Integer(0, 2**31 - 1)
DIM = Integer(1, MAX_DIM)
BAYER = Maybe(Choice({phase.value: phase for phase in BayerPhase}))
VERSIONS = Table(Text(128), most=64)


class _StatusValue(Check):
    """What a node may say of itself: a finite number, a flag or a short text."""

    _number, _integer, _text = Number(), Integer(-(2**63), 2**63 - 1), Prose(1024)

    def read(self, value: object) -> msg.StatusValue:
        if isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self._text.read(value)
        return self._integer.read(value) if type(value) is int else self._number.read(value)

    def dump(self, value: Any) -> Any:
        return self._text.dump(value) if isinstance(value, str) else value


class _Status(Table):
    """The status of a heartbeat. A rate that is not known yet, NaN, must not silence the node that reports it."""

    def dump(self, value: Mapping[str, Any]) -> dict[str, Any]:
        known = {key: entry for key, entry in value.items() if not isinstance(entry, float) or math.isfinite(entry)}
        return super().dump(known)


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of message.

    Parameters
    ----------
    name
        The first frame.
    type
        The value it carries.
    record
        The fields of its header, without ``v`` and ``payloads``.
    payloads
        The arrays behind it, in order.
    arrays
        Takes the payloads from a value, by name.
    build
        Puts a value together from checked fields and arrays.
    agree
        Raises `UnfitError` if a value's parts contradict each other.
    """

    name: str
    type: type
    record: Record
    payloads: tuple[PayloadSpec, ...] = ()
    arrays: Callable[[Any], Mapping[str, Array | None]] = lambda _: MappingProxyType({})
    build: Callable[[dict[str, Any], dict[str, Array | None]], Any] | None = None
    agree: Callable[[Any], None] | None = None

    def make(self, fields: dict[str, Any], arrays: dict[str, Array | None]) -> Any:
        """Return the value."""
        return self.record.make(**fields) if self.build is None else self.build(fields, arrays)


_ID_FIELDS: Final[dict[str, Check]] = {"series": NAME, "epoch": SMALL_COUNT, "seq": COUNT}
_ID_PATHS: Final = {name: f"id.{name}" for name in _ID_FIELDS}


def _with_id(make: Callable[..., Any]) -> Callable[[dict[str, Any], dict[str, Array | None]], Any]:
    def build(fields: dict[str, Any], arrays: dict[str, Array | None]) -> Any:
        identity = SnapshotId(fields.pop("series"), fields.pop("epoch"), fields.pop("seq"))
        return make(id=identity, **fields, **arrays)

    return build


def _fits(what: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if shape != expected:
        raise UnfitError(f"shape {expected}", str(shape), what)


def _even_if_bayer(shape: tuple[int, ...], bayer: BayerPhase | None) -> None:
    if bayer is not None and (shape[-1] % 2 or shape[-2] % 2):
        raise UnfitError("even height and width, as a Bayer mosaic has", str(shape[-2:]), "bayer")


def _snapshot_agrees(snapshot: Snapshot) -> None:
    _even_if_bayer(snapshot.counts.shape, snapshot.bayer)
    if snapshot.truth is not None:
        _fits("truth", snapshot.truth.shape, (snapshot.n_frames, *snapshot.counts.shape))


def _reconstruction_agrees(reconstruction: Reconstruction) -> None:
    _even_if_bayer(reconstruction.video.shape, reconstruction.bayer)
    if reconstruction.counts is not None:
        _fits("counts", reconstruction.counts.shape, reconstruction.video.shape[1:])


def _series_agrees(info: SeriesInfo) -> None:
    _even_if_bayer((info.height_px, info.width_px), info.bayer)


def _dropped_agrees(dropped: msg.Dropped) -> None:
    if dropped.outcome == "dropped" and not dropped.reason:
        raise UnfitError("a reason, since the snapshot is lost", "none", "reason")


def _calibration_arrays(calibration: Calibration) -> dict[str, Array | None]:
    bad = calibration.bad_pixels
    return {
        "phi": calibration.phi,
        "dark": calibration.dark,
        "bad_pixels": None if bad is None else bad.view(np.uint8),
    }


def _build_calibration(fields: dict[str, Any], arrays: dict[str, Array | None]) -> Calibration:
    promised = fields.pop("hash")
    bad = arrays["bad_pixels"]
    if bad is not None:
        arrays["bad_pixels"] = bad != 0
    calibration = Calibration(**fields, **arrays)
    if calibration.hash != promised:
        raise UnfitError(f"the hash of the content, {calibration.hash}", shown(promised), "hash")
    return calibration


_COUNTS = ("uint8", "uint16", "float32")
_VIDEO = ("float16", "float32")

_REPORT = Record(
    SolveReport,
    {
        "iterations": SMALL_COUNT,
        "start": Choice({start.value: start for start in Start}),
        "start_reason": ONE_LINE,
        "budget_limited": Flag(),
        "solve_ns": COUNT,
        "residual": Number(0),
        "saturated_fraction": Number(0, 1),
        "psnr_db": Maybe(Number()),
    },
)
_TIMES = Record(
    StageTimes,
    {
        name: COUNT
        for name in ("acquired_ns", "dispatched_ns", "received_ns", "started_ns", "finished_ns", "accepted_ns")
    },
)

_SERIES_START = Kind(
    "series_start",
    SeriesInfo,
    Record(
        SeriesInfo,
        {
            "series": NAME,
            "started_ns": COUNT,
            "rig": ONE_LINE,
            "policy": Choice({policy.value: policy for policy in Policy}),
            "camera_model": ONE_LINE,
            "camera_serial": ONE_LINE,
            "height_px": DIM,
            "width_px": DIM,
            "pixel_format": Text(64),
            "bit_depth": Integer(1, 64),
            "n_frames": DIM,
            "calibration_hash": NAME,
            "bayer": BAYER,
            "frame_period_ns": Maybe(COUNT),
            "rig_toml": Text(65536),
            "versions": VERSIONS,
        },
    ),
    agree=_series_agrees,
)
_SNAPSHOT = Kind(
    "snapshot",
    Snapshot,
    Record(
        Snapshot,
        {
            **_ID_FIELDS,
            "calibration_hash": NAME,
            "n_frames": DIM,
            "host_time_ns": COUNT,
            "camera_time_ns": Maybe(COUNT),
            "camera_clock": ONE_LINE,
            "camera_frame_id": Maybe(COUNT),
            "pixel_format": Text(64),
            "bayer": BAYER,
            "dropped_before": SMALL_COUNT,
            "backlog": SMALL_COUNT,
            "period_ns": COUNT,
            "redelivered": SMALL_COUNT,
            "dispatched_ns": COUNT,
        },
        _ID_PATHS,
    ),
    payloads=(
        PayloadSpec("counts", _COUNTS, 2),
        PayloadSpec("truth", ("uint8", *_VIDEO), 3, optional=True),
    ),
    arrays=lambda snapshot: {"counts": snapshot.counts, "truth": snapshot.truth},
    build=_with_id(Snapshot),
    agree=_snapshot_agrees,
)
_RECONSTRUCTION = Kind(
    "reconstruction",
    Reconstruction,
    Record(
        Reconstruction,
        {
            **_ID_FIELDS,
            "calibration_hash": NAME,
            "report": _REPORT,
            "times": _TIMES,
            "node": NAME,
            "device": ONE_LINE,
            "bayer": BAYER,
            "camera_time_ns": Maybe(COUNT),
            "camera_frame_id": Maybe(COUNT),
            "redelivered": SMALL_COUNT,
            "dropped_before": SMALL_COUNT,
        },
        _ID_PATHS,
    ),
    payloads=(PayloadSpec("video", _VIDEO, 3), PayloadSpec("counts", _COUNTS, 2, optional=True)),
    arrays=lambda reconstruction: {"video": reconstruction.video, "counts": reconstruction.counts},
    build=_with_id(Reconstruction),
    agree=_reconstruction_agrees,
)
_CALIBRATION = Kind(
    "calibration",
    Calibration,
    Record(
        Calibration,
        {
            "hash": NAME,
            "full_scale_dn": Number(0),
            "saturation_dn": Maybe(Number()),
            "bit_depth": Maybe(Integer(1, 64)),
            "bayer": BAYER,
            "camera_serial": ONE_LINE,
            "exposure_ns": Maybe(COUNT),
            "gain_db": Maybe(Number()),
            "created": ONE_LINE,
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


def _plain(name: str, kind: type, fields: dict[str, Check], agree: Callable[[Any], None] | None = None) -> Kind:
    return Kind(name, kind, Record(kind, fields), agree=agree)


KINDS: Final = (
    _SERIES_START,
    _SNAPSHOT,
    _RECONSTRUCTION,
    _plain(
        "series_end", msg.SeriesEnd, {"series": NAME, "acquired": COUNT, "reason": Prose(1024), "camera_dropped": COUNT}
    ),
    _plain(
        "dropped",
        msg.Dropped,
        {
            **_ID_FIELDS,
            "reason": Text(64, r"|[a-z][a-z0-9_]*", "a word of small letters, digits and _"),
            "outcome": Choice({"dropped": "dropped", "raw_only": "raw_only"}),
        },
        _dropped_agrees,
    ),
    _plain(
        "accepted",
        msg.Accepted,
        {
            "series": NAME,
            "seq": COUNT,
            "of": Choice(
                {name: name for name in ("snapshot", "reconstruction", "dropped", "series_start", "series_end")}
            ),
        },
    ),
    _plain(
        "hello",
        msg.Hello,
        {
            "node": NAME,
            "kind_of_node": Choice({name: name for name in ("acquire", "reconstruct", "sink", "tool")}),
            "incarnation": NAME,
            "device": ONE_LINE,
            "credit": Integer(0, 1024),
            "protocol": Integer(1, 2**31 - 1),
            "versions": VERSIONS,
        },
    ),
    _plain("welcome", msg.Welcome, {"node": NAME, "incarnation": NAME, "heartbeat_s": Number(0.01, 3600)}),
    _plain("heartbeat", msg.Heartbeat, {"node": NAME, "status": _Status(_StatusValue(), most=128)}),
    _plain("goodbye", msg.Goodbye, {"node": NAME}),
    _plain("refused", msg.Refused, {"reason": WORD, "text": Prose(2048)}),
    _plain("done", msg.Done, {"series": NAME, "seq": COUNT, "ok": Flag(), "reason": Prose(1024)}),
    _plain("calibration_request", msg.CalibrationRequest, {"hash": NAME}),
    _CALIBRATION,
    _plain("calibration_missing", msg.CalibrationMissing, {"hash": NAME}),
)
"""Every kind of message there is (docs/wire.md)."""
