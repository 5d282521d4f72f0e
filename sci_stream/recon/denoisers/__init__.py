"""The priors, by name. Adding one is a file here and an entry in `DENOISERS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from sci_stream.errors import ConfigError
from sci_stream.ports import Denoiser
from sci_stream.recon.denoisers.ffdnet import FfdnetDenoiser
from sci_stream.recon.denoisers.identity import IdentityDenoiser
from sci_stream.recon.denoisers.tv import TvDenoiser
from sci_stream.recon.weights import load_ffdnet


@dataclass(frozen=True, slots=True)
class DenoiserSpec:
    """How to make a denoiser, and how GAP is best run with it.

    ``make(device, weights)`` builds it; ``sigma_first`` and ``sigma_last`` (0–1 scale) are the schedule that suits it;
    ``iterations`` by type of device is what a snapshot is worth where time does not press, ``min_iterations`` what it
    takes to see something.
    """

    make: Callable[[torch.device, Path | None], Denoiser]
    needs_weights: bool
    sigma_first: float
    sigma_last: float
    iterations: Mapping[str, int]
    min_iterations: int
    accelerate: bool = True


DENOISERS: dict[str, DenoiserSpec] = {}
