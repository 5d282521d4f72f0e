"""A network of others as a solver: its declaration, and the adapter that calls it.

Published networks are called as ``model(y, Phi, Phi_s)``: the measurement, the masks and their sum.
They differ in small things, which the declaration `Network` names, and the adapter finds where it
can.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by
from torch import Tensor

from sci_stream.errors import InputError
from sci_stream.file_guard import in_words
from sci_stream.ports import Abilities, Coded
from sci_stream.recon.backend.device import half_dtype, is_lost, ran_out_of_memory
from sci_stream.recon.networks.files import OnnxModel, load_file, load_weights
from sci_stream.recon.networks.tiles import blended, tiles

_INPUTS = ("y", "Phi", "Phi_s")
# Sides of pictures that networks with at most five halvings take.
_MULTIPLE = 32
# Tiles are not made smaller than this when memory runs out: their borders would show.
_MIN_TILE_PX = 64
_NAMED = ("phi", "mask")
_DECLARE = (
    "Declare how it is called: sci_stream.Network(model, inputs=…, output=…), see "
    "docs/how-to/network.md."
)


@dataclass(frozen=True, eq=False)
class Network:
    """A network that recovers the frames at once, with what differs from ``model(y, Phi, Phi_s)``.

    Parameters
    ----------
    model
        A `torch.nn.Module`, a class or function without arguments that makes one, another function,
        or a file of TorchScript (``.pt``), torch.export (``.pt2``) or ONNX (``.onnx``).
    inputs
        The arguments by name: ``"y"``, ``"Phi"``, ``"Phi_s"``; ``"mean"``, y/Phi_s; ``"mask"``, Phi
        without the first dimension; ``"noise"``, the variance of y; ``"start"``, an estimate of the
        frames from y or the preceding video. Anything else is passed as it is. Or a function that
        returns all arguments for a `sci_stream.ports.Coded`. By default as many of the first three
        as it accepts.
    output
        Index or key of the video in a list, tuple or dictionary, or a function of the result.
    y_scale, white
        Factor of y, and value of white in the video: 1 where a white frame adds 1 to y through an
        open mask.
    frames
        The only number of frames that it recovers.
    tile
        The only size in pixels that it takes, of a square or (height, width): larger pictures are
        cut into tiles that overlap.
    planes
        It takes the four planes of a colour camera as one batch; else one after the other.
    half
        It may compute in 16 bits, by `torch.autocast`.
    data_step
        Correct its video by the part of the residual that is no noise.
    recordable
        Its work may be recorded as a CUDA graph.
    pickled
        Its weights may be read by pickle, which can run any code. Say so of your own files alone.
    """

    model: Any
    inputs: Sequence[Any] | Callable[[Coded], Sequence[Any]] | None = None
    output: int | str | Callable[[Any], Any] = -1
    y_scale: float = 1.0
    white: float = 1.0
    frames: int | None = None
    tile: int | tuple[int, int] | None = None
    planes: bool = False
    half: bool = False
    data_step: bool = True
    recordable: bool = False
    pickled: bool = False

    def load(self, device: torch.device, weights: Path | None, name: str) -> NetworkSolver:
        """Make the network with its weights on a device.

        Raises `ConfigError` if it cannot be made, `WeightsError` if the weights do not fit.
        """
        model = self.model
        if isinstance(model, str | Path):
            model = load_file(Path(model), device)
        elif inspect.isclass(model) or (inspect.isfunction(model) and not _arguments(model)):
            model = model()
        if weights is not None:
            load_weights(model, weights, pickled=self.pickled)
        if isinstance(model, torch.nn.Module):
            model = model.to(device)
            with contextlib.suppress(NotImplementedError):  # exported programs are in this mode
                model.eval()
        return NetworkSolver(self, model, device, name)


def takes_problem(model: Any) -> bool:
    """Return whether a module or function is called with a measurement and masks."""
    if inspect.isclass(model):
        return False
    names = _arguments(model)
    masks = any(word in name for name in names for word in _NAMED)
    return len(names) >= len(_INPUTS) or (len(names) > 1 and masks)


def _arguments(model: Any) -> list[str]:
    """Return the names, in small letters, of arguments by position that have no default, and of
    those for masks.
    """
    if isinstance(model, torch.jit.ScriptModule):
        schema = model.forward.schema  # type: ignore[attr-defined] # of a script method
        return [argument.name.lower() for argument in schema.arguments[1:]]
    called = model.forward if isinstance(model, torch.nn.Module) else model
    try:
        parameters = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):  # some compiled functions have none
        return []
    by_place = [one for one in parameters if one.kind is not one.KEYWORD_ONLY]
    return [
        one.name.lower()
        for one in by_place
        if one.kind is not one.VAR_POSITIONAL
        and (one.default is one.empty or any(word in one.name.lower() for word in _NAMED))
    ]


class NetworkSolver:
    """A network on a device: a `sci_stream.ports.Reconstructor`."""

    def __init__(
        self, declared: Network, model: Callable[..., Any], device: torch.device, name: str
    ) -> None:
        self.name = name
        self.recordable = declared.recordable
        self._declared = declared
        self._model = model
        self._device = device
        self._planes = declared.planes
        tile = declared.tile
        needed = _arguments(model)
        if isinstance(model, OnnxModel):
            tile = tile or model.size
            needed = [one.name for one in model.inputs]
        self._tile = (tile, tile) if isinstance(tile, int) else tile
        self._may_cut = self._tile is None
        self._size = (0, 0)
        self._inputs = declared.inputs or _INPUTS[: len(needed) or None]
        # Height and width are multiples of the first; y has the shape (N, 1, H, W), or (N, H, W).
        self._ways = [*itertools.product((1, _MULTIPLE), (False, True))]

    @property
    def abilities(self) -> Abilities:
        """See `sci_stream.ports.Reconstructor`."""
        declared = self._declared
        start = callable(self._inputs) or "start" in self._inputs
        return Abilities(start=start, frames=declared.frames, data_step=declared.data_step)

    def reduce_memory(self) -> bool:
        """Take planes apart, then smaller tiles; see `sci_stream.ports.MemoryReducible`."""
        if self._planes:
            self._planes = False
            return True
        smaller = [-(-side // 2 // 16) * 16 for side in self._size]
        if not self._may_cut or min(smaller) < _MIN_TILE_PX:
            return False
        self._tile = self._size = (smaller[0], smaller[1])
        return True

    def reconstruct(
        self,
        problem: Coded,
        steps: int,  # noqa: ARG002 - it has one
        between: Callable[[], None],
    ) -> Iterator[Tensor]:
        """Yield the video; see `sci_stream.ports.Reconstructor`."""
        count = problem.phi.shape[1]
        if self._declared.frames not in (None, count):
            raise InputError(
                f"The network {self.name!r} recovers another number of frames",
                expected=f"{self._declared.frames} masks, as it declares",
                got=count,
            )
        between()
        # Where nothing valid was measured, a guess disturbs less than 0.
        known = torch.where(problem.r_inv > 0, problem.y, problem.still * problem.phi.sum(1))
        problem = problem._replace(y=known)
        if self._planes:
            yield self._video(problem)
        else:
            planes = zip(*(torch.split(field, 1) for field in problem), strict=True)
            yield torch.cat([self._video(Coded(*plane)) for plane in planes])

    def _video(self, problem: Coded) -> Tensor:
        """Return the video, (N, B, H, W), by the first way that works; the next tries it first."""
        failures = []
        for way in list(self._ways):
            try:
                video = self._tiled(problem, *way)
            except Exception as error:  # a network raises anything for shapes that it does not take
                if ran_out_of_memory(error) or is_lost(error):
                    raise
                failures.append(error)
            else:
                self._ways.sort(key=lambda other: other != way)
                return video
        raise InputError(
            f"The network {self.name!r} failed",
            expected=f"a video {(*problem.phi.shape,)}, as the masks",
            got=in_words(failures[0]),
            hint=_DECLARE,
        ) from failures[0]

    def _tiled(self, problem: Coded, multiple: int, channel: bool) -> Tensor:
        size = problem.y.shape[-2:]
        whole = [-(-side // multiple) * multiple for side in size]
        height, width = self._tile or whole
        self._size = (height, width)
        below = max(height - size[0], 0)
        right = max(width - size[1], 0)
        if below or right:
            padded = (F.pad(part, (0, right, 0, below), mode="replicate") for part in problem)
            problem = Coded(*padded)
        places = tiles(problem.y.shape[-2:], (height, width))
        videos = (
            self._called(Coded(*(part[place] for part in problem)), channel) for place in places
        )
        video = blended(videos, places, problem.phi)
        return video[..., : size[0], : size[1]]

    def _called(self, problem: Coded, channel: bool) -> Tensor:
        """Call the network with a whole problem."""
        declared = self._declared
        arguments = self._arguments(problem, channel)
        dtype = half_dtype(self._device) if declared.half else None
        with torch.autocast(self._device.type, dtype=dtype, enabled=dtype is not None):
            result = self._model(*arguments)
        video = _chosen(result, declared.output)
        shape = problem.phi.shape
        if [side for side in video.shape if side != 1] != [side for side in shape if side != 1]:
            raise ValueError(f"it returned the shape {(*video.shape,)}")
        video = video.detach().to(self._device, torch.float32, copy=True).reshape(shape)
        return video if declared.white == 1.0 else video / declared.white

    def _arguments(self, problem: Coded, channel: bool) -> list[Any]:
        """Return the arguments: copies, as a network may write to them."""
        if callable(self._inputs):
            return list(self._inputs(problem))
        y = problem.y * self._declared.y_scale
        total = problem.phi.sum(1)
        total = torch.where(total == 0, 1.0, total)
        known = {"y": y, "Phi_s": total, "mean": y / total, "noise": problem.noise.clone()}
        if channel:
            known = {name: image.unsqueeze(1) for name, image in known.items()}
        known["Phi"] = problem.phi.clone()
        known["mask"] = known["Phi"][0]
        known["start"] = problem.start.clone()
        return [known.get(one, one) if isinstance(one, str) else one for one in self._inputs]


def _chosen(result: Any, output: int | str | Callable[[Any], Any]) -> Tensor:
    """Return the video among the results of a network."""
    if callable(output):
        result = output(result)
    elif isinstance(output, str):
        result = result[output]
    while isinstance(result, list | tuple):
        result = result[output if isinstance(output, int) else -1]
    if not isinstance(result, Tensor):
        raise TypeError(f"it returned {type(result).__name__}, not a tensor")
    return result
