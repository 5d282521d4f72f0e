"""The network with aligned neighbours: any B and size, motion followed, chunks, planes and distant frames apart."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sci_stream.model import BayerPhase, Snapshot, SnapshotId
from sci_stream.optics.calibration import Calibration
from sci_stream.ports import FinishedByFrames, MemoryReducible, RecordableDenoiser, VideoDenoiser
from sci_stream.recon.backend.half_precision import Precision
from sci_stream.recon.denoisers.ffdnet import FfdnetDenoiser
from sci_stream.recon.denoisers.registry import make_denoiser
from sci_stream.recon.denoisers.temporal import WholeVideoDenoiser, cycled_denoisers, ending_on_frames
from sci_stream.recon.denoisers.video_ffdnet import (
    FinishedVideoFfdnetDenoiser,
    VideoFfdnetDenoiser,
    network_input,
)
from sci_stream.recon.denoisers.weights import SUBPIXELS, VIDEO_INPUTS
from sci_stream.recon.engine import Engine
from sci_stream.recon.initialization.optical_flow import NEIGHBOURS, neighbour_velocities
from sci_stream.recon.settings import default_settings
from tests.recon.networks import random_weights

CPU = torch.device("cpu")
WEIGHTS = random_weights(layers=4, channels=16, inputs=VIDEO_INPUTS)
SIGMA = torch.tensor(0.1)


def make(**options: int) -> VideoFfdnetDenoiser:
    return VideoFfdnetDenoiser(WEIGHTS, CPU, **options)


def video(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def seen(x: torch.Tensor) -> torch.Tensor:
    return network_input(x, SIGMA, neighbour_velocities(x), slice(0, len(x)))


def moving_pattern(rows_per_frame: float, columns_per_frame: float, n_frames: int = 8, size: int = 96) -> torch.Tensor:
    frame = torch.arange(n_frames).view(-1, 1, 1)
    rows = torch.arange(size).view(1, -1, 1) - rows_per_frame * frame
    columns = torch.arange(size).view(1, 1, -1) - columns_per_frame * frame
    return 0.5 + 0.25 * torch.sin(rows / 4 + 1) * torch.cos(columns / 5) + 0.2 * torch.sin(rows / 11 + columns / 7)


def test_video_ffdnet_satisfies_the_ports() -> None:
    for port in (VideoDenoiser, RecordableDenoiser, MemoryReducible):
        assert isinstance(make(), port)
        assert isinstance(finished(), port)
    assert isinstance(finished(), FinishedByFrames)
    assert not isinstance(make(), FinishedByFrames)


@pytest.mark.parametrize(
    "shape", [(1, 1, 16, 16), (4, 2, 7, 9), (1, 50, 6, 8), (2, 3, 1, 5), (1, 8, 33, 40), (1, 2, 64, 64)]
)
def test_denoise_video_any_size_keeps_its_shape(shape: tuple[int, ...]) -> None:
    x = video(*shape)
    before = x.clone()
    out = make().denoise_video(x, 0.1)
    assert out.shape == x.shape
    assert out.isfinite().all()
    assert torch.equal(x, before)


def test_denoise_video_in_chunks_equals_the_whole() -> None:
    x = video(2, 7, 70, 31)
    relative = 0.5 + video(2, 70, 31, seed=2)
    whole, chunks = make(), make(pixels_per_chunk=1)
    torch.testing.assert_close(chunks.denoise_video(x, 0.1, relative), whole.denoise_video(x, 0.1, relative))


def test_denoise_video_planes_do_not_affect_each_other() -> None:
    x = video(3, 4, 24, 24)
    whole = make().denoise_video(x, 0.1)
    for plane in range(3):
        torch.testing.assert_close(make().denoise_video(x[plane : plane + 1], 0.1), whole[plane : plane + 1])


def test_denoise_video_distant_frames_do_not_affect_a_frame() -> None:
    x = video(1, 12, 24, 24)
    changed = x.clone()
    changed[:, 6:] += 0.1
    torch.testing.assert_close(make().denoise_video(changed, 0.1)[:, :2], make().denoise_video(x, 0.1)[:, :2])


def test_frames_without_a_video_are_denoised_as_videos_of_one() -> None:
    x = video(3, 16, 18)
    alone = torch.cat([make().denoise_video(frame[None, None], 0.1) for frame in x])[:, 0]
    torch.testing.assert_close(make()(x, 0.1), alone)


@pytest.mark.parametrize("velocity", [(0.0, 0.0), (1.0, 0.0), (0.0, -2.0), (1.0, 1.0)])
def test_neighbour_velocities_of_uniform_motion_are_its_velocity(velocity: tuple[float, float]) -> None:
    found = neighbour_velocities(moving_pattern(*velocity))
    inside = found[:, :, 4:-4, 4:-4]
    torch.testing.assert_close(inside.mean((0, 2, 3)), torch.tensor(velocity), atol=0.1, rtol=0)


def test_network_input_moving_pattern_neighbours_are_aligned() -> None:
    x = moving_pattern(1.0, 2.0)
    inputs = seen(x)
    assert inputs.shape == (8, VIDEO_INPUTS, 48, 48)
    differences = inputs[2:6, SUBPIXELS : (len(NEIGHBOURS) + 1) * SUBPIXELS, 6:-6, 6:-6]
    not_aligned = (x[1:] - x[:-1]).abs().mean()
    assert differences.abs().mean() < 0.15 * not_aligned


def test_network_input_missing_neighbours_differ_by_nothing() -> None:
    inputs = seen(video(4, 32, 32))
    before, after = inputs[0, SUBPIXELS : 3 * SUBPIXELS], inputs[-1, 3 * SUBPIXELS : 5 * SUBPIXELS]
    assert not before.any()
    assert not after.any()
    assert not seen(video(1, 32, 32))[:, SUBPIXELS:-1].any()


def test_network_input_some_frames_are_those_of_all() -> None:
    x = video(12, 32, 40)
    for frames in (slice(0, 2), slice(5, 6), slice(9, 12)):
        some = network_input(x, SIGMA, neighbour_velocities(x), frames)
        torch.testing.assert_close(some, seen(x)[frames])


def test_cycled_denoisers_of_a_video_network_alone_are_one() -> None:
    (only,) = cycled_denoisers(make(), 8, CPU, along_time=True)
    assert isinstance(only, WholeVideoDenoiser)


def finished() -> FinishedVideoFfdnetDenoiser:
    frames = FfdnetDenoiser(random_weights(layers=3, channels=8), CPU, name="frames")
    return FinishedVideoFfdnetDenoiser(WEIGHTS, CPU, Precision.FLOAT32, name="video", frame_prior=frames)


def turns(iterations: int, n_frames: int = 8) -> str:
    """Return the priors of a solve: V for a video, F for frames, the length of a group for its temporal frequencies."""
    priors = cycled_denoisers(finished(), n_frames, CPU, along_time=True)
    letters = {prior: str(2**k) for k, prior in enumerate(priors[1::2], start=1)} | dict.fromkeys(priors[2::2], "F")
    letters |= {priors[0]: "V", priors[-1]: "F"}
    return "".join(letters[prior] for prior in ending_on_frames(priors, iterations))


@pytest.mark.parametrize(
    ("iterations", "expected"),
    [(1, "V"), (2, "VV"), (4, "VVVF"), (8, "VVVVVV8F"), (12, "VVVVVVVV4F8F"), (24, 16 * "V" + "8F2F4F8F")],
)
def test_turns_frames_finish_what_a_video_network_began(iterations: int, expected: str) -> None:
    assert turns(iterations) == expected


def test_turns_single_frame_has_no_temporal_frequencies() -> None:
    assert turns(6, n_frames=1) == "VVVVFF"


@pytest.mark.parametrize("bayer", [None, BayerPhase.RGGB])
@pytest.mark.parametrize(("n_frames", "height", "width"), [(1, 33, 30), (2, 17, 23), (50, 20, 18)])
def test_reconstruct_any_b_and_size_beats_the_still_image(
    n_frames: int, height: int, width: int, bayer: BayerPhase | None
) -> None:
    if bayer is not None:  # a mosaic has even numbers of rows and columns
        height, width = 2 * height, 2 * width
    truth = moving_pattern(0.2, 0.3, n_frames, max(height, width))[:, :height, :width].numpy()
    masks = np.random.default_rng(0).integers(0, 2, truth.shape).astype(np.float32)
    masks[0] = 1  # so that every pixel is measured
    calibration = Calibration(phi=masks, bayer=bayer)
    snapshot = Snapshot(
        id=SnapshotId("test", 0, 0),
        counts=(masks * truth).sum(0),
        calibration_hash=calibration.hash,
        n_frames=n_frames,
        host_time_ns=0,
        truth=truth,
    )
    engine = Engine(calibration, make_denoiser("video-lite", CPU), CPU, default_settings(CPU, "video-lite"))
    video, report = engine.reconstruct(snapshot, 6)
    assert video.shape == truth.shape
    still = snapshot.counts / masks.sum(0)
    assert report.psnr_db is not None
    assert np.square(video - truth).mean() < np.square(still - truth).mean() + 1e-4


def test_reduce_memory_ends_at_one_frame() -> None:
    denoiser, x = make(), video(1, 4, 32, 32)
    before = denoiser.denoise_video(x, 0.1)
    while denoiser.reduce_memory():
        pass
    torch.testing.assert_close(denoiser.denoise_video(x, 0.1), before)


def test_reduce_memory_includes_the_frame_prior() -> None:
    denoiser, x = finished(), video(4, 32, 32)
    denoiser.frame_prior(x, 0.1)  # the video network has had no frames that it could take fewer of
    assert denoiser.reduce_memory()
