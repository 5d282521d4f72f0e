"""Hostile files for every reader: crafted ones, damaged ones, and files that are not regular."""

from __future__ import annotations

import io
import os
import random
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import torch

from sci_stream.recording.hdf5 import LIBVER
from tests.hostile_files.readers import READERS, Reader, make_recording, make_tiff

Craft = Callable[[Path], Iterator[tuple[str, Path, str]]]
"""Writes files made to do harm into a folder; yields name, path and the reader that gets them."""

SECRET = b"The bytes of a file that was not given. " * 200
"""Content of the file that hostile files refer to."""


def mutated(content: bytes, draw: random.Random) -> bytes:
    """Damage a file at one to eight places: bits, ranges, numbers, lengths, pieces moved or
    repeated.
    """
    data = bytearray(content)
    for _ in range(draw.randint(1, 8)):
        if not data:
            break
        at = draw.randrange(len(data))
        size = draw.choice((1, 2, 4, 8, 64, 512))
        match draw.randrange(8):
            case 0:
                data[at] ^= 1 << draw.randrange(8)
            case 1:
                data[at : at + size] = draw.randbytes(size)
            case 2:
                data[at : at + size] = b"\xff" * min(size, 8)
            case 3:
                data[at : at + size] = bytes(min(size, 8))
            case 4:
                del data[at:]
            case 5:
                del data[at : at + size]
            case 6:
                source = draw.randrange(len(data))
                data[at:at] = data[source : source + size]
            case _:
                number = draw.choice((2**63 - 1, 2**32 - 1, 2**31, 2**48, 1 << 20))
                data[at : at + 8] = number.to_bytes(8, "little")
    return bytes(data)


def _recording_with(path: Path, change: Callable[[h5py.File], None]) -> None:
    make_recording(path)
    with h5py.File(path, "r+", libver=LIBVER) as file:
        change(file)


def _replace(file: h5py.File, name: str, **how: Any) -> None:
    shape, dtype = file[name].shape, file[name].dtype
    del file[name]
    file.create_dataset(name, **{"shape": shape, "dtype": dtype, **how})


def _elsewhere(kind: str, secret: Path, name: str) -> Callable[[h5py.File], None]:
    """Return a change that lets a dataset show the content of another file."""

    def change(file: h5py.File) -> None:
        shape, dtype = file[name].shape, file[name].dtype
        if kind == "external storage":
            _replace(file, name, external=[(str(secret), 0, h5py.h5f.UNLIMITED)])
        elif kind == "external link":
            del file[name]
            file[name] = h5py.ExternalLink(str(secret.with_suffix(".h5")), name)
        else:
            del file[name]
            layout = h5py.VirtualLayout(shape, dtype)
            layout[...] = h5py.VirtualSource(
                str(secret.with_suffix(".h5")), name, shape=shape, dtype=dtype
            )
            file.create_virtual_dataset(name, layout)

    return change


def _bomb(
    name: str, shape: tuple[int, ...], chunks: tuple[int, ...] | None
) -> Callable[[h5py.File], None]:
    """Return a change that lets a dataset declare more than it stores."""

    def change(file: h5py.File) -> None:
        dtype = file[name].dtype
        del file[name]
        node = file.create_dataset(
            name, shape, dtype, chunks=chunks, compression="gzip" if chunks else None
        )
        if chunks:
            data = _deflated_zeros(int(np.prod(chunks)) * dtype.itemsize >> 20)
            node.id.write_direct_chunk((0,) * len(shape), data)

    return change


def _deflated_zeros(mebibytes: int) -> bytes:
    """Return zeros in zlib's format: one mebibyte is compressed, which takes milliseconds, and
    repeated.
    """
    packer = zlib.compressobj(9, wbits=-15)
    block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    adler32 = (mebibytes << 20) % 65521 << 16 | 1
    return b"\x78\x9c" + block * mebibytes + b"\x03\x00" + struct.pack(">I", adler32)


