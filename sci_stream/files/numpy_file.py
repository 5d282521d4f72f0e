"""Read NumPy's files, after checking the size that they declare: NumPy allocates it first."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import IO

import numpy as np

from sci_stream.errors import FileFormatError
from sci_stream.file_guard import reading, require_memory, require_ratio, require_regular
from sci_stream.model import Array


def read_npy(path: Path) -> Array:
    """Read a ``.npy`` file.

    Raises `FileFormatError` if it is missing, damaged, or holds objects.
    """
    size = require_regular(path, "a .npy file")
    with reading(path, "a .npy file"), path.open("rb") as file:
        _check_header(file, size, path)
        file.seek(0)
        return np.asarray(np.load(file, allow_pickle=False))


def read_npz(path: Path) -> dict[str, Array]:
    """Read the arrays of a ``.npz`` file by name. Raises as `read_npy`."""
    require_regular(path, "a .npz file")
    with reading(path, "a .npz file"), zipfile.ZipFile(path) as archive:
        members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
        require_memory(sum(member.file_size for member in members), path)
        arrays = {}
        for member in members:
            where = f"{path}:{member.filename}"
            require_ratio(member.file_size, member.compress_size, where)
            with archive.open(member) as file:
                _check_header(file, member.file_size, where)
            with archive.open(member) as file:
                arrays[member.filename.removesuffix(".npy")] = np.asarray(
                    np.lib.format.read_array(file, allow_pickle=False)
                )
        return arrays


def _check_header(file: IO[bytes], size: int, where: object) -> None:
    """Raise unless the remaining bytes hold the array that a header declares."""
    version = np.lib.format.read_magic(file)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        return  # of field names in UTF-8: no array of numbers
    shape, _, dtype = read(file)
    if dtype.hasobject:
        raise FileFormatError(f"{where} holds Python objects", expected="numbers", got=dtype)
    declared = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if declared > size:
        raise FileFormatError(
            f"{where} is cut off or damaged", expected=f"{declared} bytes of shape {shape}", got=f"{size} bytes"
        )
    require_memory(declared, where)
