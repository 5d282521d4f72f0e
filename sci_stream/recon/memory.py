"""A device that runs out of memory: how that is told from other failures, and what is said of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from sci_stream.errors import DeviceMemoryError
from sci_stream.optics.calibration import Calibration
from sci_stream.recon.chunks import PIXELS_PER_CHUNK, solve_bytes
from sci_stream.recon.device import describe_device

_CPU_WORDS = "can't allocate memory"
"""Of torch's allocator for the CPU, which raises no class of its own."""


def ran_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error of torch or NumPy means that there was no memory.

    >>> ran_out_of_memory(MemoryError()), ran_out_of_memory(ValueError("can't allocate memory"))
    (True, False)
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and _CPU_WORDS in str(error)


@contextlib.contextmanager
def within_memory(calibration: Calibration, device: torch.device) -> Iterator[None]:
    """Say what a solve needs where its device runs out of memory.

    Raises
    ------
    DeviceMemoryError
        In place of whatever torch or NumPy raise then.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not ran_out_of_memory(error):
            raise
        n_frames, (height, width) = calibration.n_frames, calibration.shape
        needed = solve_bytes(n_frames, height, width, pixels_per_chunk=PIXELS_PER_CHUNK[device.type])
        raise DeviceMemoryError(
            f"{describe_device(device)} ran out of memory",
            expected=f"about {needed / 2**30:.1f} GiB free",
            got=f"{n_frames} frames of {height}×{width} pixels",
            hint="Free the device of other work, or choose another in the rig.",
        ) from error
