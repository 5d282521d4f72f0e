"""All kinds of messages, from the declared fields of their classes. docs/wire.md specifies them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from pydantic import JsonValue

from sci_stream.field_types import Name, Payload
from sci_stream.model import Array, BayerPhase, Reconstruction, SeriesInfo, Snapshot, SnapshotId
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.mask_errors import CORRECTION_PATTERN
from sci_stream.wire import messages as msg
from sci_stream.wire.header import Reason, quoted
from sci_stream.wire.payload import PayloadDescription
from sci_stream.wire.schema import FieldError, MapSchema, metadata_of, types_of

_DESCRIPTION = MapSchema(types_of(PayloadDescription))


class MessageKind:
    """One kind of message: the declared fields of a class in the header, its `Payload` arrays after
    it.

    An ``id`` is sent as the fields of `SnapshotId`. ``name`` is the first frame; ``check`` raises
    `FieldError` if the parts of a value are inconsistent; ``attributes`` are computed, sent in
    front of the fields, and must be the same for a received value.
    """

    def __init__(
        self, name: str, type: type, check: Callable[[Any], None], attributes: tuple[str, ...]
    ) -> None:
        self.name = name
        self.type = type
        self.check = check
        types = {**dict.fromkeys(attributes, Name), **types_of(type)}
        self.payloads = {
            field: payload
            for field, kind in types.items()
            if (payload := metadata_of(kind, Payload))
        }
        identity = types_of(SnapshotId) if "id" in types else {}
        in_header = (field for field in types if field != "id" and field not in self.payloads)
        self.types = {**identity, **{field: types[field] for field in in_header}}
        self._identity = tuple(identity)
        self._attributes = attributes
        self._map = MapSchema(self.types, {field: f"id.{field}" for field in identity})
        self._header = MapSchema({**self.types, "payloads": list[PayloadDescription]})

    def dump(
        self, message: object, descriptions: Sequence[PayloadDescription]
    ) -> dict[str, JsonValue]:
        """Return the header of a message to send: its fields,
        and the descriptions of its payloads.
        """
        return {
            **self._map.dump(message),
            "payloads": [_DESCRIPTION.dump(entry) for entry in descriptions],
        }

    def read(self, header: object) -> tuple[dict[str, Any], list[PayloadDescription]]:
        """Return the validated fields of a header, and the descriptions of its payloads.

        Raises `FieldError`.
        """
        fields = self._header.read(header)
        return fields, fields.pop("payloads")

    def make(self, fields: dict[str, Any], arrays: Mapping[str, Array | list[Array] | None]) -> Any:
        """Return the message of validated fields and arrays.

        Raises `FieldError` if they are inconsistent; `CalibrationError` if they make no
        calibration.
        """
        if self._identity:
            fields["id"] = SnapshotId(*(fields.pop(field) for field in self._identity))
        stated = {name: fields.pop(name) for name in self._attributes}
        message = self.type(**fields, **arrays)
        for name, value in stated.items():
            if (computed := getattr(message, name)) != value:
                raise FieldError(
                    name, f"that of the content, {computed}", quoted(value), "payload_value"
                )
        self.check(message)
        return message


def _require_shape(name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if shape != expected:
        raise FieldError(name, f"shape {expected}", str(shape), "payload_shape")


def _require_even_if_bayer(
    shape: tuple[int, ...], bayer: BayerPhase | None, reason: Reason
) -> None:
    if bayer is not None and (shape[-1] % 2 or shape[-2] % 2):
        raise FieldError(
            "bayer", "even height and width, as a Bayer mosaic has", str(shape[-2:]), reason
        )


def _check_series(info: SeriesInfo) -> None:
    _require_even_if_bayer((info.height_px, info.width_px), info.bayer, "header_field")


def _check_snapshot(snapshot: Snapshot) -> None:
    _require_even_if_bayer(snapshot.counts.shape, snapshot.bayer, "payload_shape")
    if snapshot.truth is not None:
        _require_shape("truth", snapshot.truth.shape, (snapshot.n_frames, *snapshot.counts.shape))


def _check_raw_snapshots(message: msg.RawSnapshots) -> None:
    if not 1 <= len(message.rows) == len(message.counts):
        raise FieldError(
            "rows", f"{max(1, len(message.counts))}, one for each payload", str(len(message.rows))
        )
    for counts in message.counts:
        _require_even_if_bayer(counts.shape, message.bayer, "payload_shape")


def _check_reconstruction(reconstruction: Reconstruction) -> None:
    _require_even_if_bayer(reconstruction.video.shape, reconstruction.bayer, "payload_shape")
    if reconstruction.counts is not None:
        _require_shape("counts", reconstruction.counts.shape, reconstruction.video.shape[1:])
    if reconstruction.picture is not None:
        _require_shape(
            "picture", reconstruction.picture.shape, (*reconstruction.video.shape[1:], 3)
        )
    masks_at = reconstruction.report.masks_at
    if masks_at and re.fullmatch(CORRECTION_PATTERN, masks_at, re.ASCII) is None:
        raise FieldError("report.masks_at", "a correction of the masks", quoted(masks_at))


def _check_dropped(dropped: msg.Dropped) -> None:
    if dropped.outcome == "dropped" and not dropped.reason:
        raise FieldError("reason", "a reason, since the snapshot is lost", "none")
    if dropped.outcome == "raw_only" and dropped.count > 1:
        raise FieldError(
            "count", "1, since each snapshot may be recorded or not", str(dropped.count)
        )


_CHECKS: Mapping[type, Callable[[Any], None]] = {
    SeriesInfo: _check_series,
    Snapshot: _check_snapshot,
    msg.RawSnapshots: _check_raw_snapshots,
    Reconstruction: _check_reconstruction,
    msg.Dropped: _check_dropped,
}


def _kind(message: type) -> MessageKind:
    """Return the kind of a class, named as it: ``CalibrationRequest`` is
    a ``calibration_request``.
    """
    words = re.sub(r"(?<!^)(?=[A-Z])", "_", message.__name__).lower()
    name = "series_start" if message is SeriesInfo else words
    attributes = ("hash",) if message is Calibration else ()
    return MessageKind(name, message, _CHECKS.get(message, lambda _: None), attributes)


KINDS = tuple(map(_kind, get_args(msg.Message)))
"""Every kind of message (docs/wire.md)."""
