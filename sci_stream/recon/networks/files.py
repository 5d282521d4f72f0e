"""Files of networks: TorchScript, torch.export, ONNX, and weights.

A file of a network is a program. It runs only where its user names it as a solver.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor
from torch.export.passes import move_to_device_pass

from sci_stream.errors import ConfigError, SciStreamError, WeightsError, require_optional
from sci_stream.file_guard import in_words, reading, require_regular
from sci_stream.recon.denoisers.plugin_code import source_of
from sci_stream.recon.denoisers.weights import read_pickled, unwrapped

_PICKLED = (
    "If you trust the file: sci_stream.Network(model, pickled=True), which runs code from it."
)


class OnnxModel:
    """A network in ONNX: tensors in, tensors out."""

    def __init__(self, path: Path, device: torch.device) -> None:
        runtime = require_optional("onnxruntime", "onnx", f"The network {path}")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        providers = runtime.get_available_providers()
        if device.type == "cpu":
            providers = ["CPUExecutionProvider"]
        self._session = runtime.InferenceSession(str(path), options, providers=providers)
        self.inputs = self._session.get_inputs()
        size = self.inputs[0].shape[-2:]
        fixed = all(isinstance(side, int) for side in size)
        self.size = (size[0], size[1]) if fixed else None
        """The only height and width that it takes; None for any."""

    def __call__(self, *arguments: Tensor) -> list[Tensor]:
        """Return the results in their order."""
        names = [one.name for one in self.inputs]
        arrays = [argument.cpu().contiguous().numpy() for argument in arguments]
        results = self._session.run(None, dict(zip(names, arrays, strict=True)))
        return [torch.from_numpy(result) for result in results]


def load_file(path: Path, device: torch.device) -> Callable[..., Any]:
    """Return the network in a file; its copy, if a run has one.

    Raises `ConfigError` if the file cannot be read.
    """
    source = source_of(path)
    require_regular(source, "a network", error=ConfigError)
    try:
        if path.suffix == ".onnx":
            return OnnxModel(source, device)
        with warnings.catch_warnings():  # TorchScript is deprecated, and its files are there
            warnings.simplefilter("ignore", DeprecationWarning)
            if path.suffix == ".pt2":
                program = torch.export.load(source)
                program = move_to_device_pass(program, device)
                return program.module()
            return torch.jit.load(source, map_location=device)  # type: ignore[no-any-return, no-untyped-call] # of torch
    except SciStreamError:
        raise
    except Exception as error:  # readers raise anything for a damaged file
        raise ConfigError(
            f"The network {path} cannot be read",
            expected="TorchScript (.pt), torch.export (.pt2) or ONNX (.onnx)",
            got=in_words(error),
            hint="Weights alone are no network: name its class, file.py:Class, and --weights.",
        ) from error


def load_weights(model: Any, path: Path, *, pickled: bool) -> None:
    """Load weights into a module.

    Raises `WeightsError` if the file cannot be read without pickle, or does not fit.
    """
    if not isinstance(model, torch.nn.Module) or isinstance(model, torch.jit.ScriptModule):
        raise ConfigError("This network takes no weights: they are in it", got=str(path))
    state: Any
    if path.suffix != ".safetensors" and not pickled:
        state = read_pickled(path, "weights", error=WeightsError, hint=_PICKLED)
    else:
        require_regular(path, "weights", error=WeightsError)
        with reading(path, "weights", error=WeightsError):
            if path.suffix == ".safetensors":
                state = safetensors.torch.load_file(path)
            else:
                state = torch.load(path, map_location="cpu", weights_only=False)
    if isinstance(state, torch.nn.Module):
        state = state.state_dict()
    state = unwrapped(state)
    try:
        model.load_state_dict({key.removeprefix("module."): one for key, one in state.items()})
    except (AttributeError, RuntimeError, TypeError) as error:
        raise WeightsError(
            f"The weights {path} do not fit the network",
            expected=f"the tensors of {type(model).__name__}",
            got=in_words(error),
        ) from error
