"""Extreme measurements: each is solved correctly.

The reference is the algorithm written a second time, frame by frame and in float64, with none of
the engine's code.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by
from hypothesis import given
from hypothesis import strategies as st

from sci_stream.model import BayerPhase, Snapshot
from sci_stream.optics import bayer
from sci_stream.optics.calibration import BLIND_SHARE, Calibration
from sci_stream.optics.forward import forward, gram_diag, inverse_gram
from sci_stream.recon.algorithms.gap import Problem, cold_start, gap
from sci_stream.recon.backend.half_precision import Precision
from sci_stream.recon.denoisers.ffdnet import FfdnetDenoiser
from sci_stream.recon.denoisers.variants import shipped_weights
from sci_stream.recon.denoisers.weights import load_ffdnet
from sci_stream.recon.engine import Engine
from sci_stream.recon.settings import SolverSettings

CPU = torch.device("cpu")
LITE = load_ffdnet(shipped_weights("ffdnet-lite"))
SETTINGS = SolverSettings(iterations=8, relaxation=1.5, sigma_last=10 / 255, weigh_noise=False)

Video = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


def _reference(calibration: Calibration, counts: npt.NDArray[np.floating]) -> Doubles:
    """Return the engine's result as it should be, (B, H, W), a mosaic plane by plane."""
    y = (counts.astype(float) - calibration.dark) / calibration.full_scale_dn
    phi = calibration.phi.astype(float)
    saturated = counts >= (calibration.saturation_dn or np.inf)
    if calibration.bayer is None:
        return _reference_plane(y, phi, saturated)
    planes = zip(bayer.split(y), bayer.split(phi), bayer.split(saturated), strict=True)
    return bayer.merge(np.stack([_reference_plane(*plane) for plane in planes]))


def _reference_plane(y: Doubles, phi: Doubles, saturated: npt.NDArray[np.bool_]) -> Doubles:
    r = np.sum(phi**2, axis=0)
    measured = r > BLIND_SHARE * r.mean()
    still = _still(y, phi.sum(0), measured)
    v = np.repeat(still[None], len(phi), axis=0)
    r_inv = np.where(measured & ~saturated, 1 / np.maximum(r, 1e-6), 0.0)
    y_acc = y.copy()
    for k in range(SETTINGS.iterations):
        sigma = SETTINGS.sigma_first * (SETTINGS.sigma_last / SETTINGS.sigma_first) ** (
            k / (SETTINGS.iterations - 1)
        )
        y_acc = y_acc + SETTINGS.relaxation * (y - np.sum(phi * v, axis=0))
        x = v + phi * ((y_acc - np.sum(phi * v, axis=0)) * r_inv)
        v = np.stack([_denoised(frame, sigma) for frame in x])
    return v


def _still(y: Doubles, phi_sum: Doubles, measured: npt.NDArray[np.bool_]) -> Doubles:
    """Return y/Σφ, and where nothing was measured the mean of the pixels within two of it, else of
    all.
    """
    still = np.zeros_like(y)
    still[measured] = y[measured] / phi_sum[measured]
    everywhere = still[measured].mean() if measured.any() else 0.0
    for i, j in zip(*np.nonzero(~measured), strict=True):
        box = np.s_[max(0, i - 2) : i + 3, max(0, j - 2) : j + 3]
        near = measured[box]
        still[i, j] = still[box][near].mean() if near.any() else everywhere
    return still


def _denoised(frame: Doubles, sigma: float) -> Doubles:
    height, width = frame.shape
    mode = "reflect" if min(height, width) > 1 else "edge"
    padded = np.pad(frame, ((0, height % 2), (0, width % 2)), mode=mode)  # type: ignore[call-overload]  # one of two
    image = torch.from_numpy(np.stack([padded[i::2, j::2] for i in (0, 1) for j in (0, 1)])[None])
    h = torch.cat([image, torch.full_like(image[:, :1], sigma)], dim=1)
    for n, (kernel, bias) in enumerate(zip(LITE.kernels, LITE.biases, strict=True)):
        h = F.conv2d(h, kernel.double(), bias.double(), padding=1)
        h = h.relu() if n < LITE.layers - 1 else h
    clean = (image - h)[0].numpy()
    out = np.empty_like(padded)
    for n, (i, j) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
        out[i::2, j::2] = clean[n]
    return out[:height, :width]


