"""Read the arrays of a file or a folder of images, whatever program wrote it."""

from __future__ import annotations

import logging
import math
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import h5py
import numpy as np

from sci_stream.errors import CalibrationError, FileFormatError, require_optional
from sci_stream.file_guard import reading, require_memory, require_ratio, require_regular
from sci_stream.files.mask_files import PACKED_NAME, unpacked
from sci_stream.files.matlab import COMPLEX, SPARSE, read_variables
from sci_stream.files.media import (
    TIFF,
    gaps_between,
    in_natural_order,
    read_pages,
    refuse_makers_format,
)
from sci_stream.model import Array
from sci_stream.recording.hdf5 import open_for_reading, read_dataset

_log = logging.getLogger(__name__)

JPEG = (".jpg", ".jpeg")
IMAGES = (*TIFF, ".png", ".bmp", *JPEG)
MEASUREMENT = ("meas", "measurement", "measurements", "y", "snapshot", "snapshots", "coded")
MASKS = ("mask", "masks", "phi", "patterns", "codes")
TRUTH = ("orig", "truth", "gt", "x", "original")
UNNAMED = 3
"""Rank of an array whose name does not say the role."""
ROLES = {"y": MEASUREMENT, "masks": MASKS, "truth": TRUTH}
# Programs call any array x: this name alone says little.
_WEAK_NAMES = {"x"}
_FORMATS = ".mat (version 5 to 7.3), .npy, .npz, HDF5, TIFF, a folder of images, or a recording"
_AS_NPZ = "Save other formats as arrays: numpy.savez(FILE, y=…, masks=…)."
VARIABLES = "Name it: --variable NAME; of `solve`: y=NAME, masks=NAME or truth=NAME."
# Arrays of one role that are compared. Files of measurements hold fewer than ten.
_MAX_CANDIDATES = 32
_MAX_LISTED = 12
# Cells and objects of MATLAB 7.3 keep their parts in these groups.
_MATLAB_PARTS = ("#refs#", "#subsystem#")
Axes = Callable[[tuple[int, ...]], tuple[int, ...]]
# ImageJ writes a stack as one page, and the number of its images in the description.
_IMAGEJ = re.compile(rb"ImageJ=.{0,200}?\bimages=(\d+)", re.DOTALL)
_HEAD_BYTES = 1 << 16


