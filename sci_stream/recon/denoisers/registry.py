"""The priors by name. To add one, write a module here and an entry in `DENOISERS`, or a plug-in in another package.

Two of them joined by a plus sign are also a prior: ``tv+ffdnet`` denoises with the first while σ is high, then with the
second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from sci_stream.errors import ConfigError, WeightsError
from sci_stream.ports import Denoiser
from sci_stream.recon.algorithms.schedule import SigmaSchedule
from sci_stream.recon.backend.device import is_large_gpu
from sci_stream.recon.denoisers.external import (
    CallableDenoiser,
    DenoiserDefaults,
    DenoiserPlugin,
    load_plugin,
    plugin_names,
)
from sci_stream.recon.denoisers.ffdnet import FfdnetDenoiser
from sci_stream.recon.denoisers.half_precision import Precision
from sci_stream.recon.denoisers.nonlocal_priors.block_matching import block_matching_denoiser
from sci_stream.recon.denoisers.nonlocal_priors.wnnm import wnnm_denoiser
from sci_stream.recon.denoisers.sequence import in_sequence
from sci_stream.recon.denoisers.tv import TvDenoiser
from sci_stream.recon.denoisers.variants import VARIANTS, shipped_weights, variant_of
from sci_stream.recon.denoisers.video_ffdnet import FinishedVideoFfdnetDenoiser
from sci_stream.recon.denoisers.weights import VIDEO_INPUTS, FfdnetWeights, load_ffdnet

Weights = Path | FfdnetWeights | None
"""A checkpoint to load, a network already in memory, or none."""


class IdentityDenoiser:
    """No prior, to measure everything else: returns a copy of its input for any σ."""

    name = "identity"

    def graph_key(self, sigma: float) -> str:  # noqa: ARG002 - the port's signature
        """Return the same for all levels; see `sci_stream.ports.RecordableDenoiser`."""
        return self.name

    def __call__(self, x: torch.Tensor, sigma: float) -> torch.Tensor:  # noqa: ARG002 - the port's signature
        """Return a clone of ``x``."""
        return x.clone()


# The networks that finish a solve with a video network, of the same work.
_FINISHED_BY = {"video": "ffdnet", "video-lite": "ffdnet-lite"}


def _network(name: str) -> Callable[[torch.device, Weights, Precision], Denoiser]:
    """Return the factory of a network: of any weights that see neighbouring frames, or not, as the named variant."""

    def make(device: torch.device, weights: Weights, precision: Precision) -> Denoiser:
        network = _loaded(weights or shipped_weights(name))
        if network.sees_neighbours != (VARIANTS[name].inputs == VIDEO_INPUTS):
            raise WeightsError(
                f"These weights are not for the denoiser {name!r}",
                expected=f"{VARIANTS[name].inputs} input channels",
                got=network.kernels[0].shape[1],
                hint="Weights with 25 input channels see neighbouring frames: use 'video-lite' or 'video'. Those with "
                "5 do not: use 'ffdnet'.",
            )
        if not network.sees_neighbours:
            return FfdnetDenoiser(network, device, precision, name=name)
        finish = _FINISHED_BY[name]
        frames = FfdnetDenoiser(_loaded(shipped_weights(finish)), device, precision, name=finish)
        return FinishedVideoFfdnetDenoiser(network, device, precision, name=name, frame_prior=frames)

    return make


def _loaded(weights: Path | FfdnetWeights) -> FfdnetWeights:
    return load_ffdnet(weights) if isinstance(weights, Path) else weights


@dataclass(frozen=True, slots=True)
class DenoiserSpec:
    """Factory of a denoiser, and the best settings of GAP with it.

    ``make(device, weights, precision)`` builds it; ``takes_weights``: whether it accepts other weights than the shipped
    ones; ``sigma_first`` and ``sigma_last`` (0–1 scale) are its schedule, and ``sigma_still`` the first level if solves
    start from ȳ everywhere, which is further from the truth; ``iterations`` by type of device without a time limit,
    ``min_iterations`` the least for a recognisable picture; ``relaxation`` is GAP's α; ``along_time``: whether to
    denoise along time as well; ``linear_start``: whether to use the LMMSE start, which costs about an iteration of a
    small network; ``offline``: a running rig does not offer it, because it takes minutes per snapshot, or because its
    weights do not ship.
    """

    make: Callable[[torch.device, Weights, Precision], Denoiser]
    takes_weights: bool
    sigma_first: float
    sigma_still: float
    sigma_last: float
    iterations: Mapping[str, int]
    min_iterations: int
    relaxation: float = 1.0
    along_time: bool = False
    linear_start: bool = False
    offline: bool = False

    def iterations_on(self, device: torch.device) -> int:
        """Return the default number of iterations on this device."""
        return self.iterations.get(device.type, self.iterations["cpu"])


# Of FFDNet; those of other networks of its kind differ in the work that a device has time for.
_FFDNET = DenoiserSpec(
    make=_network("ffdnet"),
    takes_weights=True,
    sigma_first=30 / 255,
    sigma_still=50 / 255,
    sigma_last=10 / 255,
    iterations={"cpu": 20, "cuda": 40},
    min_iterations=4,
    relaxation=1.5,
    along_time=True,
    linear_start=True,
)

# Of priors that search for similar patches.
_NONLOCAL = DenoiserSpec(
    make=lambda *_: wnnm_denoiser(),
    takes_weights=False,
    sigma_first=50 / 255,
    sigma_still=100 / 255,
    sigma_last=6 / 255,
    iterations={"cpu": 48},
    min_iterations=4,
    relaxation=1.5,
    linear_start=True,
    offline=True,
)

DENOISERS: dict[str, DenoiserSpec] = {
    "tv": DenoiserSpec(
        make=lambda *_: TvDenoiser(),
        takes_weights=False,
        sigma_first=25 / 255,
        sigma_still=40 / 255,
        sigma_last=6 / 255,
        iterations={"cpu": 12, "cuda": 24},
        min_iterations=4,
        along_time=True,
        linear_start=True,
    ),
    "ffdnet": _FFDNET,
    "ffdnet-lite": replace(_FFDNET, make=_network("ffdnet-lite"), iterations={"cpu": 20}),
    "video-lite": replace(_FFDNET, make=_network("video-lite"), iterations={"cpu": 12}),
    # No weights to tune with yet.
    "video": replace(_FFDNET, make=_network("video"), offline=True),
    "wnnm": _NONLOCAL,
    "vbm4d": replace(_NONLOCAL, make=lambda *_: block_matching_denoiser()),
    "identity": DenoiserSpec(
        make=lambda *_: IdentityDenoiser(),
        takes_weights=False,
        sigma_first=1 / 255,
        sigma_still=1 / 255,
        sigma_last=1 / 255,
        iterations={"cpu": 1},
        min_iterations=1,
    ),
}


def chosen_denoiser(name: str, device: torch.device, *, weights: bool) -> str:
    """Return the name of a denoiser; for ``"auto"``, ``"ffdnet"`` with weights or on a large GPU, else ffdnet-lite."""
    if name != "auto":
        return name
    return "ffdnet" if weights or is_large_gpu(device) else "ffdnet-lite"


def denoiser_spec(name: str) -> DenoiserSpec:
    """Return the specification of a denoiser, or of two in sequence.

    Raises
    ------
    ConfigError
        If the name is unknown, or a plug-in cannot be imported.
    """
    parts = name.split("+")
    found = [_single_spec(part) for part in parts]
    if len(parts) > 2 or None in found:
        names = sorted({*DENOISERS, *plugin_names()})
        raise ConfigError(
            "Unknown denoiser",
            expected=f"one of {', '.join(names)}, module:Class, or two of them joined by +",
            got=repr(name),
        )
    first, then = found[0], found[-1]
    assert first is not None and then is not None  # noqa: PT018 - for mypy: checked above
    return first if len(parts) == 1 else _sequence_spec(first, then)


def _single_spec(name: str) -> DenoiserSpec | None:
    """Return the description of a denoiser of this package or of a plug-in; None if there is none of this name."""
    if name in DENOISERS:
        return DENOISERS[name]
    plugin = load_plugin(name)
    return None if plugin is None else _plugin_spec(name, plugin)


def _plugin_spec(name: str, plugin: DenoiserPlugin) -> DenoiserSpec:
    def make(device: torch.device, weights: Weights, _precision: Precision) -> Denoiser:
        if isinstance(weights, FfdnetWeights):
            raise ConfigError(
                f"The denoiser {name!r} cannot use these weights", expected="a file that it reads", got="a network"
            )
        return CallableDenoiser(plugin.make(device, weights), device, name)

    return external_spec(make, plugin.defaults, takes_weights=plugin.takes_weights)


def external_spec(
    make: Callable[[torch.device, Weights, Precision], Denoiser],
    defaults: DenoiserDefaults,
    *,
    takes_weights: bool = False,
) -> DenoiserSpec:
    """Return the description of a denoiser from outside this package."""
    return DenoiserSpec(
        make=make,
        takes_weights=takes_weights,
        sigma_first=defaults.sigma_first,
        sigma_still=defaults.sigma_still,
        sigma_last=defaults.sigma_last,
        iterations={"cpu": defaults.iterations},
        min_iterations=defaults.min_iterations,
        relaxation=defaults.relaxation,
        along_time=defaults.along_time,
        linear_start=defaults.linear_start,
    )


def _sequence_spec(first: DenoiserSpec, then: DenoiserSpec) -> DenoiserSpec:
    """Return the settings of two priors in sequence: σ from the start of the first to the end of the second."""
    sigma_first = max(first.sigma_first, then.sigma_last)

    def make(device: torch.device, weights: Weights, precision: Precision) -> Denoiser:
        switch_sigma = SigmaSchedule(sigma_first, then.sigma_last).sigma(0.5)
        return _make_sequence(first, then, device, weights, precision, switch_sigma=switch_sigma)

    return replace(
        then,
        make=make,
        takes_weights=first.takes_weights or then.takes_weights,
        sigma_first=sigma_first,
        sigma_still=max(first.sigma_still, then.sigma_last),
        min_iterations=max(first.min_iterations, then.min_iterations),
        # The smaller α is stable with both.
        relaxation=min(first.relaxation, then.relaxation),
    )


def _make_sequence(
    first: DenoiserSpec,
    then: DenoiserSpec,
    device: torch.device,
    weights: Weights,
    precision: Precision,
    *,
    switch_sigma: float,
) -> Denoiser:
    """Make two priors; a checkpoint is for the one whose variant it is, else for the last one that accepts it."""
    both = first.takes_weights and then.takes_weights
    for_first = first.takes_weights and (
        not then.takes_weights
        or (both and weights is not None and first is DENOISERS.get(variant_of(_loaded(weights)) or ""))
    )
    made_first = first.make(device, weights if for_first else None, precision)
    made_then = then.make(device, weights if then.takes_weights and not for_first else None, precision)
    return in_sequence(made_first, made_then, switch_sigma)


def make_denoiser(
    name: str,
    device: torch.device,
    weights: Weights = None,
    precision: Precision = Precision.FLOAT32,
    *,
    switch_sigma: float | None = None,
) -> Denoiser:
    """Make a denoiser by name.

    Parameters
    ----------
    name
        A key of `DENOISERS`, a plug-in, or two of them joined by a plus sign.
    device
        Where it will run.
    weights
        Checkpoint to load, or weights in memory, for denoisers that accept them. None for the shipped ones.
    precision
        Arithmetic of networks; others compute in the dtype of the frames.
    switch_sigma
        For two in sequence: σ above which the first is used, 0–1 scale. None for half of the schedule. Ignored for a
        single one.

    Raises
    ------
    ConfigError
        If the name is unknown, or weights are given to one that accepts none.
    WeightsError
        If the checkpoint cannot be used.
    """
    spec = denoiser_spec(name)
    if weights is not None and not spec.takes_weights:
        raise ConfigError(
            f"The denoiser {name!r} takes no weights", got=str(weights) if isinstance(weights, Path) else "a network"
        )
    if switch_sigma is not None and "+" in name:
        first, then = (denoiser_spec(part) for part in name.split("+"))
        return _make_sequence(first, then, device, weights, precision, switch_sigma=switch_sigma)
    return spec.make(device, weights, precision)