def _masks(shape: tuple[int, int, int], kind: str) -> Video:
    random = np.random.default_rng(3)
    phi = random.random(shape).astype(np.float32)
    if kind == "binary":
        phi = (phi < 0.5).astype(np.float32)
    if kind == "never open":
        phi[:, ::5, ::3] = 0.0
        phi[:, shape[1] // 2 :, : shape[2] // 2] = 0.0
    if kind == "hardly open":
        phi[:, ::4, :] *= 0.01
    return phi


EDGES: dict[str, tuple[tuple[int, int, int], str, dict[str, object]]] = {
    "grey masks": ((4, 24, 32), "grey", {}),
    "binary masks": ((4, 24, 32), "binary", {}),
    "pixels that no mask opens": ((4, 24, 32), "never open", {}),
    "pixels that masks hardly open": ((4, 24, 32), "hardly open", {}),
    "saturated pixels": ((4, 24, 32), "grey", {"saturation_dn": 1500.0}),
    "one frame": ((1, 24, 32), "grey", {}),
    "fifty frames": ((50, 12, 16), "grey", {}),
    "odd rows and columns": ((3, 23, 31), "grey", {}),
    "tall": ((3, 61, 6), "grey", {}),
    "wide": ((3, 6, 61), "grey", {}),
    "a single row": ((3, 1, 20), "grey", {}),
    "a single pixel": ((3, 1, 1), "grey", {}),
    "a mosaic": ((3, 24, 32), "grey", {"bayer": BayerPhase.GRBG, "saturation_dn": 1500.0}),
    "a mosaic of odd planes": ((3, 14, 18), "never open", {"bayer": BayerPhase.BGGR}),
}


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize(
    ("precision", "rms", "most"),
    [(Precision.FLOAT32, 5e-5, 2e-4), (Precision.HALF, 5e-3, 4e-2)],
    ids=["float32", "half"],
)
def test_result_equals_double_precision_reference(  # noqa: PLR0917 - cases and fixtures
    edge: str,
    precision: Precision,
    rms: float,
    most: float,
    make_video: Callable[..., Video],
    expose: Callable[..., Snapshot],
) -> None:
    shape, kind, options = EDGES[edge]
    calibration = Calibration(
        phi=_masks(shape, kind),
        dark=np.full((), 64.0, np.float32),
        full_scale_dn=900.0,
        **options,  # type: ignore[arg-type]  # as declared above
    )
    snapshot = expose(calibration, make_video(*shape))
    video, report = Engine(
        calibration, FfdnetDenoiser(LITE, CPU, precision), CPU, SETTINGS
    ).reconstruct(snapshot)
    assert report.start_reason == "no_warm_start"
    reference = _reference(calibration, snapshot.counts)
    if edge == "a single pixel" and precision is Precision.HALF:
        # the network sees only padding around it, so that neighbours do not average out rounding
        rms *= 5
    assert float(np.sqrt(np.mean((video - reference) ** 2))) < rms
    np.testing.assert_allclose(video, reference, rtol=0, atol=most)
    assert (report.saturated_fraction > 0) == ("saturation_dn" in options)


@given(
    seed=st.integers(0, 1000),
    b=st.integers(1, 6),
    h=st.integers(1, 9),
    w=st.integers(1, 9),
    relaxation=st.sampled_from([0.0, 1.0, 1.5]),
)
def test_projection_fits_grey_measurement_to_float_precision(
    seed: int, b: int, h: int, w: int, relaxation: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    phi = 0.05 + 0.95 * torch.rand(b, h, w, generator=generator)
    phi[:, 0, 0] = 0.0
    y = forward(phi, torch.rand(b, h, w, generator=generator))
    r_inv = inverse_gram(gram_diag(phi))
    missing = y - forward(phi, cold_start(y, phi, r_inv))
    explained = []

    def blur(x: torch.Tensor, sigma: float) -> torch.Tensor:
        explained.append(forward(phi, x))
        return x + sigma * (x.mean() - x)

    y_acc = y
    start = cold_start(y, phi, r_inv)
    for d in gap(start, Problem(y, phi, r_inv, (blur,), relaxation=relaxation), [0.5, 0.3, 0.2]):
        # With acceleration the accumulated measurement is fitted.
        y_acc = y_acc + relaxation * missing
        torch.testing.assert_close(explained[-1][r_inv > 0], y_acc[r_inv > 0], rtol=1e-5, atol=1e-5)
        missing = y - forward(phi, d)