@dataclass(frozen=True)
class Candidate:
    """An array of a file: its full name, size and type. It is read when it is needed.

    ``rank`` says how close its name is to the names of a role, 0 best; see `rank_of`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    load: Callable[[], Array]
    rank: int = 0

    def __str__(self) -> str:
        return f"{self.name or 'one array'} ({size_of(self.shape)} {self.dtype})"

    @property
    def group(self) -> str:
        """The part of the name before the last."""
        return self.name.rpartition("/")[0]

    @property
    def is_named(self) -> bool:
        """Whether its name says the role."""
        return self.rank < UNNAMED


def rank_of(name: str, names: Iterable[str]) -> int:
    """Return how well the name of an array says one of these ``names`` of a role.

    0: it is the name; 1: it has the name as a word; 2: a group around it has; else `UNNAMED`.
    """
    group, _, last = name.rpartition("/")
    wanted = set(names)
    if last.lower() in wanted:
        return 0
    if wanted & _words(last):
        return 1
    return 2 if wanted & _words(group) else UNNAMED


def is_weak(name: str) -> bool:
    """Return whether the name of an array says little."""
    return name.rpartition("/")[2].lower() in _WEAK_NAMES


def size_of(shape: Iterable[int]) -> str:
    """Return a shape in words, such as 8×48×64."""
    return "×".join(map(str, shape))


def _words(text: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", text)}


@dataclass
class Contents:
    """The arrays of a file or of a folder of images.

    ``left_out`` has the reason for each array that cannot be a picture or a stack of pictures;
    ``notes`` say how the files were read.
    """

    path: Path
    candidates: list[Candidate] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def offer(
        self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], load: Callable[[], Array]
    ) -> None:
        """Add an array, or leave it out with the reason."""
        shape = _squeezed(shape)
        reason = _no_pictures(shape, dtype)
        if reason is None:
            candidate = Candidate(name, shape, dtype, lambda: load().reshape(shape))
            self.candidates.append(candidate)
        else:
            self.left_out[name or self.path.name] = reason

    def offer_array(self, name: str, array: Array) -> None:
        """Add an array that is in memory."""
        self.offer(name, array.shape, array.dtype, lambda: array)

    def candidates_for(self, names: Sequence[str], variable: str = "") -> list[Candidate]:
        """Return the arrays that may have a role: ``variable``; or the only array; or those with
        one of its names, then those whose names say no role.

        The latter do not serve in place of an array that has such a name and was left out.
        """
        if variable:
            return [self.variable(variable)]
        others = {other for role in ROLES.values() for other in role}.difference(names)
        if len(self.candidates) == 1:
            others -= _WEAK_NAMES
        ranked = [replace(one, rank=rank_of(one.name, names)) for one in self.candidates]
        free = [one for one in ranked if one.is_named or rank_of(one.name, others) == UNNAMED]
        is_left_out = any(rank_of(name, names) < UNNAMED for name in self.left_out)
        if is_left_out:
            free = [one for one in free if one.is_named]
        elif len(ranked) == len(free) == 1:
            return self.candidates
        return sorted(free, key=lambda one: (one.rank, -math.prod(one.shape)))[:_MAX_CANDIDATES]

    def variable(self, name: str) -> Candidate:
        """Return the array of this full name, or the only one whose last part it is.

        Raises `FileFormatError` if there is none.
        """
        exact = [one for one in self.candidates if one.name == name]
        same = exact or [one for one in self.candidates if one.name.rpartition("/")[2] == name]
        if len(same) != 1:
            raise FileFormatError(
                f"{self.path} holds no array named {name!r}",
                expected="the full name of one array",
                got=self.listed,
                hint=VARIABLES,
            )
        return same[0]

    def one(self, names: Sequence[str], what: str, variable: str = "") -> Candidate:
        """Return the array ``variable``, else the one that is best called so, else the only one.

        Of masks, a stack is preferred to a picture, which may be the sum of the stack.

        Raises `FileFormatError` if there is none, or if several are equally good.
        """
        several = [one for one in self.candidates_for(names, variable) if one.is_named]
        if names is MASKS and len(several) > 1:
            several = [one for one in several if len(one.shape) > 2] or several
        best = [one for one in several if one.rank == several[0].rank]
        if len(best) != 1:
            raise self.ambiguous(what, best) if best else self.lacks(what, names)
        return best[0]

    def lacks(self, what: str, names: Sequence[str], hint: str = "") -> FileFormatError:
        """Return the error that no array serves as ``what``, with those that there are."""
        return FileFormatError(
            f"{self.path} holds no {what}",
            expected=f"an array named {' or '.join(names)}, or a single array",
            got=self.listed,
            hint=hint or VARIABLES,
        )

    def ambiguous(self, what: str, several: Iterable[Candidate]) -> FileFormatError:
        """Return the error that several arrays serve equally well as ``what``."""
        return FileFormatError(
            f"{self.path} holds several arrays that may be the {what}",
            expected="one of them by name",
            got=", ".join(map(str, several)),
            hint=VARIABLES,
        )

    @property
    def all_notes(self) -> list[str]:
        """The notes, and the arrays that were left out though their names say a role."""
        names = [name for role in ROLES.values() for name in role]
        return self.notes + [
            f"{name} is left out: {reason}"
            for name, reason in self.left_out.items()
            if rank_of(name, names) < UNNAMED
        ]

    @property
    def listed(self) -> str:
        """All arrays with sizes, types and, if they were left out, the reasons."""
        texts = [*map(str, sorted(self.candidates, key=lambda one: -math.prod(one.shape)))]
        texts += [f"{name}, left out: {reason}" for name, reason in self.left_out.items()]
        more = len(texts) - _MAX_LISTED
        if more > 0:
            texts[_MAX_LISTED:] = [f"and {more} more"]
        return ", ".join(texts) or "no array"


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without its axes of length 1, where at least two axes remain."""
    longer = tuple(side for side in shape if side != 1)
    return longer if len(shape) > 2 and len(longer) >= 2 else shape


def _no_pictures(shape: tuple[int, ...], dtype: np.dtype[Any]) -> str | None:
    """Return why an array of this squeezed shape holds no pictures; None if it may."""
    if dtype.kind == "c" or (dtype.names and len(dtype.names) == 2):
        return COMPLEX
    if dtype.kind not in "buif":
        return "no numbers"
    if 0 in shape:
        return "empty"
    if min(shape, default=1) > 1 and len(shape) > 1:
        return None
    count = math.prod(shape)
    return "a single number" if count == 1 else f"a vector of {count} numbers"


