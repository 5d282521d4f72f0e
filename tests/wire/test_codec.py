"""Messages round-trip through frames; invalid frames are refused with a reason."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import hypothesis.extra.numpy as hnp
import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sci_stream.errors import WireError
from sci_stream.model import Reconstruction, Snapshot, SnapshotId
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.mask_errors import MAX_MASKS, MaskCorrection, MaskError
from sci_stream.wire.codec import decode, encode
from sci_stream.wire.header import Reason
from sci_stream.wire.kinds import KINDS
from sci_stream.wire.messages import Dropped, Heartbeat, Message, SeriesEnd
from tests.hostile_messages import good_frames, hostile_messages, with_header
from tests.wire_samples import samples

CORPUS = list(hostile_messages())


def same(one: Any, other: Any) -> bool:
    """Compare values, including arrays, which dataclass equality omits."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if dataclasses.is_dataclass(one) and type(one) is type(other):
        return all(
            same(getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(one)
        )
    return type(one) is type(other) and bool(one == other)


@pytest.mark.parametrize("kind", samples())
def test_every_kind_round_trips(kind: str) -> None:
    message = samples()[kind]
    frames = encode(message)
    assert frames[0] == kind.encode()
    assert same(decode(frames), message)


def test_samples_cover_every_kind_and_type() -> None:
    assert {kind.name for kind in KINDS} == set(samples())
    assert {type(message) for message in samples().values()} == set(get_args(Message))


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if not kind.payloads], ids=lambda kind: kind.name
)
def test_every_field_is_in_the_header(kind: Any) -> None:
    assert set(kind.types) == {field.name for field in dataclasses.fields(kind.type)}


def test_calibration_keeps_its_hash() -> None:
    calibration = samples()["calibration"]
    received = decode(encode(calibration))
    assert isinstance(calibration, Calibration)
    assert isinstance(received, Calibration)
    assert received.hash == calibration.hash


# --- buffers


def test_payloads_are_not_copied() -> None:
    counts = np.arange(24, dtype=np.uint16).reshape(4, 6)
    frames = encode(Snapshot(SnapshotId("s", 0, 0), counts, "c", 1, 0))
    assert np.shares_memory(np.frombuffer(frames[2], np.uint8), counts)
    received = decode(frames)
    assert isinstance(received, Snapshot)
    assert np.shares_memory(received.counts, counts)
    assert not received.counts.flags.writeable
    assert counts.flags.writeable


@pytest.mark.parametrize(
    "counts",
    [
        np.arange(24, dtype=np.uint16).reshape(6, 4).T,
        np.arange(24, dtype=">u2").reshape(4, 6),
        np.arange(48, dtype=np.uint16).reshape(4, 12)[:, ::2],
    ],
    ids=["transposed", "big-endian", "every second column"],
)
def test_non_contiguous_arrays_keep_their_values(counts: np.ndarray[Any, Any]) -> None:
    received = decode(encode(Snapshot(SnapshotId("s", 0, 0), counts, "c", 1, 0)))
    assert isinstance(received, Snapshot)
    assert np.array_equal(received.counts, counts)


def test_received_arrays_are_aligned() -> None:
    kind, header, video, *others = good_frames("reconstruction")
    shifted = memoryview(bytearray(b"\0" + video))[1:]
    received = decode([kind, header, shifted, *others])
    assert received.video.flags.aligned  # type: ignore[union-attr]  # a reconstruction by its kind
    assert same(received, samples()["reconstruction"])


shapes = hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=9)


@given(
    counts=st.sampled_from([np.uint8, np.uint16, np.float32]).flatmap(
        lambda t: hnp.arrays(t, shapes)
    ),
    data=st.data(),
)
def test_any_snapshot_round_trips(counts: np.ndarray[Any, Any], data: st.DataObject) -> None:
    big = st.integers(0, 2**63 - 1)
    snapshot = Snapshot(
        SnapshotId(
            data.draw(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}", fullmatch=True)),
            0,
            data.draw(st.integers(0, 2**48 - 1)),
        ),
        counts,
        "c0ffee",
        data.draw(st.integers(1, 65536)),
        data.draw(big),
        camera_time_ns=data.draw(st.none() | big),
        camera_clock=data.draw(st.text(st.characters().filter(str.isprintable), max_size=256)),
    )
    received = decode([bytes(frame) for frame in encode(snapshot)])
    assert isinstance(received, Snapshot)
    assert received.counts.tobytes() == counts.tobytes()
    blank = np.zeros(1)
    assert same(
        dataclasses.replace(received, counts=blank), dataclasses.replace(snapshot, counts=blank)
    )


# --- refusals


def test_every_hostile_message_is_refused_for_its_reason() -> None:
    for case in CORPUS:
        with pytest.raises(WireError) as caught:
            decode(case.frames)
        assert caught.value.reason == case.reason, case.name
        assert len(str(caught.value)) < 600, case.name
    assert len(CORPUS) > 1400


def test_corpus_covers_every_reason_with_unique_names() -> None:
    assert {case.reason for case in CORPUS} == set(get_args(Reason))
    assert len({case.name for case in CORPUS}) == len(CORPUS)


def test_other_version_error_names_both() -> None:
    frames = with_header(good_frames("hello"), lambda header: header.update(v=8))
    with pytest.raises(WireError, match=r"expected version 10; got 8\. Run the same release"):
        decode(frames)


def test_limit_of_payloads_is_set_by_the_receiver() -> None:
    with pytest.raises(WireError) as caught:
        decode(good_frames("snapshot"), 47)
    assert caught.value.reason == "payload_size"


