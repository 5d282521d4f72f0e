"""Memory of a device: the need of a solve, how frames are cut into chunks, and the error when it
runs out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from sci_stream.errors import DeviceMemoryError
from sci_stream.optics.calibration import Calibration
from sci_stream.ports import MemoryPlanner, Solver
from sci_stream.recon.backend.device import describe_device, ran_out_of_memory


@contextlib.contextmanager
def within_memory(calibration: Calibration, device: torch.device, solver: Solver) -> Iterator[None]:
    """Turn out-of-memory errors into one that states the memory needed.

    Raises `DeviceMemoryError` in place of the errors of torch and NumPy.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not ran_out_of_memory(error):
            raise
        n_frames = calibration.n_frames
        height, width = calibration.shape
        planes = 1 if calibration.bayer is None else 4
        chunk = PIXELS_PER_CHUNK[device.type]
        if isinstance(solver, MemoryPlanner):
            needed = solver.solve_bytes(n_frames, height, width)
        else:
            needed = solve_bytes(n_frames, height, width, planes=planes, pixels_per_chunk=chunk)
        raise DeviceMemoryError(
            f"{describe_device(device)} ran out of memory",
            expected=f"about {needed / 2**30:.1f} GiB free",
            got=f"{n_frames} frames of {height}×{width} pixels",
            hint="Free the device of other work, or choose another in the rig.",
        ) from error


PIXELS_PER_CHUNK = {"cpu": 2**17, "cuda": 2**19}
"""Pixels that go through the network at once.

Two activations of 64 channels at half resolution are alive: 128 bytes a pixel in float32, 64 in 16
bits. A CPU keeps more of a layer in its cache that way, and memory stays free for the video. On a
GPU both are 34 MB, within the L2 cache of an A100 (40 MB) and of an H100 (50 MB); by these sizes,
not timed.
"""


def plan_chunks(n_frames: int, pixels_per_frame: int, max_pixels: int) -> list[int]:
    """Cut frames into chunks of nearly equal size.

    Equal sizes, because a network is prepared for each size of chunk, and because a small remainder
    would leave most of a device idle.

    Parameters
    ----------
    n_frames
        To cut, ≥ 0.
    pixels_per_frame
        Of one frame.
    max_pixels
        That a chunk may have; a single frame is never cut.

    Returns
    -------
    Frames of each chunk, at most one apart, larger ones first.

    >>> plan_chunks(88, 65536, 1048576)
    [15, 15, 15, 15, 14, 14]
    """
    if n_frames == 0:
        return []
    chunks = -(-n_frames // max(1, max_pixels // max(1, pixels_per_frame)))
    size, larger = divmod(n_frames, chunks)
    return [size + 1] * larger + [size] * (chunks - larger)


def solve_bytes(
    n_frames: int,
    height: int,
    width: int,
    *,
    planes: int = 1,
    pixels_per_chunk: int,
    features: torch.dtype | None = None,
) -> int:
    """Return the peak memory of a solve, bytes: of a sensor of this size, of which a mosaic has
    four planes.

    At the peak there are, as float32 videos: the masks and their temporal frequencies, the last
    estimate, and of the new iteration the projected frames, their temporal frequencies, the
    denoised ones and an intermediate; maps of a single frame, most of them for comparing starts;
    the masks in windows; activations of a network of 64 channels for a chunk, in and out, at half
    resolution; and a chunk of temporal frequencies, in and out.

    Recorded solves, of smaller videos only (`sci_stream.recon.backend.cuda_graph.MAX_PIXELS`), take
    up to ten videos more: the preceding video, both starts, the results, and the spectra of three
    models, half a video each.

    ``features``: number format in trained stages; None without them. Of the video they keep half
    the channels at half resolution, and in each layer a chunk waits for the next. For 7 layers of
    64 channels, as those shipped have; the sizes were fitted to measured peaks.
    """
    frame = height * width
    videos = (
        29 * n_frames * frame
    )  # seven in float32 and one byte a pixel for the check that all is finite
    maps = 4 * (40 * frame + 125 * min(frame // 9, 4096))
    network = 168 * max(frame // planes, min(pixels_per_chunk, n_frames * frame))
    iterations = videos + maps + network
    if features is None:
        return iterations
    item = features.itemsize
    chunk = max(frame, min(pixels_per_chunk, n_frames * frame))
    stages = (54 + 8 * item) * n_frames * frame + 200 * frame + 150 * item * chunk
    return max(iterations, stages)