def read_contents(path: Path, *, lossy: bool = False, as_stored: bool = False) -> Contents:
    """Return the arrays of a file by name, with their frames first; a file without names has one.

    Axes of length 1 beyond two are left out, and others stay where they are if they are wanted
    ``as_stored``. MATLAB stores arrays as (H, W, frames). Its version 7.3 is HDF5 with reversed
    axes, which an attribute marks; an HDF5 file of another program with the suffix ``.mat`` is as
    that program wrote it.

    Raises `FileFormatError` if the file cannot be read, or is JPEG though it is not to be
    ``lossy``.
    """
    if not path.exists():
        raise FileFormatError(
            f"{path} was not found", expected="a file or a folder of images", got="nothing"
        )
    refuse_makers_format(path)
    contents = Contents(path)
    if path.is_dir():
        contents.offer_array("", _folder(path, contents.notes, lossy=lossy))
        return contents
    suffix = path.suffix.lower()
    size = require_regular(path, "a measurement")
    axes_of = _as_stored if as_stored else _frames_first
    if suffix in IMAGES:
        _refuse_jpeg([path], path, lossy=lossy)
        contents.offer_array(
            "", _stacked(path, _imagej_stack(path) or read_pages(path, contents.notes.append))
        )
    elif suffix == ".npy":
        with reading(path, "a .npy file"), path.open("rb") as file:
            array = _numbers(file, size, path)
        if array is None:
            raise FileFormatError(f"{path} holds Python objects", expected="numbers", hint=_AS_NPZ)
        contents.offer_array("", array)
    elif suffix == ".npz":
        _read_npz(path, contents)
    elif h5py.is_hdf5(path):
        _read_hdf5(path, axes_of, contents)
    elif suffix == ".mat":
        require_memory(size, path)
        hint = "It may be truncated, or of version 4: download it again, or save it with -v7."
        with reading(path, "a .mat file", hint=hint):
            variables = read_variables(path.read_bytes())
        for name, value in variables.items():
            if isinstance(value, str):
                contents.left_out[name] = value
            else:
                contents.offer_array(name, _turned(value, axes_of(value.shape)))
    else:
        raise FileFormatError(
            f"{path} cannot be read",
            expected=_FORMATS,
            got="another format" if size else "an empty file",
            hint=_AS_NPZ,
        )
    return contents


def _refuse_jpeg(files: Iterable[Path], path: Path, *, lossy: bool) -> None:
    if not lossy and any(file.suffix.lower() in JPEG for file in files):
        raise FileFormatError(
            f"{path} is JPEG, which removes the code of the masks",
            expected="raw frames: TIFF, PNG or arrays",
            hint="If there is nothing else, convert it to PNG: the loss is named, if it shows.",
        )


def _folder(path: Path, notes: list[str], *, lossy: bool) -> Array:
    """Return the images of a folder, one for each frame, in the order of their names."""
    names = (file for file in path.iterdir() if not file.name.startswith("."))
    files = in_natural_order(file for file in names if file.suffix.lower() in IMAGES)
    if not files:
        raise FileFormatError(
            f"The folder {path} contains no images",
            expected=f"one per frame: {', '.join(IMAGES)}",
            hint=_AS_NPZ,
        )
    _refuse_jpeg(files, path, lossy=lossy)
    images = []
    for file in files:
        image, *more = read_pages(file, notes.append)
        if more:
            raise FileFormatError(
                f"{file} has several pages",
                expected="one image in each file of a folder",
                got=f"{len(more) + 1} pages",
                hint="Name the file itself, or save each page as a file.",
            )
        images.append(image)
    is_packed = all(PACKED_NAME.fullmatch(file.name) for file in files)
    if is_packed and all(image.shape[2:] == (3,) for image in images):
        notes.append(f"each image of {path.name} has 24 masks, as `masks make --form dlp` writes")
        return unpacked(images)
    if len(files) > 1:
        notes.append(
            f"{len(files)} images of {path.name} in this order: {files[0].name} to {files[-1].name}"
        )
    notes += [f"{path.name}: {gap}" for gap in gaps_between(files)]
    return _stacked(path, images)


def read_one(
    path: Path,
    names: Sequence[str],
    what: str,
    variable: str = "",
    *,
    as_stored: bool = False,
    note: Callable[[str], object] = _log.info,
) -> Array:
    """Return an array of a file: ``variable``, else the one of these names, else the only one.

    ``note`` takes a sentence for each property that the file does not state.

    Raises `FileFormatError` if the file cannot be read, has no such array or several.
    """
    contents = read_contents(path, lossy=names is TRUTH, as_stored=as_stored)
    for text in contents.all_notes:
        note(text)
    return contents.one(names, what, variable).load()


