"""Denoisers from outside this package: any callable or network, given as an object or as a plug-in
by name.

A plug-in is a class or function that is called with the device and returns a denoiser, or a
function of images and σ, which is one. It is named by its entry point of the group
``sci_stream.denoisers``, as ``module:Class``, or as ``file.py:function``.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sci_stream.errors import ConfigError, InputError, SciStreamError
from sci_stream.file_guard import in_words
from sci_stream.plugin_entries import imported, plugin_entry
from sci_stream.ports import Reconstructor, Solver, VideoDenoiser
from sci_stream.recon.algorithms.noise_level import Sigma
from sci_stream.recon.backend.device import is_lost, ran_out_of_memory
from sci_stream.recon.backend.half_precision import Precision
from sci_stream.recon.denoisers.plugin_code import DENOISERS, NETWORK_FILES, source_of
from sci_stream.recon.networks.network import Network, takes_problem

_IMAGES = (
    "It gets tensors (N, H, W), a torch.nn.Module (N, 1, H, W); NumPy and OpenCV need "
    "images.numpy(), on a CPU."
)


@dataclass(frozen=True)
class DenoiserDefaults:
    """Solver settings that suit a denoiser; a plug-in may have one as its attribute ``defaults``.

    Parameters
    ----------
    sigma_first, sigma_last
        Highest and lowest noise level that the denoiser is called with, 0–1 scale.
    sigma_still
        ``sigma_first`` where solves begin with the same still image in all frames, which is further
        from the truth.
    iterations, min_iterations
        Iterations of a snapshot if time permits, and the fewest that give a recognisable picture.
    gpu_iterations
        As ``iterations``, on a GPU; 0 for the same.
    relaxation
        α of `sci_stream.recon.algorithms.gap.gap`, 0 ≤ α < 2.
    along_time
        Also denoise groups of frames along time, see `sci_stream.recon.denoisers.temporal`.
    linear_start
        Begin with the linear estimate, which costs about an iteration of a small network, see
        `sci_stream.recon.initialization.lmmse`.
    """

    sigma_first: float = 30 / 255
    sigma_still: float = 50 / 255
    sigma_last: float = 10 / 255
    iterations: int = 20
    min_iterations: int = 4
    gpu_iterations: int = 0
    relaxation: float = 1.0
    along_time: bool = True
    linear_start: bool = True


@dataclass(frozen=True)
class DenoiserSpec:
    """A solver by name: ``make(device, weights, precision)`` creates it.

    ``takes_weights``: whether it accepts other weights than the shipped ones.
    """

    make: Callable[[torch.device, Path | None, Precision], Solver]
    defaults: DenoiserDefaults = DenoiserDefaults()
    takes_weights: bool = True


def load_plugin(name: str) -> DenoiserSpec | None:
    """Load a denoiser plug-in; None if ``name`` is none that is installed, no ``module:Class`` or
    ``file.py:function``.

    Raises `ConfigError` if it cannot be imported, or is not a class or function that accepts a
    device.
    """
    if name.endswith(NETWORK_FILES):
        return DenoiserSpec(lambda device, weights, _: Network(name).load(device, weights, name))
    path, _, attribute = name.rpartition(":")
    if path.endswith(".py"):
        load: Callable[[], Any] = partial(_from_file, Path(path), attribute)
    else:
        named = importlib.metadata.EntryPoint(name, name, DENOISERS)
        entry = named if path else plugin_entry(DENOISERS, name)
        if entry is None or entry.pattern.match(entry.value) is None:
            return None
        load = entry.load
    hint = "Install its package into this environment, or add its folder to PYTHONPATH."
    factory = imported(load, f"the denoiser {name!r}", hint)
    defaults = defaults_of(factory)
    if _is_solver(factory):
        return DenoiserSpec(lambda device, weights, _: as_solver(factory, device, weights, name))
    with_device, takes_weights = _parameters(name, factory)

    def make(device: torch.device, weights: Path | None, _precision: Precision) -> Solver:
        arguments = (device,) if with_device else ()
        passed = {"weights": weights} if takes_weights and weights is not None else {}
        try:
            made = factory(*arguments, **passed)
        except SciStreamError:
            raise
        except Exception as error:  # absent weights, a missing library, …
            raise ConfigError(f"Cannot create the solver {name!r}", got=repr(error)) from error
        return as_solver(made, device, None if passed else weights, name)

    return DenoiserSpec(make, defaults)


def defaults_of(given: Any) -> DenoiserDefaults:
    """Return the settings that suit a plug-in or an object of a user.

    Raises `ConfigError` if its attribute ``defaults`` is anything else.
    """
    defaults = getattr(given, "defaults", DenoiserDefaults())
    if not isinstance(defaults, DenoiserDefaults):
        raise ConfigError(
            f"The attribute defaults of {_name_of(given)} is invalid",
            expected="a sci_stream.recon.denoisers.external.DenoiserDefaults",
            got=type(defaults).__name__,
        )
    return defaults


def as_solver(given: Any, device: torch.device, weights: Path | None, name: str = "") -> Solver:
    """Return an object of a user as a solver on a device.

    Raises `ConfigError` if it is none, or takes no weights; `WeightsError` if they do not fit.
    """
    name = name or _name_of(given)
    if not isinstance(given, Reconstructor) and takes_problem(given):
        given = Network(given)
    if isinstance(given, Network):
        return given.load(device, weights, name)
    if weights is not None:
        raise ConfigError(f"The denoiser {name!r} takes no weights", got=str(weights))
    if isinstance(given, Reconstructor | VideoDenoiser):
        return given
    if not callable(given):
        raise ConfigError(
            f"The solver {name!r} is invalid",
            expected="a name, a sci_stream.Network, a torch.nn.Module or a callable",
            got=type(given).__name__,
        )
    return CallableDenoiser(given, device, name)


def _name_of(given: Any) -> str:
    if isinstance(given, Network):
        return _name_of(given.model)
    if isinstance(given, str | Path):
        return Path(given).name
    return getattr(given, "name", "") or getattr(given, "__name__", type(given).__name__)


def _from_file(path: Path, attribute: str) -> Any:
    """Return an object of a Python file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    # With the path of the original, next to which the code may look for its weights.
    code = compile(source_of(path).read_bytes(), str(path), "exec")
    exec(code, module.__dict__)
    return getattr(module, attribute)


