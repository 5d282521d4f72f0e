"""Pixel formats: every bit of every pixel, for every packing, size and padding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sci_stream.errors import CameraError
from sci_stream.model import Array, BayerPhase
from sci_stream_drivers.genicam.formats import FORMATS, PixelFormat, decode, find_pixel_format


def encode(
    counts: Array, form: PixelFormat, *, padding_bytes: int = 0, big_endian: bool = False
) -> Array:
    """Encode pixels bit by bit, as in the figures of the standards; shares no code with the
    decoder.
    """
    lines = counts if padding_bytes else counts.reshape(1, -1)
    out = bytearray()
    for line in lines:
        out += _line(line.tolist(), form, big_endian)
        out += b"\xa5" * padding_bytes
    return np.frombuffer(bytes(out), np.uint8)


def _line(pixels: list[int], form: PixelFormat, big_endian: bool) -> bytes:
    if form.layout == "plain":
        order = "big" if big_endian else "little"
        return b"".join(pixel.to_bytes(form.bits_per_pixel // 8, order) for pixel in pixels)  # type: ignore[arg-type]
    if form.layout == "p":
        stream = sum(pixel << (k * form.bit_depth) for k, pixel in enumerate(pixels))
        return stream.to_bytes(-(-len(pixels) * form.bit_depth // 8), "little")
    out = bytearray()
    low = form.bit_depth - 8
    for k in range(0, len(pixels), 2):
        pair = [*pixels[k : k + 2], 0][:2]
        out += bytes(
            [
                pair[0] >> low,
                (pair[0] & (1 << low) - 1) | (pair[1] & (1 << low) - 1) << 4,
                pair[1] >> low,
            ]
        )
    return bytes(out[: -(-len(pixels) * 12 // 8)])


@st.composite
def images(draw: st.DrawFn) -> tuple[PixelFormat, Array]:
    form = draw(st.sampled_from(sorted(FORMATS.values(), key=lambda form: form.name)))
    shape = draw(st.tuples(st.integers(1, 7), st.integers(1, 11)))
    seed = draw(st.integers(0, 2**32 - 1))
    values = np.random.default_rng(seed).integers(0, 1 << form.bit_depth, shape)
    return form, values.astype(form.dtype)


@given(images(), st.integers(0, 3), st.booleans())
def test_decode_inverts_the_standard_layout(
    image: tuple[PixelFormat, Array], padding_bytes: int, big_endian: bool
) -> None:
    form, counts = image
    raw = encode(counts, form, padding_bytes=padding_bytes, big_endian=big_endian)
    got = decode(raw, form, *counts.shape, padding_bytes=padding_bytes, big_endian=big_endian)
    np.testing.assert_array_equal(got, counts)
    assert got.dtype == form.dtype


@pytest.mark.parametrize("name", ["Mono10p", "Mono12p", "Mono10Packed", "Mono12Packed"])
@pytest.mark.parametrize("padding_bytes", [0, 4])
def test_decode_is_exact_to_the_last_row(name: str, padding_bytes: int) -> None:
    form, width = FORMATS[name], 360
    counts = (
        np.random.default_rng(8).integers(0, 1 << form.bit_depth, (401, width)).astype(np.uint16)
    )
    rows = [encode(row[None], form, padding_bytes=padding_bytes) for row in counts]
    np.testing.assert_array_equal(
        decode(np.concatenate(rows), form, 401, width, padding_bytes=padding_bytes), counts
    )


@given(images())
def test_decode_ignores_bytes_after_the_image(image: tuple[PixelFormat, Array]) -> None:
    form, counts = image
    raw = np.concatenate([encode(counts, form), np.full(13, 0xFF, np.uint8)])
    np.testing.assert_array_equal(decode(raw, form, *counts.shape), counts)


@given(images())
def test_decode_refuses_a_buffer_one_byte_short(image: tuple[PixelFormat, Array]) -> None:
    form, counts = image
    raw = encode(counts, form)
    assert raw.size == form.bytes_for(*counts.shape)
    with pytest.raises(CameraError, match=rf"too short .*{form.name}.*{raw.size} bytes"):
        decode(raw[:-1], form, *counts.shape)


@pytest.mark.parametrize(
    ("name", "raw", "pixels"),
    [
        ("Mono12p", [0xBC, 0x3A, 0x12], [0xABC, 0x123]),
        ("Mono12Packed", [0xAB, 0x3C, 0x12], [0xABC, 0x123]),
        ("Mono10p", [0xFF, 0x03, 0x00, 0x40, 0xFF], [0x3FF, 0x000, 0x000, 0x3FD]),
        ("Mono10Packed", [0xFF, 0x21, 0x80], [0x3FD, 0x202]),
        ("Mono16", [0x34, 0x12, 0xFF, 0x00], [0x1234, 0x00FF]),
    ],
)
def test_layouts_match_the_drawings_of_the_standards(
    name: str, raw: list[int], pixels: list[int]
) -> None:
    got = decode(np.array(raw, np.uint8), FORMATS[name], 1, len(pixels))
    assert got.tolist() == [pixels]


def test_names_codes_and_bits_match_the_library() -> None:
    pfnc = pytest.importorskip(
        "harvesters.util.pfnc", reason="harvesters is not installed: pip install '.[genicam]'"
    )
    for name, form in FORMATS.items():
        assert name.startswith("Polarized") or pfnc.dict_by_names[name] == form.code


def test_every_phase_exists_in_every_depth_and_packing() -> None:
    for depth in ("8", "10", "12", "16", "10p", "12p", "10Packed", "12Packed"):
        assert FORMATS[f"Mono{depth}"].bayer is None
        for phase in BayerPhase:
            form = FORMATS[f"Bayer{phase.value[:2]}{depth}"]
            assert form.bayer is phase
            assert form.bit_depth == FORMATS[f"Mono{depth}"].bit_depth
            assert form.layout == FORMATS[f"Mono{depth}"].layout


def test_unsupported_format_error_lists_supported_ones() -> None:
    with pytest.raises(CameraError) as caught:
        find_pixel_format("RGBa8", offered=("RGBa8", "Mono8"))
    for words in ("RGBa8", "expected one of Mono8;", "features"):
        assert words in str(caught.value)
    with pytest.raises(CameraError, match="This camera offers RGB8, YUV422_8: none of them"):
        find_pixel_format("RGB8", offered=("RGB8", "YUV422_8"))
