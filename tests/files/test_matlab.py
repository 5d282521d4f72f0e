from __future__ import annotations

import io
import struct
from contextlib import suppress

import numpy as np
import pytest
import scipy.io
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sci_stream.errors import FileFormatError
from sci_stream.files.matlab import read_variables
from sci_stream.model import Array

NUMBERS = ["u1", "i1", "u2", "i2", "u4", "i4", "f4", "f8"]


def saved(compressed: bool = False, **variables: object) -> bytes:
    file = io.BytesIO()
    scipy.io.savemat(file, variables, do_compression=compressed)
    return file.getvalue()


@given(
    hnp.arrays(
        st.sampled_from(NUMBERS).map(np.dtype), hnp.array_shapes(min_dims=2, max_dims=4,
        max_side=5),
    ),
    st.booleans(),
)  # fmt: skip
def test_scipy_files_are_read_exactly(array: Array, compressed: bool) -> None:
    read = read_variables(saved(compressed, meas=array))["meas"]
    np.testing.assert_array_equal(read, array)
    assert read.dtype == array.dtype


def test_variables_that_are_no_numbers_have_the_reason() -> None:
    variables = read_variables(
        saved(
            text="hello",
            cell=np.array([1, "a"], object),
            z=np.ones((2, 2), complex),
            s=scipy.sparse.csc_matrix(np.eye(3)),
            nested={"mask": np.eye(3)},
            mask=np.eye(3),
        )
    )
    np.testing.assert_array_equal(variables.pop("mask"), np.eye(3))
    assert variables == {
        "text": "text",
        "cell": "a cell",
        "z": "complex numbers: save real(NAME)",
        "s": "a sparse matrix: save full(NAME)",
        "nested": "a structure",
    }


def test_numbers_stored_in_a_smaller_type_are_converted() -> None:
    def element(code: int, data: bytes) -> bytes:
        return struct.pack("<II", code, len(data)) + data + bytes(-len(data) % 8)

    small_name = struct.pack("<HH", 1, 4) + b"mask"
    body = element(6, struct.pack("<II", 6, 0)) + element(5, struct.pack("<ii", 1, 3)) + small_name
    content = bytes(126) + b"IM" + element(14, body + element(2, bytes([7, 8, 9])))
    mask = read_variables(content)["mask"]
    np.testing.assert_array_equal(mask, [[7.0, 8.0, 9.0]])
    assert mask.dtype == np.float64


@pytest.mark.parametrize("compressed", [False, True])
def test_truncated_file_is_refused(compressed: bool) -> None:
    content = saved(compressed, meas=np.arange(24.0).reshape(2, 3, 4))
    for length in range(129, len(content)):
        with pytest.raises(ValueError, match=r"cut|damaged|bytes|name"):
            read_variables(content[:length])


@given(st.data(), st.booleans())
def test_damaged_bytes_raise_declared_errors_alone(data: st.DataObject, compressed: bool) -> None:
    content = bytearray(
        saved(compressed, meas=np.arange(24.0).reshape(2, 3, 4), mask=np.eye(2, dtype=np.uint8))
    )
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ValueError, FileFormatError):
        read_variables(bytes(content))


@given(st.binary(max_size=300))
def test_random_bytes_raise_declared_errors_alone(tail: bytes) -> None:
    with suppress(ValueError, FileFormatError):
        read_variables(bytes(126) + b"IM" + tail)


def test_other_files_are_refused() -> None:
    with pytest.raises(ValueError, match="not a MATLAB file"):
        read_variables(b"not a measurement" * 40)