def read_npz(path: Path) -> dict[str, Array]:
    """Return the arrays of numbers of a ``.npz`` file by name.

    Raises `FileFormatError` if it is missing or damaged.
    """
    members = _npz_members(path)
    return {name: array for name, array in members.items() if array is not None}


def _read_npz(path: Path, contents: Contents) -> None:
    for name, array in _npz_members(path).items():
        if array is None:
            contents.left_out[name] = "Python objects"
        else:
            contents.offer_array(name, array)


def _npz_members(path: Path) -> dict[str, Array | None]:
    """Return the arrays of a ``.npz`` file by name, None for objects."""
    require_regular(path, "a .npz file")
    with reading(path, "a .npz file"), zipfile.ZipFile(path) as archive:
        members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
        require_memory(sum(member.file_size for member in members), path)
        arrays = {}
        for member in members:
            where = f"{path}:{member.filename}"
            require_ratio(member.file_size, member.compress_size, where)
            with archive.open(member) as file:
                name = member.filename.removesuffix(".npy")
                arrays[name] = _numbers(file, member.file_size, where)
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


def _read_hdf5(path: Path, axes_of: Axes, contents: Contents) -> None:
    """List the datasets of an HDF5 file by their full names."""

    def load(name: str) -> Array:
        with open_for_reading(path, "measurement", trusted=True) as file:
            return _unscaled(file[name])

    def visit(name: str, node: h5py.Dataset | h5py.Group) -> None:
        if name.startswith(_MATLAB_PARTS):
            return
        if "MATLAB_sparse" in node.attrs:
            contents.left_out[name] = SPARSE
        elif not isinstance(node, h5py.Dataset):
            return
        elif "MATLAB_class" not in node.attrs:
            contents.offer(name, node.shape or (), node.dtype, lambda: load(name))
        elif "MATLAB_empty" in node.attrs:
            contents.left_out[name] = "empty"
        elif "MATLAB_object_decode" in node.attrs:
            contents.left_out[name] = "an object"
        elif node.attrs["MATLAB_class"] in (b"char", "char"):
            contents.left_out[name] = "text"
        else:
            shape = node.shape[::-1]
            axes = axes_of(shape)
            ordered = tuple(shape[axis] for axis in axes)
            contents.offer(name, ordered, node.dtype, lambda: _turned(load(name).T, axes))

    with open_for_reading(path, "measurement") as file, reading(path, "a measurement"):
        file.visititems(visit)


def _unscaled(node: h5py.Dataset) -> Array:
    """Read a dataset; netCDF's packed values are on the scale of its attributes."""
    array = read_dataset(node)
    with reading(f"{node.file.filename}:{node.name}", "a dataset"):
        scale, offset, missing = (
            node.attrs.get(name) for name in ("scale_factor", "add_offset", "_FillValue")
        )
        if scale is None and offset is None:
            return array
        values = array * np.float64(1 if scale is None else np.ravel(scale)[0])
        values += np.float64(0 if offset is None else np.ravel(offset)[0])
        return values if missing is None else np.where(array == missing, np.nan, values)


def _frames_first(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes of an array in MATLAB's order, (H, W), (H, W, B) or (H, W, B, N), with its
    pictures last.

    Python writes (B, H, W) to such files too: a first axis that is shorter than the last two is no
    height.
    """
    axes = tuple(range(len(shape)))
    if len(shape) < 3 or shape[0] < min(shape[-2:]):
        return axes
    return (*axes[:1:-1], 0, 1)


def _as_stored(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(range(len(shape)))


def _turned(array: Array, axes: tuple[int, ...]) -> Array:
    return np.ascontiguousarray(array.transpose(axes))


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
            got=", ".join(size_of(shape) for shape in sorted(shapes)),
            hint="tifffile stores three or four 8-bit frames as colours, unless "
            "photometric='minisblack' is given. "
            "Of pictures in colour, save one channel."
            if {shape[2:] for shape in shapes} <= {(3,), (4,)}
            else None,
        )
    types = Counter(str(image.dtype) for image in images)
    if len(types) > 1:
        raise CalibrationError(
            f"The images of {path} have different depths",
            expected="one depth, as their values are on one scale",
            got=", ".join(f"{count} of {name}" for name, count in types.items()),
            hint="Save all images with the same number of bits.",
        )
    return np.stack(images)
