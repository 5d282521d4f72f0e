"""Read the arrays of a file or a folder of images, whatever program wrote it."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

import cv2
import h5py
import numpy as np

from sci_stream.errors import CalibrationError, FileFormatError, require_optional
from sci_stream.file_guard import reading, require_memory, require_ratio, require_regular
from sci_stream.files.matlab import read_arrays
from sci_stream.files.media import TIFF, in_natural_order, read_image, read_pages
from sci_stream.model import Array
from sci_stream.recording.hdf5 import open_for_reading, read_dataset

JPEG = (".jpg", ".jpeg")
IMAGES = (*TIFF, ".png", ".bmp", *JPEG)
MEASUREMENT = ("meas", "measurement", "measurements", "y", "snapshot", "snapshots", "coded")
MASKS = ("mask", "masks", "phi", "patterns", "codes")
TRUTH = ("orig", "truth", "gt", "x", "original")
_FORMATS = ".mat (version 5 to 7.3), .npy, .npz, HDF5, TIFF, a folder of images, or a recording"
_AS_NPZ = "Save other formats as arrays: numpy.savez(FILE, y=…, masks=…)."
VARIABLES = (
    "Name it: --variable NAME; of `solve`: y=NAME, masks=NAME or truth=NAME. Cells and "
    "objects are not read."
)
_MAX_ARRAYS = 64
# ImageJ writes a stack as one page, and the number of its images in the description.
_IMAGEJ = re.compile(rb"ImageJ=.{0,200}?\bimages=(\d+)", re.DOTALL)
_HEAD_BYTES = 1 << 16


def read_all(path: Path, *, lossy: bool = False, as_stored: bool = False) -> dict[str, Array]:
    """Return the arrays of a file by name, with their frames first; ``""`` names the only one of a
    file without names.

    Axes of length 1 beyond two are left out, and others stay where they are if they are wanted
    ``as_stored``. MATLAB stores arrays as (H, W, frames). Its version 7.3 is HDF5 with reversed
    axes, which an attribute marks; an HDF5 file of another program with the suffix ``.mat`` is as
    that program wrote it.

    Raises `FileFormatError` if the file cannot be read, or is JPEG though it is not to be
    ``lossy``.
    """
    order = np.ascontiguousarray if as_stored else _frames_first
    return {name: _squeezed(array) for name, array in _read(path, order, lossy=lossy).items()}


def _squeezed(array: Array) -> Array:
    squeezed = array.squeeze() if array.ndim > 2 else array
    return squeezed if squeezed.ndim >= 2 else array


def _read(path: Path, order: Callable[[Array], Array], *, lossy: bool) -> dict[str, Array]:
    """Return the arrays of a file, those in MATLAB's ``order`` as it puts them."""
    if not path.exists():
        raise FileFormatError(
            f"{path} was not found", expected="a file or a folder of images", got="nothing"
        )
    files = [path]
    if path.is_dir():
        names = (file for file in path.iterdir() if not file.name.startswith("."))
        files = in_natural_order(file for file in names if file.suffix.lower() in IMAGES)
        if not files:
            raise FileFormatError(
                f"The folder {path} contains no images",
                expected=f"one per frame: {', '.join(IMAGES)}",
                hint=_AS_NPZ,
            )
    suffix = files[0].suffix.lower()
    if suffix in JPEG and not lossy:
        raise FileFormatError(
            f"{path} is JPEG, which removes the code of the masks",
            expected="raw frames: TIFF, PNG or arrays",
            hint="If there is nothing else, convert it to PNG: the loss is named, if it shows.",
        )
    if path.is_dir():
        return {"": _stacked(path, [read_image(file, cv2.IMREAD_UNCHANGED) for file in files])}
    size = require_regular(path, "a measurement")
    if suffix in IMAGES:
        return {"": _stacked(path, _imagej_stack(path) or read_pages(path))}
    if suffix == ".npy":
        with reading(path, "a .npy file"), path.open("rb") as file:
            if (array := _numbers(file, size, path)) is not None:
                return {"": array}
        raise FileFormatError(f"{path} holds Python objects", expected="numbers", hint=_AS_NPZ)
    if suffix == ".npz":
        return read_npz(path)
    if h5py.is_hdf5(path):
        return _read_hdf5(path, order)
    if suffix == ".mat":
        require_memory(size, path)
        hint = "It may be truncated, or of version 4: download it again, or save it with -v7."
        with reading(path, "a .mat file", hint=hint):
            return {name: order(array) for name, array in read_arrays(path.read_bytes()).items()}
    raise FileFormatError(
        f"{path} cannot be read",
        expected=_FORMATS,
        got="another format" if size else "an empty file",
        hint=_AS_NPZ,
    )


def find(arrays: Mapping[str, Array], names: Iterable[str]) -> str | None:
    """Return the name of the array that has one of these names or, failing this, one of these words
    in its name.
    """
    stacks = {name: array for name, array in arrays.items() if array.ndim in (2, 3, 4)}
    lower = {name.lower(): name for name in stacks}
    exact = next((lower[name] for name in names if name in lower), None)
    words = {name: set(re.split(r"[^a-z]+", name.lower())) for name in stacks}
    return exact or next(
        (name for wanted in names for name in words if wanted in words[name]), None
    )


