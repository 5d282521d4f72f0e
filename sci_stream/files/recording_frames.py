"""Raw counts or video of a recording while it is being written: an array that grows a row at a time."""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np

from sci_stream.files.recording_layout import GROWTH_ROWS, Compression
from sci_stream.model import Array


class FrameWriter:
    """Write the rows of ``raw`` or ``video``, in any order.

    Parameters
    ----------
    node
        As `create_layout` left it.
    compression
        Its own. Without any, rows are written past HDF5's cache, as they are.
    """

    def __init__(self, node: h5py.Dataset, compression: Compression) -> None:
        self._node = node
        self._packed = compression is not Compression.NONE
        self.dtype: np.dtype[Any] = np.dtype(node.dtype)

    def put(self, row: int, data: Array) -> int:
        """Write a row, (H, W) or (B, H, W), contiguous and of the dataset's dtype; return its bytes."""
        node = self._node
        if node.shape[0] <= row:
            node.resize((row // GROWTH_ROWS + 1) * GROWTH_ROWS, 0)
        if self._packed:
            node[row] = data
        elif data.ndim == 2:
            node.id.write_direct_chunk((row, 0, 0), data)
        else:
            for frame in range(data.shape[0]):
                node.id.write_direct_chunk((row, frame, 0, 0), data[frame])
        return data.nbytes

    def flush(self) -> None:
        """Hand what was written to the operating system."""
        self._node.flush()

    def trim(self, rows: int) -> None:
        """Cut or extend to the rows there are."""
        if self._node.shape[0] != rows:
            self._node.resize(rows, 0)
