"""Layout of a recording; everything is created before the first row, because SWMR does not allow it
later.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypedDict

import h5py
import numpy as np
from isal import isal_zlib

from sci_stream.delivery.ledger import LedgerCounts
from sci_stream.errors import require_optional
from sci_stream.file_guard import reading
from sci_stream.model import Array, BayerPhase, Json, JsonObject, Policy, SeriesInfo
from sci_stream.optics.bayer import blocks_size
from sci_stream.recording.hdf5 import place, read_text, write_mark, write_text
from sci_stream.wire.codec import encode

RECORDING_FORMAT = "sci_stream.recording"
# Added columns do not increase the version: readers fill missing ones. A changed meaning of
# existing data does.
RECORDING_VERSION = 1
# Datasets grow by this many rows: rarely enough to cost nothing, while a live reader sees few empty
# rows.
GROWTH_ROWS = 64
# SWMR allows no new object while rows are written: the ledger is replaced in place, so its size is
# fixed.
LEDGER_BYTES = 1 << 16
# Its checksum takes the rest.
_MAX_LEDGER_TEXT = LEDGER_BYTES - 32
# Video as uint16 holds 0 to 2 in these steps: highlights beyond white are kept, values below black
# become 0.
VIDEO_U16_STEP = 2 / 65535
# The estimated error is less certain than such a step; larger ones than 0.255 are stored as that.
ERROR_STEP = 1e-3


class Compression(enum.StrEnum):
    """Storage of frames.

    The shot noise in the low bits of raw snapshots limits lossless compression to about 25 %.
    """

    NONE = "none"
    """Uncompressed: several times faster to write, readable by any HDF5 tool."""
    BITSHUFFLE_LZ4 = "bitshuffle_lz4"
    """Lossless; readers need the hdf5plugin filters."""

    def filters(self) -> JsonObject:
        """Return the options for ``create_dataset``."""
        if self is Compression.NONE:
            return {}
        hdf5plugin = require_optional("hdf5plugin", "compression", "Compression of frames")
        return dict(hdf5plugin.Bitshuffle(cname="lz4"))


class RowState(enum.IntFlag):
    """Content of a row."""

    EMPTY = 0
    RAW = 1
    VIDEO = 2
    PICTURE = 4
    ERROR = 8


FRAME_FLAGS = {
    "raw": RowState.RAW,
    "video": RowState.VIDEO,
    "picture": RowState.PICTURE,
    "error": RowState.ERROR,
}
"""The datasets of frames, and the flags of rows that have content in them."""
_ABOUT = {
    "raw": ("DN", "coded snapshots (DN)", "image"),
    "video": ("1", "reconstructed video (0-1)", "image"),
    "picture": ("", "picture of an analysis (RGB)", "rgb-image"),
    "error": ("1", "estimated error of the video (0-0.255)", "image"),
}


def scale_of(name: str, dtype: np.dtype[Any]) -> float:
    """Return the factor from stored to physical values of a dataset of frames."""
    if name == "error":
        return ERROR_STEP
    return VIDEO_U16_STEP if name == "video" and dtype == np.uint16 else 1.0


def frame_shape(name: str, info: SeriesInfo) -> tuple[int, ...]:
    """Return the shape of a row in a dataset of frames."""
    size = (info.height_px, info.width_px)
    match name:
        case "video":
            return (info.n_frames, *size)
        case "picture":
            return (*size, 3)
        case "error":
            return (info.n_frames, *blocks_size(*size, info.bayer))
    return size


def raw_dtype(info: SeriesInfo) -> np.dtype[Any]:
    """Return the dtype of this series' raw counts, from its bit depth and pixel format."""
    if info.bit_depth > 16 or info.pixel_format.lower().endswith(("32f", "float")):
        return np.dtype(np.float32)
    return np.dtype(np.uint8 if info.bit_depth <= 8 else np.uint16)


@dataclasses.dataclass(frozen=True)
class Layout:
    """Contents of a file: ``frames`` are the types of its datasets of frames, by name; see
    `RecordingWriter`.
    """

    first_seq: int
    frames: Mapping[str, np.dtype[Any]]
    compression: Compression
    parent: JsonObject | None = None


