"""The priors by name.

To add one, write a module here and an entry in `DENOISERS`, or a plug-in in another package.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from sci_stream.errors import ConfigError, did_you_mean
from sci_stream.plugin_entries import plugin_names
from sci_stream.ports import Denoiser, Reconstructor, Solver
from sci_stream.recon.algorithms.noise_level import Sigma
from sci_stream.recon.algorithms.unrolled import UnrolledSolver
from sci_stream.recon.backend.device import is_large_gpu
from sci_stream.recon.backend.half_precision import Precision
from sci_stream.recon.denoisers.external import (
    DenoiserDefaults,
    DenoiserSpec,
    load_plugin,
)
from sci_stream.recon.denoisers.ffdnet import FfdnetDenoiser
from sci_stream.recon.denoisers.plugin_code import DENOISERS as DENOISERS_GROUP
from sci_stream.recon.denoisers.tv import TvDenoiser
from sci_stream.recon.denoisers.variants import MOSAIC, has_weights, shipped_weights
from sci_stream.recon.denoisers.weights import is_unrolled, load_ffdnet, load_unrolled


class IdentityDenoiser:
    """No prior, to measure everything else: returns a copy of its input for any σ."""

    name = "identity"
    recordable = True

    def __call__(self, x: torch.Tensor, sigma: Sigma) -> torch.Tensor:  # noqa: ARG002 - the port's signature
        """Return a clone of ``x``."""
        return x.clone()


def _network(name: str) -> Callable[[torch.device, Path | None, Precision], Denoiser]:
    """Return the factory of a network: of any weights, as the named variant.

    Weights of mosaics replace the shipped ones for mosaics, and grey weights both. Where none of a
    variant are shipped, mosaics take those of ``ffdnet-lite``: a tenth of the work, and still 1 to
    2.5 dB above the planes apart (lab/research/colour.md).
    """

    def make(device: torch.device, weights: Path | None, precision: Precision) -> Denoiser:
        mosaic = None
        if weights is not None and (theirs := load_ffdnet(weights)).mosaic:
            mosaic, weights = theirs, None
        elif weights is None:
            shipped = filter(has_weights, (name + MOSAIC, "ffdnet-lite" + MOSAIC))
            mosaic = next((load_ffdnet(shipped_weights(network)) for network in shipped), None)
        grey = load_ffdnet(weights or shipped_weights(name))
        return FfdnetDenoiser(grey, device, precision, name=name, mosaic=mosaic)

    return make


def _unrolled(device: torch.device, weights: Path | None, precision: Precision) -> UnrolledSolver:
    stages = load_unrolled(weights or shipped_weights("unrolled"))
    return UnrolledSolver(
        _network("ffdnet-lite")(device, None, precision), stages, device, precision
    )


_FFDNET = DenoiserDefaults(relaxation=1.5)

DENOISERS: dict[str, DenoiserSpec] = {
    "tv": DenoiserSpec(
        lambda *_: TvDenoiser(),
        DenoiserDefaults(
            sigma_first=25 / 255,
            sigma_still=40 / 255,
            sigma_last=6 / 255,
            iterations=12,
            gpu_iterations=24,
        ),
        takes_weights=False,
    ),
    "ffdnet": DenoiserSpec(_network("ffdnet"), replace(_FFDNET, gpu_iterations=40)),
    "ffdnet-lite": DenoiserSpec(_network("ffdnet-lite"), _FFDNET),
    # Eleven iterations and four stages take 2.4 to 2.5 times as long as twelve iterations with
    # ffdnet-lite.
    "unrolled": DenoiserSpec(_unrolled, replace(_FFDNET, iterations=15)),
    "identity": DenoiserSpec(
        lambda *_: IdentityDenoiser(),
        DenoiserDefaults(
            1 / 255,
            1 / 255,
            1 / 255,
            iterations=1,
            min_iterations=1,
            along_time=False,
            linear_start=False,
        ),
        takes_weights=False,
    ),
}


def chosen_denoiser(name: str, device: torch.device, weights: Path | None) -> str:
    """Return the name of a denoiser; for ``"auto"`` that of the weights, or by the device.

    With weights ``"unrolled"`` or ``"ffdnet"``, else ``"ffdnet"`` on a large GPU, or
    ``"unrolled"``.
    """
    if name != "auto":
        return name
    if weights is not None:
        return "unrolled" if is_unrolled(weights) else "ffdnet"
    return "ffdnet" if is_large_gpu(device) else "unrolled"


def frame_network(device: torch.device) -> str:
    """Return the name of the network of single frames that suits a device."""
    return "ffdnet" if is_large_gpu(device) else "ffdnet-lite"


def denoiser_spec(name: str) -> DenoiserSpec:
    """Return the specification of a denoiser of this package or of a plug-in.

    Raises `ConfigError` if the name is unknown, or a plug-in cannot be imported.
    """
    spec = DENOISERS.get(name) or load_plugin(name)
    if spec is not None:
        return spec
    names = sorted({*DENOISERS, *plugin_names(DENOISERS_GROUP)})
    raise ConfigError(
        "Unknown solver",
        expected=f"one of {', '.join(names)}, module:Class, file.py:Class or a file "
        ".pt, .pt2 or .onnx",
        got=repr(name),
        hint=did_you_mean(name, names)
        or "A plug-in is found once its package is installed, such as sci-stream-lab.",
    )


def make_denoiser(
    name: str,
    device: torch.device,
    weights: Path | None = None,
    precision: Precision = Precision.FLOAT32,
) -> Denoiser:
    """Make a denoiser by name, as `named_prior`.

    Raises `ConfigError` also if it has trained stages.
    """
    prior = named_prior(name, device, weights, precision)
    if isinstance(prior, Reconstructor):
        raise ConfigError("A denoiser is needed here, without trained stages", got=repr(name))
    return prior


def named_prior(
    name: str, device: torch.device, weights: Path | None, precision: Precision
) -> Solver:
    """Make a denoiser, or trained stages with the denoiser of the iterations before them, by name.

    Parameters
    ----------
    name
        A key of `DENOISERS`, or a plug-in.
    device
        Where it will run.
    weights
        Checkpoint to load, for denoisers that accept one. None for the shipped ones.
    precision
        Arithmetic of networks; others compute in the dtype of the frames.

    Raises
    ------
    ConfigError
        If the name is unknown, or weights are given to one that accepts none.
    WeightsError
        If the checkpoint cannot be used.
    """
    spec = denoiser_spec(name)
    if weights is not None and not spec.takes_weights:
        raise ConfigError(f"The denoiser {name!r} takes no weights", got=str(weights))
    return spec.make(device, weights, precision)
