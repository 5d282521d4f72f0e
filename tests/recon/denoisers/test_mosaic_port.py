"""Denoisers of mosaics: the planes of a frame together, for any phase."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sci_stream.model import BayerPhase
from sci_stream.optics.bayer import merge, split
from sci_stream.optics.calibration import Calibration
from sci_stream.ports import Denoiser, MosaicDenoiser
from sci_stream.recon.backend.half_precision import Precision
from sci_stream.recon.denoisers.colours import suited_to_colours
from sci_stream.recon.denoisers.ffdnet import FfdnetDenoiser
from sci_stream.recon.denoisers.registry import IdentityDenoiser, make_denoiser, named_prior
from sci_stream.recon.denoisers.weights import load_ffdnet, save_ffdnet
from sci_stream.recon.engine import Engine
from sci_stream.recon.settings import default_settings
from tests.recon.networks import random_weights

CPU = torch.device("cpu")
WEIGHTS = random_weights(3, 8)
NETWORK = FfdnetDenoiser(WEIGHTS, CPU, mosaic=WEIGHTS)


def _frames(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(1))


class Recorder:
    """A denoiser that notes the shapes of its arguments."""

    name = "recorder"
    takes_relative = True

    def __init__(self) -> None:
        self.shapes: set[tuple[int, ...]] = set()
        self.maps: set[tuple[int, ...]] = set()

    def __call__(
        self,
        x: torch.Tensor,
        _sigma: float | torch.Tensor,
        relative: torch.Tensor | None = None,
    ) -> torch.Tensor:
        self.shapes.add(tuple(x.shape))
        if relative is not None:
            self.maps.add(tuple(relative.shape))
        return x.clone()


class ColourRecorder(Recorder):
    """A denoiser with another one for mosaics."""

    def __init__(self) -> None:
        super().__init__()
        self.of_mosaics = Recorder()
        self.phase: BayerPhase | None = None

    def for_mosaic(self, bayer: BayerPhase) -> Denoiser:
        self.phase = bayer
        return self.of_mosaics


@pytest.mark.parametrize("level", [0.1, _frames(3, 1, 1) / 5])
@pytest.mark.parametrize("local", [False, True])
def test_network_of_planes_is_that_of_whole_mosaics(
    level: float | torch.Tensor, local: bool
) -> None:
    mosaics = _frames(3, 12, 16)
    relative = 0.5 + _frames(1, 12, 16) if local else None
    of_planes = NETWORK.for_mosaic(BayerPhase.RGGB)
    assert of_planes is not None
    by_plane = None if relative is None else split(relative)[:, 0]
    planes = of_planes(split(mosaics), level, by_plane)
    torch.testing.assert_close(merge(planes), NETWORK(mosaics, level, relative))


@pytest.mark.parametrize(
    ("phase", "mirrored"),
    [(BayerPhase.GRBG, [-1]), (BayerPhase.GBRG, [-2]), (BayerPhase.BGGR, [-1, -2])],
)
def test_phase_is_that_of_the_mirrored_mosaic(phase: BayerPhase, mirrored: list[int]) -> None:
    mosaics = _frames(2, 12, 16)
    network, of_rggb = NETWORK.for_mosaic(phase), NETWORK.for_mosaic(BayerPhase.RGGB)
    assert network is not None
    assert of_rggb is not None
    expected = merge(of_rggb(split(mosaics.flip(mirrored)), 0.1)).flip(mirrored)
    torch.testing.assert_close(merge(network(split(mosaics), 0.1)), expected)


def test_chunks_of_mosaics_change_nothing() -> None:
    planes = split(_frames(5, 8, 12))
    whole = NETWORK.for_mosaic(BayerPhase.RGGB)
    small = FfdnetDenoiser(WEIGHTS, CPU, mosaic=WEIGHTS, pixels_per_chunk=1).for_mosaic(
        BayerPhase.RGGB
    )
    assert whole is not None
    assert small is not None
    relative = 0.5 + _frames(4, 4, 6)
    torch.testing.assert_close(small(planes, 0.1, relative), whole(planes, 0.1, relative))


def test_network_without_one_of_mosaics_has_none() -> None:
    assert FfdnetDenoiser(WEIGHTS, CPU).for_mosaic(BayerPhase.RGGB) is None
    assert not isinstance(IdentityDenoiser(), MosaicDenoiser)


@pytest.mark.parametrize("bayer", [None, BayerPhase.GBRG])
def test_engine_passes_the_planes_of_a_frame_together(bayer: BayerPhase | None) -> None:
    rng = np.random.default_rng(0)
    phi = rng.random((4, 16, 24), np.float32)
    calibration = Calibration(phi=phi, bayer=bayer)
    prior = ColourRecorder()
    engine = Engine(calibration, prior, CPU, default_settings(CPU, "ffdnet-lite"))
    snapshot = calibration.snapshot("s", 0, phi.sum(0) * rng.random((16, 24), np.float32))
    engine.reconstruct(snapshot)
    assert prior.phase is bayer
    if bayer is None:
        assert prior.shapes == {(4, 16, 24)}
        assert not prior.of_mosaics.shapes
    else:
        assert not prior.shapes
        assert prior.of_mosaics.shapes == {(4, 4, 8, 12)}
        assert prior.of_mosaics.maps == {(4, 8, 12)}


def test_trained_stages_follow_the_network_of_mosaics() -> None:
    solver = named_prior("unrolled", CPU, None, Precision.FLOAT32)
    solver.before = recorder = ColourRecorder()
    phi = np.random.default_rng(0).random((4, 16, 24), np.float32)
    calibration = Calibration(phi=phi, bayer=BayerPhase.RGGB)
    engine = Engine(calibration, solver, CPU, default_settings(CPU, "unrolled"))
    engine.reconstruct(calibration.snapshot("s", 0, 0.5 * phi.sum(0)))
    assert not recorder.shapes
    assert recorder.of_mosaics.shapes == {(4, 4, 8, 12)}


def test_weights_of_mosaics_stay_so_in_their_file(tmp_path: Path) -> None:
    path = tmp_path / "mosaic.safetensors"
    for mosaic in (True, False):
        save_ffdnet(replace(WEIGHTS, mosaic=mosaic), path)
        assert load_ffdnet(path).mosaic is mosaic


def test_weights_of_mosaics_replace_the_shipped_ones_for_mosaics(tmp_path: Path) -> None:
    path = tmp_path / "mosaic.safetensors"
    save_ffdnet(replace(WEIGHTS, mosaic=True), path)
    denoiser = make_denoiser("ffdnet-lite", CPU, path)
    assert isinstance(denoiser, MosaicDenoiser)
    x = _frames(1, 8, 8)
    assert torch.equal(denoiser(x, 0.1), make_denoiser("ffdnet-lite", CPU)(x, 0.1))
    theirs, expected = (d.for_mosaic(BayerPhase.RGGB) for d in (denoiser, NETWORK))
    assert theirs is not None
    assert expected is not None
    assert torch.equal(theirs(split(x), 0.1), expected(split(x), 0.1))


@pytest.mark.parametrize("name", ["ffdnet", "ffdnet-lite"])
def test_shipped_networks_see_mosaics_without_a_further_word(name: str) -> None:
    denoiser = make_denoiser(name, CPU)
    mosaics, together = suited_to_colours(denoiser, BayerPhase.GRBG)
    assert together
    assert mosaics.name == name


def test_grey_weights_of_a_user_denoise_planes_apart(tmp_path: Path) -> None:
    path = tmp_path / "grey.safetensors"
    save_ffdnet(WEIGHTS, path)
    denoiser = make_denoiser("ffdnet-lite", CPU, path)
    assert suited_to_colours(denoiser, BayerPhase.RGGB) == (denoiser, False)