def _is_solver(given: Any) -> bool:
    """Return whether an object is a solver, and not a class or function that makes one."""
    if not inspect.isfunction(given):
        return not inspect.isclass(given)
    signature = inspect.signature(given)
    if {"device", "weights"} & signature.parameters.keys():
        return False
    return takes_problem(given) or _accepted(signature, (None, 0.1)) is not None


def _parameters(name: str, factory: Any) -> tuple[bool, bool]:
    """Return whether the factory of a plug-in accepts the device, and weights."""
    signature = inspect.signature(factory)
    choices = [(), (torch.device("cpu"),)]
    if "device" in signature.parameters:
        choices.reverse()
    accepted = _accepted(signature, *choices)
    if accepted is None:
        raise ConfigError(
            f"The solver plug-in {name!r} needs arguments that are not known",
            expected="a class or function that is called with the device, and optionally "
            "weights=PATH",
            got=f"{name}{signature}",
            hint="Name a function without arguments that makes it.",
        )
    return bool(accepted), "weights" in signature.parameters


def _accepted(signature: inspect.Signature, *choices: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return the first arguments that a signature accepts; None if it accepts none."""
    for arguments in choices:
        with contextlib.suppress(TypeError):
            signature.bind(*arguments)
            return arguments
    return None


class CallableDenoiser:
    """Use any callable, or a network, as a denoiser; implements `sci_stream.ports.Denoiser`.

    Parameters
    ----------
    function
        A `torch.nn.Module` is called with images (N, 1, H, W); it is moved to the device and put
        into evaluation mode. Anything else is called with (N, H, W). Second argument: σ, a float on
        the 0–1 scale, unless only one argument is accepted. It returns images of the same shape, a
        tensor or, on a CPU, a NumPy array.
    device
        Device of the images.
    name
        Name in reports; by default the name of the function or class.

    Raises
    ------
    InputError
        If ``function`` accepts neither one nor two arguments.
    """

    def __init__(self, function: Callable[..., Any], device: torch.device, name: str = "") -> None:
        self._channel = isinstance(function, torch.nn.Module)
        self.name = name or _name_of(function)
        self._function = (
            function.to(device).eval() if isinstance(function, torch.nn.Module) else function
        )
        self._accepts_sigma = _accepts_sigma(function, self.name)
        self._max_frames = sys.maxsize
        self._frames = 0

    def __call__(self, x: Tensor, sigma: Sigma) -> Tensor:
        """Denoise (N, H, W); see `sci_stream.ports.Denoiser`.

        Raises `InputError` if the function returns something else than finite images of the same
        shape.
        """
        chunk = self._frames = min(self._max_frames, len(x))
        level = float(sigma)
        parts = [self._denoised(part, level) for part in torch.split(x, chunk)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def reduce_memory(self) -> bool:
        """Denoise half as many frames at a time; see `sci_stream.ports.MemoryReducible`."""
        more_than_one = self._frames > 1
        if more_than_one:
            self._max_frames = self._frames = self._frames // 2
        return more_than_one

    def _denoised(self, x: Tensor, sigma: float) -> Tensor:
        images = x.unsqueeze(1) if self._channel else x
        try:
            out = self._function(images, sigma) if self._accepts_sigma else self._function(images)
        except Exception as error:
            known = isinstance(error, TypeError | AttributeError | RuntimeError | OSError)
            if (
                not (known or type(error).__module__ == "cv2")
                or ran_out_of_memory(error)
                or is_lost(error)
            ):
                raise
            raise InputError(
                f"The denoiser {self.name!r} failed", got=in_words(error), hint=_IMAGES
            ) from error
        if isinstance(out, np.ndarray):
            out = torch.from_numpy(np.ascontiguousarray(out))
        if not isinstance(out, Tensor):
            raise InputError(
                f"The denoiser {self.name!r} did not return images",
                expected="a torch tensor or a NumPy array",
                got=type(out).__name__,
            )
        if out.shape != images.shape:
            raise InputError(
                f"The denoiser {self.name!r} returned another shape",
                expected=tuple(images.shape),
                got=tuple(out.shape),
                hint=_IMAGES,
            )
        out = out.detach().to(x)
        invalid = int((~out.isfinite()).sum())
        if invalid:
            raise InputError(
                f"The denoiser {self.name!r} returned NaN or infinity",
                expected="finite images",
                got=f"{invalid} such values of {out.numel()} at sigma = {sigma:.4g}",
            )
        # The solver writes to the returned array, and keeps its own input.
        shared = out.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        return (out.clone() if shared else out).view(x.shape)


def _accepts_sigma(function: Callable[..., Any], name: str) -> bool:
    """Return whether a denoiser is called with (images, σ), rather than with images alone."""
    called = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        signature = inspect.signature(called)
    except ValueError:  # some compiled functions have none
        return True
    accepted = _accepted(signature, (None, 0.1), (None,))
    if accepted is None:
        raise InputError(
            f"The denoiser {name!r} cannot be called",
            expected="a callable that accepts (images, sigma) or (images)",
            got=f"{name}{signature}",
        )
    return len(accepted) == 2
