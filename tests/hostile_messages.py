"""Hostile messages that must not crash a node: one corpus for the codec and for every socket that
receives messages.

Each case is a name, the frames, and the reason under which it must be refused. Most are a good
message of `wire_samples` with one thing broken.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import msgpack
import numpy as np

from sci_stream.wire.codec import encode
from sci_stream.wire.header import MAX_HEADER_BYTES, SCHEMA_VERSION
from tests.wire_samples import HASH, samples


class HostileCase(NamedTuple):
    """Frames that must be refused, and under which reason."""

    name: str
    frames: list[bytes]
    reason: str


def good_frames(kind: str) -> list[bytes]:
    """Return the frames of the sample of a kind."""
    return [bytes(frame) for frame in encode(samples()[kind])]


def with_header(frames: list[bytes], change: Callable[[dict[str, Any]], object]) -> list[bytes]:
    """Return frames whose header has been changed in place."""
    header = msgpack.unpackb(frames[1])
    change(header)
    return [frames[0], msgpack.packb(header), *frames[2:]]


def with_payload(frames: list[bytes], index: int, payload: bytes) -> list[bytes]:
    """Return frames with another payload and the checksum that fits it."""
    out = with_header(
        frames, lambda header: header["payloads"][index].update(crc32=zlib.crc32(payload))
    )
    out[2 + index] = payload
    return out


def _update(header: dict[str, Any], /, **change: object) -> None:
    header.update(change)


def _update_report(field: str, value: object, header: dict[str, Any]) -> None:
    header["report"][field] = value


def _drop(field: str, header: dict[str, Any]) -> None:
    del header[field]


def _nested(depth: int, opening: bytes) -> bytes:
    return b"\x82\xa1v\x01\xa6status" + opening * depth + b"\x00"


def _framing() -> Iterator[HostileCase]:
    snapshot = good_frames("snapshot")
    goodbye = good_frames("goodbye")
    yield HostileCase("no frames", [], "frames")
    yield HostileCase("an empty frame", [b""], "frames")
    yield HostileCase("a kind without a header", [b"snapshot"], "frames")
    yield HostileCase("a hundred frames", [*snapshot, *[b""] * 100], "frames")
    yield HostileCase("empty frames", [b"", b""], "unknown_kind")
    yield HostileCase("a kind of another project", [b"image", goodbye[1]], "unknown_kind")
    yield HostileCase("a kind in capitals", [b"SNAPSHOT", *snapshot[1:]], "unknown_kind")
    yield HostileCase("a kind with a trailing zero", [b"goodbye\0", goodbye[1]], "unknown_kind")
    yield HostileCase("a kind that is not text", [b"\xff\xfe\x00", goodbye[1]], "unknown_kind")
    yield HostileCase("a kind of a megabyte", [b"s" * 2**20, goodbye[1]], "unknown_kind")
    yield HostileCase("kind and header swapped", [goodbye[1], goodbye[0]], "unknown_kind")
    yield HostileCase("one payload too many", [*snapshot, b"more"], "payload_count")
    yield HostileCase("a payload where none belongs", [*goodbye, b"payload"], "payload_count")
    yield HostileCase("one payload too few", snapshot[:-1], "payload_count")
    many = good_frames("raw_snapshots")
    fewer = with_header(many, lambda header: header["rows"].pop())
    yield HostileCase("snapshots without a row", fewer, "header_field")
    none = with_header(many[:2], lambda header: header.update(rows=[], payloads=[]))
    yield HostileCase("no snapshots", none, "header_field")
    yield HostileCase("a damaged one of many", [*many[:3], many[3][:-1] + b"\xff"], "crc")


def _syntax() -> Iterator[HostileCase]:
    head = good_frames("goodbye")[0]
    good = good_frames("goodbye")[1]
    most = MAX_HEADER_BYTES
    for name, header in {
        "an empty header": b"",
        "a truncated header": good[:-1],
        "a header with something behind it": good + b"\x00",
        "a header of JSON": b'{"v": 1, "node": "x"}',
        "a header of noise": bytes(range(255, 0, -1)),
        "a pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00}\x94.",
        "a header that is a list": msgpack.packb([1, 2]),
        "a header that is a number": b"\x01",
        "a header that is nil": b"\xc0",
        "a map of four billion entries": b"\xdf\xff\xff\xff\xff",
        "a list of four billion entries": b"\x81\xa1v\xdd\xff\xff\xff\xff",
        "a string of four gigabytes": b"\x81\xa1v\xdb\xff\xff\xff\xff",
        "a binary value": msgpack.packb({"v": 1, "node": b"acquire", "payloads": []}),
        "an extension type": msgpack.packb(
            {"v": 1, "node": msgpack.ExtType(4, b"x"), "payloads": []}
        ),
        "a timestamp": msgpack.packb({"v": 1, "node": msgpack.Timestamp(1), "payloads": []}),
        "a text that is not UTF-8": b"\x82\xa1v\x01\xa4node\xa2\xff\xfe",
        "a key that is a number": msgpack.packb({"v": 1, 5: "x"}),
        "a key that is a list": b"\x81\x91\x01\x01",
        "lists nested too deep": _nested(5000, b"\x91"),
        "maps nested too deep": _nested(5000, b"\x81\xa1a"),
        "a list of a hundred thousand": msgpack.packb({"v": 1, "payloads": [0] * 100_000}),
        "a map of a thousand": msgpack.packb({"v": 1, **{f"k{i}": i for i in range(1000)}}),
        "the never-used byte": b"\xc1",
    }.items():
        yield HostileCase(name, [head, header], "header_syntax")
    yield HostileCase("a header over the limit", [head, b"\x00" * (most + 1)], "header_size")
    huge = msgpack.packb({"v": 1, "node": "x" * most, "payloads": []})
    yield HostileCase("a huge string", [head, huge], "header_size")


def _versions() -> Iterator[HostileCase]:
    frames = good_frames("snapshot")
    for wrong in (
        0,
        1,
        SCHEMA_VERSION - 1,
        SCHEMA_VERSION + 1,
        -1,
        2**63,
        "1",
        1.0,
        True,
        None,
        [1],
    ):
        yield HostileCase(
            f"version {wrong!r}", with_header(frames, partial(_update, v=wrong)), "version"
        )
    yield HostileCase("no version", with_header(frames, lambda h: h.pop("v")), "version")


_WRONG_TYPES: tuple[object, ...] = (
    None,
    True,
    -1,
    2**64 - 1,
    1.5,
    float("nan"),
    float("inf"),
    "",
    "\0",
    [],
    {},
    [[]],
)


def _acceptable(kind: str, field: str, value: object) -> bool:
    """Return whether one of the wrong values happens to be right for a field."""
    optional = {
        "camera_time_ns", "camera_frame_id", "bayer", "frame_period_ns", "psnr_db",
        "saturation_dn", "bit_depth",
        "exposure_ns", "gain_db", "read_noise_dn", "gain_e_per_dn",
    }  # fmt: skip
    texts = {
        "rig", "camera_model", "camera_serial", "pixel_format", "rig_toml", "device",
        "camera_clock", "start_reason",
        "text", "created", "source", "patterns", "who", "distortions",
    }  # fmt: skip
    numbers = {
        "residual", "saturated_fraction", "full_scale_dn", "heartbeat_s", "saturation_dn",
        "gain_db", "psnr_db",
        "read_noise_dn", "gain_e_per_dn",
    }  # fmt: skip
    if value is None:
        return field in optional
    if isinstance(value, str):
        return field in texts or (field == "reason" and kind in {"series_end", "done"})
    if field in numbers:
        return True  # the valid range of each field is tested with the validators
    return (field in {"ok", "budget_limited"} and value is True) or (
        field in {"versions", "status", "parameters", "values", "chunks", "masks"} and value == {}
    )


def _fields() -> Iterator[HostileCase]:
    for kind in samples():
        frames = good_frames(kind)
        header = msgpack.unpackb(frames[1])
        for field in header:
            if field in {"v", "payloads"}:
                continue
            gone = with_header(frames, partial(_drop, field))
            yield HostileCase(f"{kind} without {field}", gone, "header_field")
            for value in _WRONG_TYPES:
                if _acceptable(kind, field, value):
                    continue
                wrong = with_header(frames, partial(_update, **{field: value}))
                yield HostileCase(f"{kind} whose {field} is {value!r}", wrong, "header_field")
        more = with_header(frames, lambda h: h.update(colour="blue"))
        yield HostileCase(f"{kind} with an unknown field", more, "header_field")


def _values() -> Iterator[HostileCase]:
    changes: dict[str, tuple[str, dict[str, Any]]] = {
        "a negative seq": ("snapshot", {"seq": -1}),
        "a seq beyond 63 bits": ("snapshot", {"seq": 2**63}),
        "a series that climbs out of its folder": ("snapshot", {"series": "../../etc/passwd"}),
        "a series that is hidden": ("series_start", {"series": ".ssh"}),
        "a series of two lines": ("series_start", {"series": "a\nb"}),
        "a series name of a kilobyte": ("series_end", {"series": "s" * 1024}),
        "no frames per snapshot": ("snapshot", {"n_frames": 0}),
        "an absurd B": ("snapshot", {"n_frames": 2**40}),
        "a Bayer phase of another camera": ("snapshot", {"bayer": "RGBW"}),
        "an unknown policy": ("series_start", {"policy": "perhaps"}),
        "a Bayer sensor of odd width": ("series_start", {"width_px": 7}),
        "a drop without a reason": ("dropped", {"reason": ""}),
        "a drop with a sentence for a reason": ("dropped", {"reason": "Queue full!"}),
        "an unknown outcome": ("dropped", {"outcome": "lost"}),
        "a confirmation of nothing": ("accepted", {"of": "goodbye"}),
        "a node of unknown kind": ("hello", {"kind_of_node": "toaster"}),
        "a name with a space": ("hello", {"node": "a b"}),
        "credit without bound": ("hello", {"credit": 2**31}),
        "negative credit": ("hello", {"credit": -1}),
        "too many versions": ("hello", {"versions": {f"p{i}": "1" for i in range(65)}}),
        "a version that is a number": ("hello", {"versions": {"torch": 2}}),
        "too many chunk values": ("snapshot", {"chunks": {f"c{i}": i for i in range(25)}}),
        "a chunk value that is NaN": ("snapshot", {"chunks": {"Gain": float("nan")}}),
        "a chunk value that is a list": ("reconstruction", {"chunks": {"Gain": [1]}}),
        "a unit that is a number": ("series_start", {"chunks": {"Gain": 1}}),
        "a heartbeat that never comes": ("welcome", {"heartbeat_s": 1e30}),
        "a heartbeat without pause": ("welcome", {"heartbeat_s": 0}),
        "a status that is a list": ("heartbeat", {"status": {"x": [1]}}),
        "a status that is NaN": ("heartbeat", {"status": {"rate": float("nan")}}),
        "a status of nil": ("heartbeat", {"status": {"rate": None}}),
        "a status with a long key": ("heartbeat", {"status": {"k" * 65: 1}}),
        "a status of too many entries": ("heartbeat", {"status": {f"k{i}": i for i in range(129)}}),
        "a status with a long text": ("heartbeat", {"status": {"x": "y" * 1025}}),
        "lists nested 500 deep": ("heartbeat", {"status": _deep_list(500)}),
        "a request that climbs out of its folder": ("control", {"request": "../../x"}),
        "an action that is a sentence": ("control", {"action": "rm -rf /"}),
        "a parameter that is a map": ("control", {"parameters": {"iterations": {"a": 1}}}),
        "a parameter that is NaN": ("control", {"parameters": {"iterations": float("nan")}}),
        "a parameter of a megabyte": ("control", {"parameters": {"denoiser": "x" * 1025}}),
        "more parameters than any node has": (
            "control",
            {"parameters": {f"p{i}": i for i in range(17)}},
        ),
        "an answer for everybody": ("control_result", {"request": "*"}),
        "a result that is a list": ("control_result", {"values": {"iterations": [12]}}),
        "negative scale": ("calibration", {"full_scale_dn": -1.0}),
        "a number that no snapshot can have": ("snapshot", {"seq": 2**48}),
        "a dropped snapshot of that number": ("dropped", {"seq": 2**63 - 1}),
        "more snapshots than can be": ("series_end", {"acquired": 2**63 - 1}),
        "NUL in a label": ("series_start", {"camera_model": "cam\0"}),
        "NUL in the configuration": ("series_start", {"rig_toml": "\0"}),
        "NUL in the name of a chunk": ("series_start", {"chunks": {"Gain\0": "dB"}}),
        "NUL in the unit of a chunk": ("series_start", {"chunks": {"Gain": "d\0B"}}),
        "a path as the name of a chunk": ("snapshot", {"chunks": {"../Gain": 1.0}}),
        "a chunk without a name": ("reconstruction", {"chunks": {"": 1.0}}),
        "NUL in a status": ("heartbeat", {"status": {"phase": "run\0"}}),
        "NUL in the source of a calibration": ("calibration", {"source": "white\0field"}),
        "negative noise": ("calibration", {"read_noise_dn": -1.0}),
        "payloads that are a map": ("snapshot", {"payloads": {}}),
        "payloads that are nil": ("snapshot", {"payloads": None}),
        "payloads that are numbers": ("snapshot", {"payloads": [1, 2]}),
    }
    for name, (kind, change) in changes.items():
        frames = with_header(good_frames(kind), partial(_update, **change))
        yield HostileCase(name, frames, "header_field")
    report = good_frames("reconstruction")
    for field, value in {
        "residual": float("nan"),
        "psnr_db": float("inf"),
        "saturated_fraction": 1.5,
        "start": 3,
        "masks_at": "1,0,0,2500,0",
    }.items():
        frames = with_header(report, partial(_update_report, field, value))
        yield HostileCase(f"a report whose {field} is {value}", frames, "header_field")
    late = with_header(report, lambda h: h["times"].pop("accepted_ns"))
    yield HostileCase("times with one missing", late, "header_field")


def _deep_list(depth: int) -> list[Any]:
    out: list[Any] = []
    for _ in range(depth):
        out = [out]
    return out


def _payloads() -> Iterator[HostileCase]:
    def described(index: int, **change: object) -> list[bytes]:
        return with_header(frames, lambda header: header["payloads"][index].update(change))

    frames = good_frames("snapshot")
    for dtype in (
        "object",
        "O",
        "V8",
        "float64",
        "int16",
        "complex64",
        ">u2",
        "uint16,uint16",
        "x" * 20,
        "",
        "float16",
    ):
        yield HostileCase(f"counts of dtype {dtype!r}", described(0, dtype=dtype), "payload_dtype")
    for shape in (
        [],
        [24],
        [4, 6, 1],
        [0, 6],
        [-4, -6],
        [2**40, 2**40],
        [2**32, 2**32],
        [65537, 1],
        [4] * 60,
    ):
        yield HostileCase(f"counts of shape {shape}", described(0, shape=shape), "payload_shape")
    yield HostileCase("counts of 8 GiB", described(0, shape=[65536, 65536]), "payload_size")
    for shape in ([4, 5], [5, 6], [65535, 100]):
        yield HostileCase(
            f"counts of shape {shape} in 48 bytes", described(0, shape=shape), "payload_length"
        )
    for wrong in ("4x6", None, [4.0, 6.0], [True, 6], ["4", "6"], {"0": 4}):
        yield HostileCase(f"a shape of {wrong!r}", described(0, shape=wrong), "header_field")
    for checksum in (-1, 2**32, None, "0", 1.0):
        yield HostileCase(
            f"a checksum of {checksum!r}", described(0, crc32=checksum), "header_field"
        )
    yield HostileCase("a dtype that is a number", described(0, dtype=16), "header_field")
    yield HostileCase("a payload without a name", described(0, name=None), "header_field")
    yield HostileCase("a payload of unknown name", described(0, name="pixels"), "payload_name")
    yield HostileCase("a payload twice", described(1, name="counts"), "payload_name")
    yield HostileCase("a description with more in it", described(0, offset=3), "header_field")
    yield HostileCase(
        "payloads in each other's place", [*frames[:2], frames[3], frames[2]], "payload_length"
    )

    truth_only = with_header(frames, lambda header: header["payloads"].pop(0))
    yield HostileCase("truth without counts", [*truth_only[:2], frames[3]], "payload_name")
    yield HostileCase(
        "a truncated payload", [*frames[:2], frames[2][:-1], frames[3]], "payload_length"
    )
    yield HostileCase("an empty payload", [*frames[:2], b"", frames[3]], "payload_length")
    yield HostileCase(
        "a payload with one bit flipped", [*frames[:2], _flip(frames[2]), frames[3]], "crc"
    )
    yield HostileCase("another checksum", described(0, crc32=1), "crc")
    yield HostileCase(
        "truth of another B", with_header(frames, lambda h: h.update(n_frames=4)), "payload_shape"
    )
    turned = with_header(frames, lambda h: h["payloads"][0].update(shape=[6, 4]))
    yield HostileCase("counts and truth of different shape", turned, "payload_shape")
    odd = with_header(
        frames[:3], lambda h: (h["payloads"].pop(1), h["payloads"][0].update(shape=[3, 8]))
    )
    yield HostileCase("a Bayer mosaic of odd height", odd, "payload_shape")
    yield HostileCase(
        "a snapshot without payloads", with_header(frames[:2], _no_payloads), "payload_name"
    )

    video = good_frames("reconstruction")
    turned = with_header(video, lambda h: h["payloads"][1].update(shape=[6, 4]))
    yield HostileCase("video and counts of different shape", turned, "payload_shape")


def _no_payloads(header: dict[str, Any]) -> None:
    header["payloads"] = []


def _flip(payload: bytes) -> bytes:
    return payload[:-1] + bytes([payload[-1] ^ 0x10])


def _calibrations() -> Iterator[HostileCase]:
    frames = good_frames("calibration")
    phi = np.frombuffer(frames[2], np.float32)
    for name, value in {"NaN": np.nan, "infinity": np.inf, "2": 2.0, "-1": -1.0}.items():
        wrong = copy.copy(phi)
        wrong[5] = value
        yield HostileCase(
            f"a mask with a transmission of {name}",
            with_payload(frames, 0, wrong.tobytes()),
            "payload_value",
        )
    dark = np.full(24, np.nan, np.float32).tobytes()
    yield HostileCase("a dark frame of NaN", with_payload(frames, 1, dark), "payload_value")
    turned = with_header(frames, lambda h: h["payloads"][1].update(shape=[6, 4]))
    yield HostileCase("a dark frame of another shape", turned, "payload_value")
    yield HostileCase(
        "a scale of zero", with_header(frames, lambda h: h.update(full_scale_dn=0)), "payload_value"
    )
    yield HostileCase(
        "no electrons in a DN",
        with_header(frames, lambda h: h.update(gain_e_per_dn=0)),
        "payload_value",
    )
    quieter = with_header(frames, lambda h: h.update(read_noise_dn=0.5))
    yield HostileCase("another noise under a calibration's hash", quieter, "payload_value")
    other = with_header(frames, lambda h: h.update(hash=HASH))
    yield HostileCase("a calibration under another's hash", other, "payload_value")
    swapped = with_payload(frames, 0, (phi * 0.5).tobytes())
    yield HostileCase("other masks under a calibration's hash", swapped, "payload_value")
    odd = with_header(frames[:4], _without_bad_pixels_and_odd)
    yield HostileCase("a Bayer calibration of odd height", odd, "payload_value")


def _without_bad_pixels_and_odd(header: dict[str, Any]) -> None:
    del header["payloads"][2]
    header["payloads"][0]["shape"] = [3, 3, 8]
    header["payloads"][1]["shape"] = [3, 8]


def hostile_messages() -> Iterator[HostileCase]:
    """Yield the corpus."""
    for group in (_framing, _syntax, _versions, _fields, _values, _payloads, _calibrations):
        yield from group()
