"""The priors, by name. Adding one is a file here and an entry in `DENOISERS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from sci_stream.errors import ConfigError
from sci_stream.ports import Denoiser
from sci_stream.recon.denoisers.ffdnet import FfdnetDenoiser
from sci_stream.recon.denoisers.identity import IdentityDenoiser
from sci_stream.recon.denoisers.tv import TvDenoiser
from sci_stream.recon.variants import shipped_weights
from sci_stream.recon.weights import FfdnetWeights, load_ffdnet

Weights = Path | FfdnetWeights | None
"""A checkpoint to load, a network already in memory, or none."""


def _make_tv(_device: torch.device, _weights: Weights) -> Denoiser:
    return TvDenoiser()


def _make_identity(_device: torch.device, _weights: Weights) -> Denoiser:
    return IdentityDenoiser()


def _make_ffdnet(device: torch.device, weights: Weights) -> Denoiser:
    if weights is None:
        raise ValueError("FFDNet needs a path to its weights")
    return FfdnetDenoiser(_loaded(weights), device)


def _make_ffdnet_lite(device: torch.device, weights: Weights) -> Denoiser:
    return FfdnetDenoiser(_loaded(weights or shipped_weights("ffdnet-lite")), device, name="ffdnet-lite")


def _loaded(weights: Path | FfdnetWeights) -> FfdnetWeights:
    return load_ffdnet(weights) if isinstance(weights, Path) else weights


@dataclass(frozen=True, slots=True)
class DenoiserSpec:
    """How to make a denoiser, and how GAP is best run with it.

    ``make(device, weights)`` builds it; ``takes_weights`` says whether it can be given any, ``needs_weights`` whether
    it must be, none having come with the product; ``sigma_first`` and ``sigma_last`` (0–1 scale) are the schedule that
    suits it; ``iterations`` by type of device is what a snapshot is worth where time does not press,
    ``min_iterations`` what it takes to see something; ``relaxation`` and ``momentum`` are GAP's α and β.
    """

    make: Callable[[torch.device, Weights], Denoiser]
    takes_weights: bool
    needs_weights: bool
    sigma_first: float
    sigma_last: float
    iterations: Mapping[str, int]
    min_iterations: int
    relaxation: float = 1.0
    momentum: float = 0.0

    def iterations_on(self, device: torch.device) -> int:
        """Return what a snapshot is worth on this device."""
        return self.iterations.get(device.type, self.iterations["cpu"])


DENOISERS: dict[str, DenoiserSpec] = {
    "tv": DenoiserSpec(
        make=_make_tv,
        takes_weights=False,
        needs_weights=False,
        sigma_first=40 / 255,
        sigma_last=6 / 255,
        iterations={"cpu": 24, "cuda": 60},
        min_iterations=4,
    ),
    "ffdnet": DenoiserSpec(
        make=_make_ffdnet,
        takes_weights=True,
        needs_weights=True,
        sigma_first=50 / 255,
        sigma_last=10 / 255,
        iterations={"cpu": 20, "cuda": 40},
        min_iterations=4,
        relaxation=1.5,
        momentum=0.1,
    ),
    "ffdnet-lite": DenoiserSpec(
        make=_make_ffdnet_lite,
        takes_weights=True,
        needs_weights=False,
        sigma_first=50 / 255,
        sigma_last=10 / 255,
        iterations={"cpu": 30, "cuda": 60},
        min_iterations=4,
        relaxation=1.5,
        momentum=0.1,
    ),
    "identity": DenoiserSpec(
        make=_make_identity,
        takes_weights=False,
        needs_weights=False,
        sigma_first=1 / 255,
        sigma_last=1 / 255,
        iterations={"cpu": 1},
        min_iterations=1,
    ),
}


def denoiser_spec(name: str) -> DenoiserSpec:
    """Look a denoiser up.

    Raises
    ------
    ConfigError
        If there is none of this name.
    """
    try:
        return DENOISERS[name]
    except KeyError:
        raise ConfigError(
            "Unknown denoiser", expected=f"one of {', '.join(sorted(DENOISERS))}", got=repr(name)
        ) from None


def make_denoiser(name: str, device: torch.device, weights: Weights = None) -> Denoiser:
    """Make a denoiser by name.

    Parameters
    ----------
    name
        A key of `DENOISERS`.
    device
        Where it will run.
    weights
        Checkpoint to load, or weights that were read elsewhere, for those that take them. None for those that came with
        the product, where they did.

    Raises
    ------
    ConfigError
        If there is none of this name, or weights are needed and missing, or given to one that takes none.
    WeightsError
        If the checkpoint cannot be used.
    """
    spec = denoiser_spec(name)
    if spec.needs_weights and weights is None:
        raise ConfigError(
            f"The denoiser {name!r} needs weights",
            expected="a path to a checkpoint",
            got="none",
            hint="Name one in the rig, or choose the denoiser 'tv', which needs none.",
        )
    if weights is not None and not spec.takes_weights:
        raise ConfigError(
            f"The denoiser {name!r} takes no weights", got=str(weights) if isinstance(weights, Path) else "a network"
        )
    return spec.make(device, weights)