def crafted(folder: Path) -> Iterator[tuple[str, Path, str]]:
    """Write files made to do harm; yield name, path and the reader that gets them."""
    secret = folder / "secret.bin"
    secret.write_bytes(SECRET)
    make_recording(secret.with_suffix(".h5"))
    for kind in ("external storage", "external link", "virtual dataset"):
        for name in ("raw", "video", "rows/state", "ledger", "calibration/phi", "rig_toml"):
            path = folder / f"{kind}-{name.replace('/', '-')}.h5".replace(" ", "-")
            try:
                _recording_with(path, _elsewhere(kind, secret, name))
            except (TypeError, ValueError, RuntimeError):  # a scalar has no external storage
                continue
            yield f"{kind} as {name}", path, "recording"
    for name, shape, chunks in (
        ("raw", (6, 16, 24 << 22), None),
        ("rows/state", (1 << 40,), (1 << 20,)),
        ("ledger", (1 << 40,), (1 << 20,)),
        ("calibration/phi", (4096, 4096, 4096), None),
        ("calibration/phi", (3, 1 << 14, 1 << 15), (1, 1 << 14, 1 << 15)),
    ):
        path = folder / f"bomb-{name.replace('/', '-')}-{len(chunks or ())}.h5"
        _recording_with(path, _bomb(name, shape, chunks))
        yield f"bomb as {name} in chunks {chunks}", path, "recording"
    yield from _crafted_hdf5(folder, secret)
    yield from _crafted_texts(folder)
    yield from _crafted_arrays(folder)
    yield from _crafted_images(folder)