def refused_or_read(frames: list[bytes]) -> None:
    """Decode; anything but a message or a `WireError` of a known reason fails the test."""
    reason = None
    try:
        decode(frames)
    except WireError as error:
        reason = error.reason
    assert reason in (None, *get_args(Reason))


kind_names = st.sampled_from([kind.name.encode() for kind in KINDS])


@given(frames=st.lists(kind_names | st.binary(max_size=64), max_size=6))
def test_random_frames_are_refused_or_decoded(frames: list[bytes]) -> None:
    refused_or_read(frames)


msgpack_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(kind=st.sampled_from(list(samples())), data=st.data())
def test_message_with_changed_header_is_refused_or_decoded(kind: str, data: st.DataObject) -> None:
    frames = good_frames(kind)
    header = msgpack.unpackb(frames[1])
    for field in data.draw(st.lists(st.sampled_from(sorted(header)), min_size=1, max_size=3)):
        header[field] = data.draw(msgpack_values)
    refused_or_read([frames[0], msgpack.packb(header), *frames[2:]])


@given(kind=st.sampled_from(list(samples())), data=st.data())
def test_message_with_changed_bytes_is_refused_or_decoded(kind: str, data: st.DataObject) -> None:
    frames = good_frames(kind)
    index = data.draw(st.integers(0, len(frames) - 1))
    frame = bytearray(frames[index])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(frame)))
        frame[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    frames[index] = bytes(frame)
    refused_or_read(frames)


# --- the sender's side


@pytest.mark.parametrize(
    ("message", "refusal"),
    [
        (Dropped("../x", 0, 1, "queue_full"), "series: expected a name of letters, digits"),
        (Dropped("s", 0, -1, "queue_full"), "seq: expected an integer from 0"),
        (Dropped("s", 0, 1, ""), "reason: expected a reason"),
        (
            Snapshot(SnapshotId("s", 0, 0), np.zeros((4, 4)), "c", 1, 0),
            "counts: expected dtype uint8 or uint16",
        ),
        (
            Snapshot(SnapshotId("s", 0, 0), np.zeros((4, 4, 1), np.uint8), "c", 1, 0),
            "counts: expected 2 dimensions",
        ),
        (
            Snapshot(SnapshotId("s", 0, 0), np.zeros((0, 4), np.uint8), "c", 1, 0),
            "counts: expected 2 dimensions",
        ),
        (
            Snapshot(
                SnapshotId("s", 0, 0),
                np.zeros((4, 4), np.uint8),
                "c",
                2,
                0,
                truth=np.zeros((3, 4, 4), np.uint8),
            ),
            r"truth: expected shape \(2, 4, 4\), got \(3, 4, 4\)",
        ),
    ],
)
def test_encode_refuses_what_a_receiver_would_refuse(message: Message, refusal: str) -> None:
    with pytest.raises(ValueError, match=refusal):
        encode(message)


def test_encode_of_another_type_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="not a message: dict"):
        encode({"kind": "snapshot"})  # type: ignore[arg-type]  # the point of the test


def test_long_prose_is_cut_not_refused() -> None:
    received = decode(encode(SeriesEnd("s", 3, reason="why \ud800 " * 1000)))
    assert isinstance(received, SeriesEnd)
    assert len(received.reason) == 1024
    assert received.reason.endswith("…")


def test_unknown_rate_does_not_prevent_a_heartbeat() -> None:
    received = decode(
        encode(Heartbeat("sink", {"rate": float("nan"), "latency": float("inf"), "n": 3}))
    )
    assert received == Heartbeat("sink", {"n": 3})


def test_oversized_header_is_not_sent() -> None:
    with pytest.raises(ValueError, match="over the limit"):
        encode(Heartbeat("sink", {f"k{i}": "\U0001f4f7" * 1024 for i in range(100)}))


def test_corruption_on_a_forwarding_node_is_detected() -> None:
    """Forwarded payloads keep their checksum; derived arrays get a new one."""
    frames = [bytearray(frame) for frame in encode(samples()["snapshot"])]
    forwarded = decode(frames)
    assert isinstance(forwarded, Snapshot)
    frames[2][0] ^= 1  # the array uses this memory
    with pytest.raises(WireError) as refused:
        decode(encode(forwarded))
    assert refused.value.reason == "crc"
    derived = dataclasses.replace(forwarded, counts=forwarded.counts[:])
    assert same(decode(encode(derived)), derived)


def test_report_of_another_build_is_read_with_defaults() -> None:
    """A build with one quantity more and one less sends the report."""
    frames = good_frames("reconstruction")

    def change(header: dict[str, Any]) -> None:
        report, health = header["report"], header["report"]["health"]
        report["later_quantity"] = 1.5
        health["later_state"] = "new"
        del report["noise"], health["gain"]

    message = decode(with_header(frames, change))
    assert isinstance(message, Reconstruction)
    assert message.report.noise is None
    assert message.report.health is not None
    assert message.report.health.gain is None


def test_longest_correction_of_masks_is_sent() -> None:
    worst = MaskCorrection(
        masks=(MaskError(-9e9, -9e9, -9e9, -9e9),) * MAX_MASKS, black=-9e9
    ).to_text
    reconstruction = samples()["reconstruction"]
    assert isinstance(reconstruction, Reconstruction)
    report = dataclasses.replace(reconstruction.report, masks_at=worst)
    received = decode(encode(dataclasses.replace(reconstruction, report=report)))
    assert isinstance(received, Reconstruction)
    assert received.report == report
