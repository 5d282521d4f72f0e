"""Denoisers of whole videos: the solver passes the video, for any B, size and Bayer plane."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sci_stream.model import BayerPhase, Snapshot, SnapshotId
from sci_stream.optics.calibration import Calibration
from sci_stream.ports import VideoDenoiser
from sci_stream.recon.denoisers.registry import IdentityDenoiser
from sci_stream.recon.denoisers.temporal import WholeVideoDenoiser, cycled_denoisers
from sci_stream.recon.engine import Engine
from sci_stream.recon.settings import default_settings

CPU = torch.device("cpu")


class TemporalMean:
    """Average each frame with its neighbours, and note the shapes of videos and σ maps."""

    name = "temporal-mean"
    takes_relative = True

    def __init__(self) -> None:
        self.seen: list[tuple[int, ...]] = []
        self.maps: list[tuple[int, ...]] = []

    def __call__(self, x: torch.Tensor, sigma: float | torch.Tensor) -> torch.Tensor:
        return self.denoise_video(x.unsqueeze(1), sigma).squeeze(1)

    def denoise_video(
        self,
        x: torch.Tensor,
        sigma: float | torch.Tensor,  # noqa: ARG002 - the port's signature
        relative: torch.Tensor | None = None,
    ) -> torch.Tensor:
        self.seen.append(tuple(x.shape))
        if relative is not None:
            self.maps.append(tuple(relative.shape))
        before, after = torch.cat((x[:, :1], x[:, :-1]), 1), torch.cat((x[:, 1:], x[:, -1:]), 1)
        return (before + x + after) / 3


def video(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(1))


def test_video_port_is_recognised_by_its_method() -> None:
    assert isinstance(TemporalMean(), VideoDenoiser)
    assert not isinstance(IdentityDenoiser(), VideoDenoiser)


def test_cycled_denoisers_pass_whole_videos() -> None:
    (only,) = cycled_denoisers(TemporalMean(), 8, CPU, along_time=True)
    assert isinstance(only, WholeVideoDenoiser)
    x = video(2, 4, 8, 8)
    assert torch.equal(only(x, 0.1), TemporalMean().denoise_video(x, 0.1))
    assert torch.equal(only(x[0], 0.1), only(x, 0.1)[0])


@pytest.mark.parametrize(
    ("n_frames", "size", "bayer"), [(1, 24, None), (2, 31, None), (24, 16, None), (6, 32, "RGGB")]
)
def test_engine_solves_with_a_video_denoiser(n_frames: int, size: int, bayer: str | None) -> None:
    rng = np.random.default_rng(0)
    phi = rng.random((n_frames, size, size), dtype=np.float32)
    phase = None if bayer is None else BayerPhase[bayer]
    calibration = Calibration(phi=phi, full_scale_dn=1000.0, bit_depth=16, bayer=phase)
    prior = TemporalMean()
    engine = Engine(calibration, prior, CPU, default_settings(CPU, "ffdnet-lite"))
    counts = np.rint(1000 * phi.sum(0) * 0.5).astype(np.uint16)
    snapshot = Snapshot(SnapshotId("s", 0, 0), counts, calibration.hash, n_frames, host_time_ns=0)
    result, report = engine.reconstruct(snapshot, 4)
    assert float(np.median(result)) == pytest.approx(0.5, abs=0.01)
    planes, side = (1, size) if phase is None else (4, size // 2)
    assert prior.seen == [(planes, n_frames, side, side)] * report.iterations
    assert set(prior.maps) == {(planes, side, side)}