def _crafted_hdf5(folder: Path, secret: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield HDF5 files of other kinds that show other files."""
    parts = {"measurement of MATLAB 7.3": "meas", "calibration": "phi"}
    for kind, name in parts.items():
        yield from with_data_elsewhere(folder, secret, kind, READERS[kind], name)


def with_data_elsewhere(
    folder: Path, secret: Path, kind: str, reader: Reader, name: str
) -> Iterator[tuple[str, Path, str]]:
    """Yield HDF5 files of a kind in which a dataset of this name shows another file."""
    for how in ("external storage", "virtual dataset", "external link"):
        path = folder / f"{how}-{kind}{reader.suffix}".replace(" ", "-")
        reader.make(path)
        with h5py.File(path, "r+") as file:
            _elsewhere(how, secret, name)(file)
        yield f"{how} in {kind}", path, kind


def _crafted_texts(folder: Path) -> Iterator[tuple[str, Path, str]]:
    deep = "[" * 30_000
    texts = {
        "rig": (
            f"a = {deep}",
            "[rig]\nname = 'a\\u0000'",
            "x" * (1 << 20),
            "\ud800".encode("utf-8", "surrogatepass"),
        ),
        "summary": (deep, "[]", '{"ledger": 5}', '{"ledger": {"dropped": []}}', "1e999999"),
        "saved ledger": (
            deep,
            "[]",
            '{"series": "run-1", "recording": 1, "ledger": {"acquired": 1e400}}',
        ),
        "key": ("public a\nsecret b", "public\n", "x" * (1 << 20), b"\xff\xfe"),
        "allowed keys": (b"\xff\xfe", "x" * (1 << 21)),
        "video": (
            "#EXTM3U\n#EXTINF:1,\nsecret.bin\n",
            "ffconcat version 1.0\nfile secret.bin\n",
            "v=0\r\no=- 0 0\r\n",
        ),
    }
    for kind, entries in texts.items():
        for number, text in enumerate(entries):
            path = folder / f"text-{kind.replace(' ', '-')}-{number}{READERS[kind].suffix}"
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
            path.chmod(0o600)
            yield f"text {number} as {kind}", path, kind


def _crafted_arrays(folder: Path) -> Iterator[tuple[str, Path, str]]:
    def header(shape: str, dtype: str = "<f4") -> bytes:
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            head, {"descr": dtype, "fortran_order": False, "shape": (1,)}
        )
        return head.getvalue().replace(b"(1,)", shape.encode())

    for number, shape in enumerate(
        ("(1<<40,)", "(99999999999,)", "(-1,)", "(4294967296, 4294967296)", "(1,)")
    ):
        path = folder / f"npy-{number}.npy"
        path.write_bytes(header(shape) + bytes(64))
        yield f".npy of shape {shape}", path, "array"
    pickled = folder / "pickled.npy"
    np.save(pickled, np.array([{}], object), allow_pickle=True)
    yield "pickled .npy", pickled, "array"
    bomb = folder / "bomb.npz"
    with (
        zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("y.npy", "w", force_zip64=True) as file,
    ):
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            head, {"descr": "|u1", "fortran_order": False, "shape": (1 << 28, 1)}
        )
        file.write(head.getvalue())
        for _ in range(1 << 8):
            file.write(bytes(1 << 20))
    yield "bomb as .npz", bomb, "arrays"
    lies = folder / "lies.npz"
    with zipfile.ZipFile(lies, "w") as archive:
        archive.writestr("y.npy", header("(1<<40,)"))
        archive.writestr("masks.npy", header("(99999999999, 1, 1)"))
    yield ".npz with false headers", lies, "arrays"
    repeated = folder / "repeated.pth"
    torch.save({"model.0.weight": torch.ones(1).expand(1 << 16, 5 << 8, 3, 3)}, repeated)
    yield "checkpoint of one number, repeated", repeated, "checkpoint"


def _crafted_images(folder: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield images that declare more than they hold."""
    path = folder / "huge.tif"
    make_tiff(path)
    content = bytearray(path.read_bytes())
    (at,) = struct.unpack_from("<I", content, 4)
    for index in range(struct.unpack_from("<H", content, at)[0]):
        tag_at = at + 2 + 12 * index
        if struct.unpack_from("<H", content, tag_at)[0] in (256, 257):
            struct.pack_into("<HII", content, tag_at + 2, 4, 1, 30_000)
    path.write_bytes(content)
    yield "TIFF of 900 megapixels", path, "TIFF"
    loop = folder / "loop.tif"
    make_tiff(loop)
    content = bytearray(loop.read_bytes())
    (entries,) = struct.unpack_from("<H", content, at)
    struct.pack_into("<I", content, at + 2 + 12 * entries, at)
    loop.write_bytes(content)
    yield "TIFF whose pages form a loop", loop, "TIFF"
    yield "PNG of 900 megapixels", huge_png(folder), "TIFF"
    for suffix, marker, skip, sizes in (
        (".jpg", b"\xff\xc0", 5, ">HH"),
        (".bmp", b"BM", 18, "<ii"),
    ):
        image = folder / f"huge{suffix}"
        done, encoded = cv2.imencode(suffix, np.zeros((8, 8), np.uint8))
        assert done
        raw = bytearray(encoded.tobytes())
        struct.pack_into(sizes, raw, raw.index(marker) + skip, 30_000, 30_000)
        image.write_bytes(raw)
        yield f"{suffix} of 900 megapixels", image, "TIFF"
    mat = folder / "bomb.mat"
    packed = zlib.compress(struct.pack("<II", 14, 1 << 30) + bytes(1 << 24), 9)
    mat.write_bytes(
        b"x" * 124
        + struct.pack("<H", 0x0100)
        + b"IM"
        + struct.pack("<II", 15, len(packed))
        + packed
    )
    yield "bomb as .mat", mat, "published measurement"


def huge_png(folder: Path) -> Path:
    """Write a small PNG that declares 900 megapixels."""
    png = folder / "huge.png"
    done, encoded = cv2.imencode(".png", np.zeros((8, 8), np.uint8))
    assert done
    raw = bytearray(encoded.tobytes())
    struct.pack_into(">II", raw, 16, 30_000, 30_000)
    struct.pack_into(">I", raw, 29, zlib.crc32(bytes(raw[12:29])))
    png.write_bytes(raw)
    return png


def _no_files(folder: Path, readers: Mapping[str, Reader]) -> Iterator[tuple[str, Path, str]]:
    """Yield paths that are no regular files for each reader: none, empty, a pipe, a folder, an
    endless device.
    """
    for kind, reader in readers.items():
        stem = kind.replace(" ", "-")
        yield f"nothing as {kind}", folder / f"none-{stem}{reader.suffix}", kind
        empty = folder / f"empty-{stem}{reader.suffix}"
        empty.touch(mode=0o600)
        yield f"empty file as {kind}", empty, kind
        pipe = folder / f"pipe-{stem}{reader.suffix}"
        os.mkfifo(pipe, 0o600)
        yield f"pipe as {kind}", pipe, kind
        place = folder / f"folder-{stem}{reader.suffix}"
        place.mkdir()
        yield f"folder as {kind}", place, kind
        endless = folder / f"zero-{stem}{reader.suffix}"
        endless.symlink_to("/dev/zero")
        yield f"/dev/zero as {kind}", endless, kind


def hostile_files(
    folder: Path, seed: int, mutations: int, readers: Mapping[str, Reader], crafted: Craft
) -> Iterator[tuple[str, Path, str]]:
    """Yield every hostile file: the crafted ones, and ``mutations`` damaged ones, shared out among
    the readers.
    """
    yield from crafted(folder)
    yield from _no_files(folder, readers)
    draw = random.Random(seed)
    kinds = sorted(readers)
    for number in range(mutations):
        kind = kinds[number % len(kinds)]
        reader = readers[kind]
        place = folder / f"mutated-{number}"
        place.mkdir()
        path = place / f"file{reader.suffix}"
        reader.make(path)
        path.write_bytes(mutated(path.read_bytes(), draw))
        yield f"mutation {number} of {kind}", path, kind
        shutil.rmtree(place)