def create_layout(file: h5py.File, info: SeriesInfo, layout: Layout) -> None:
    """Mark an empty file as a recording of a series, and create everything except rows and
    calibration.
    """
    write_mark(file, RECORDING_FORMAT, RECORDING_VERSION)
    file.attrs["first_seq"] = layout.first_seq
    file.attrs["NX_class"] = "NXroot"
    write_text(file, "series_info", info_to_json(info))
    write_text(file, "rig_toml", info.rig_toml)
    if layout.parent is not None:
        write_text(file, "parent", json.dumps(layout.parent, indent=1, sort_keys=True))
    # With content, so that it has its place in the file: a full disk has no room for it later.
    file.create_dataset(
        "ledger",
        data=ledger_document({"clean": False}),
        chunks=(LEDGER_BYTES,),
        maxshape=(LEDGER_BYTES,),
    )
    for name, dtype in layout.frames.items():
        shape = frame_shape(name, info)
        # One image per chunk: a snapshot is written in one go, and a viewer steps through frames
        # without reading the rest. What an analysis draws is mostly flat: deflate takes little time
        # for it, and every reader has it.
        chunk = shape if name == "picture" else (1,) * (len(shape) - 2) + shape[-2:]
        filters = (
            {"compression": "gzip", "compression_opts": 1}
            if name == "picture"
            else layout.compression.filters()
        )
        node = file.create_dataset(
            name,
            (0, *shape),
            dtype,
            maxshape=(None, *shape),
            chunks=(1, *chunk),
            fillvalue=0,
            **filters,
        )
        for attribute, text in zip(
            ("units", "long_name", "interpretation"), _ABOUT[name], strict=True
        ):
            node.attrs[attribute] = text
        if (scale := scale_of(name, dtype)) != 1:
            node.attrs["scaling_factor"] = scale


class LedgerDocument(TypedDict, total=False):
    """The dataset ``ledger``: `LedgerCounts`, and how the file was closed."""

    clean: bool
    time_ns: int
    ledger: LedgerCounts | None
    continued: str
    repaired: bool
    crc32: int


def ledger_document(
    document: LedgerDocument, notes: Mapping[str, Json] = MappingProxyType({})
) -> Array:
    """Return the ledger as stored: JSON, zero-padded to `LEDGER_BYTES`.

    ``notes`` are added as far as they fit: of notes that are lists or maps, the oldest entries are
    left out and their number is stored as ``…_left_out``.

    Raises ValueError if it is too large even without notes.
    """
    text = _fitting_text(document, notes)
    if len(text) > _MAX_LEDGER_TEXT:
        raise ValueError(f"a ledger must fit {_MAX_LEDGER_TEXT} bytes as JSON, got {len(text)}")
    text = b'%s, "crc32": %d}' % (text[:-1], isal_zlib.crc32(text))
    padded = np.zeros(LEDGER_BYTES, np.uint8)
    padded[: len(text)] = np.frombuffer(text, np.uint8)
    return padded


def read_ledger(stored: bytes) -> JsonObject:
    """Return the document of `ledger_document`; empty if it is damaged, or read while it was
    written.
    """
    text = stored.rstrip(b"\0")
    whole, mark, crc32 = text.rpartition(b', "crc32": ')
    is_sound = not mark or crc32 == b"%d}" % isal_zlib.crc32(whole + b"}")
    try:
        document = json.loads(text) if is_sound else {}
    except (ValueError, RecursionError):
        document = {}
    return document if isinstance(document, dict) else {}


def _fitting_text(document: LedgerDocument, notes: Mapping[str, Json]) -> bytes:
    fitting = dict(notes)
    while len(text := json.dumps({**document, **fitting}).encode()) > _MAX_LEDGER_TEXT and fitting:
        name = max(fitting, key=lambda key: len(json.dumps(fitting[key])))
        note = fitting.pop(name)
        if not isinstance(note, list | dict) or not note:
            continue
        fewer = -(-len(note) // 2)
        entries = list(note.items())[fewer:] if isinstance(note, dict) else note[fewer:]
        fitting[name] = dict(entries) if isinstance(note, dict) else entries
        left_out = fitting.get(f"{name}_left_out", 0)
        fitting[f"{name}_left_out"] = fewer + (left_out if isinstance(left_out, int) else 0)
    return text


def info_to_json(info: SeriesInfo) -> str:
    """Return a series' description as JSON, without the text of the rig, which is stored
    separately.
    """
    return json.dumps(
        dataclasses.asdict(dataclasses.replace(info, rig_toml="")), indent=1, sort_keys=True
    )


def read_info(file: h5py.File) -> SeriesInfo:
    """Read the description of the series.

    Raises `FileFormatError` if it is missing or incomplete. Fields of newer versions are ignored.
    """
    where = f"{place(file)}series_info"
    known = {field.name for field in dataclasses.fields(SeriesInfo)}
    with reading(where, "the description of a series"):
        fields = {
            name: value
            for name, value in json.loads(read_text(file, "series_info")).items()
            if name in known
        }
        fields["policy"] = Policy(fields["policy"])
        fields["bayer"] = None if fields.get("bayer") is None else BayerPhase(fields["bayer"])
        fields["chunks"] = {
            str(chunk): str(unit) for chunk, unit in dict(fields.get("chunks", {})).items()
        }
        fields["rig_toml"] = read_text(file, "rig_toml")
        info = SeriesInfo(**fields)
        encode(info)  # refuses what no node may send: sizes, numbers and names beyond their bounds
        return info