def read_one(
    path: Path, names: Sequence[str], what: str, variable: str = "", *, as_stored: bool = False
) -> Array:
    """Return an array of a file: ``variable``, else one of these names, else the only one.

    Raises `FileFormatError` if the file cannot be read or has no such array.
    """
    arrays = read_all(path, lossy=names is TRUTH, as_stored=as_stored)
    return arrays[choose(arrays, path, names, what, variable)]


def choose(
    arrays: Mapping[str, Array], path: Path, names: Sequence[str], what: str, variable: str = ""
) -> str:
    """Return the name of an array as `read_one` chooses it.

    Raises `FileFormatError` if there is none.
    """
    name: str | None
    if variable:
        name = variable if variable in arrays else None
    else:
        name = next(iter(arrays)) if len(arrays) == 1 else find(arrays, names)
    if name is None:
        raise FileFormatError(
            f"{path} holds no {what}" + (f" named {variable!r}" if variable else ""),
            expected=f"an array named {' or '.join(names)}, or a single array",
            got=", ".join(sorted(arrays)) or "no array",
            hint=VARIABLES,
        )
    return name


def read_npz(path: Path) -> dict[str, Array]:
    """Return the arrays of numbers of a ``.npz`` file by name.

    Raises `FileFormatError` if it is missing or damaged.
    """
    require_regular(path, "a .npz file")
    with reading(path, "a .npz file"), zipfile.ZipFile(path) as archive:
        members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
        require_memory(sum(member.file_size for member in members), path)
        arrays = {}
        for member in members:
            where = f"{path}:{member.filename}"
            require_ratio(member.file_size, member.compress_size, where)
            with archive.open(member) as file:
                if (array := _numbers(file, member.file_size, where)) is not None:
                    arrays[member.filename.removesuffix(".npy")] = array
        return arrays


def _numbers(file: IO[bytes], size: int, where: object) -> Array | None:
    """Return the array of a file of this size, None of objects, after checking the size that it
    declares.

    NumPy allocates this first.
    """
    version = np.lib.format.read_magic(file)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read is None:
        return None  # of field names in UTF-8
    shape, _, dtype = read(file)
    if dtype.hasobject:
        return None
    declared = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if declared > size:
        raise FileFormatError(
            f"{where} is cut off or damaged",
            expected=f"{declared} bytes of shape {shape}",
            got=f"{size} bytes",
        )
    require_memory(declared, where)
    file.seek(0)
    return np.asarray(np.lib.format.read_array(file, allow_pickle=False))


def _read_hdf5(path: Path, order: Callable[[Array], Array]) -> dict[str, Array]:
    """Return the numeric arrays of at least two dimensions, by the last part of their names."""
    arrays: dict[str, Array] = {}

    def visit(name: str, node: object) -> None:
        if not isinstance(node, h5py.Dataset) or node.ndim < 2 or node.dtype.kind not in "buif":
            return
        if len(arrays) < _MAX_ARRAYS:
            array = read_dataset(node)
            from_matlab = "MATLAB_class" in node.attrs
            arrays.setdefault(name.rsplit("/", 1)[-1], order(array.T) if from_matlab else array)

    with open_for_reading(path, "measurement") as file, reading(path, "a measurement"):
        file.visititems(visit)
    return arrays


def _frames_first(array: Array) -> Array:
    """Return an array in MATLAB's order, (H, W), (H, W, B) or (H, W, B, N), with its pictures last,
    contiguous.

    Python writes (B, H, W) to such files too: a first axis that is shorter than the last two is no
    height.
    """
    is_first = array.ndim < 3 or array.shape[0] < min(array.shape[-2:])
    return np.ascontiguousarray(
        array if is_first else array.transpose(*range(array.ndim - 1, 1, -1), 0, 1)
    )


def _imagej_stack(path: Path) -> list[Array] | None:
    """Return the images of an ImageJ stack with a single page; None for other files."""
    if path.suffix.lower() not in TIFF:
        return None
    with path.open("rb") as file:
        described = _IMAGEJ.search(file.read(_HEAD_BYTES))
    if described is None or len(read_pages(path)) > 1:
        return None
    tifffile = require_optional("tifffile", "export", f"An ImageJ stack such as {path.name}")
    with reading(path, "an ImageJ stack"):
        return [*np.atleast_3d(tifffile.imread(path))] if int(described[1]) > 1 else None


def _stacked(path: Path, images: list[Array]) -> Array:
    """Stack grey images, also those that were saved in colour, with three equal channels."""
    if all(
        image.ndim == 3 and image.shape[2] == 3 and (image == image[..., :1]).all()
        for image in images
    ):
        images = [image[..., 0] for image in images]
    shapes = {image.shape for image in images}
    if len(shapes) != 1 or len(next(iter(shapes))) != 2:
        raise CalibrationError(
            f"The images of {path} are not a stack of frames",
            expected="grey images of one size",
            got=", ".join("×".join(map(str, shape)) for shape in sorted(shapes)),
            hint="tifffile stores three or four 8-bit frames as colours, unless "
            "photometric='minisblack' is given. "
            "Of pictures in colour, save one channel."
            if {shape[2:] for shape in shapes} <= {(3,), (4,)}
            else None,
        )
    return np.stack(images)
