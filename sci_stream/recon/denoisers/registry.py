"""The priors by name. To add one, write a module here and an entry in `DENOISERS`, or a plug-in in another package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from sci_stream.errors import ConfigError, WeightsError
from sci_stream.ports import Denoiser, VideoDenoiser
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
from sci_stream.recon.denoisers.tv import TvDenoiser
from sci_stream.recon.denoisers.variants import VARIANTS, shipped_weights
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
    small network; ``offline``: a running rig does not offer it, because its weights do not ship.
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


# Denoisers of the laboratory, which is another package.
_IN_LAB = frozenset({"wnnm", "vbm4d"})


def denoiser_spec(name: str) -> DenoiserSpec:
    """Return the specification of a denoiser.

    Raises
    ------
    ConfigError
        If the name is unknown, or a plug-in cannot be imported.
    """
    if name in DENOISERS:
        return DENOISERS[name]
    plugin = load_plugin(name)
    if plugin is not None:
        return _plugin_spec(name, plugin)
    hint = None
    if name in _IN_LAB:
        hint = "It is in another package: pip install sci-stream-lab, or `make install` in a checkout."
    elif "+" in name:
        hint = "Two denoisers in sequence: sci_stream_lab.paper.sequence, in Python, of the package sci-stream-lab."
    names = sorted({*DENOISERS, *plugin_names()})
    raise ConfigError(
        "Unknown denoiser", expected=f"one of {', '.join(names)}, or module:Class", got=repr(name), hint=hint
    )


def _plugin_spec(name: str, plugin: DenoiserPlugin) -> DenoiserSpec:
    def make(device: torch.device, weights: Weights, _precision: Precision) -> Denoiser:
        if isinstance(weights, FfdnetWeights):
            raise ConfigError(
                f"The denoiser {name!r} cannot use these weights", expected="a file that it reads", got="a network"
            )
        made = plugin.make(device, weights)
        return made if isinstance(made, VideoDenoiser) else CallableDenoiser(made, device, name)

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


def make_denoiser(
    name: str,
    device: torch.device,
    weights: Weights = None,
    precision: Precision = Precision.FLOAT32,
) -> Denoiser:
    """Make a denoiser by name.

    Parameters
    ----------
    name
        A key of `DENOISERS`, or a plug-in.
    device
        Where it will run.
    weights
        Checkpoint to load, or weights in memory, for denoisers that accept them. None for the shipped ones.
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
        raise ConfigError(
            f"The denoiser {name!r} takes no weights", got=str(weights) if isinstance(weights, Path) else "a network"
        )
    return spec.make(device, weights, precision)
