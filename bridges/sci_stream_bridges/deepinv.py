r"""deepinv: its denoisers as priors (extra ``deepinv``).

Any class of ``deepinv.models`` is a plug-in by name, in a rig file, on the command line and in
Python::

    sci-stream solve kobe_cacti.mat --weights drunet_gray.pth \
        --solver sci_stream_bridges.deepinv:DRUNet

In Python, a denoiser that is set up already is wrapped::

    denoiser = DeepinvDenoiser(deepinv.models.TVDenoiser(n_it_max=100))
    sci_stream.reconstruct(y, masks, solver=denoiser)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sci_stream.errors import ConfigError, require_optional

_NEEDED_BY = "A denoiser of deepinv"
# Frames have one channel. TV and TGV iterate 1000 times by default, which takes seconds per call; a
# prior needs no such precision.
_OPTIONS = {"in_channels": 1, "out_channels": 1, "n_it_max": 100}


class DeepinvDenoiser:
    """A deepinv denoiser as the solver calls one.

    Parameters
    ----------
    model
        A ``deepinv.models.Denoiser`` for one channel, called as ``model(images (N, 1, H, W),
        sigma)``. It is moved to ``device`` and put into evaluation mode.
    device
        Where it runs.
    """

    def __init__(self, model: torch.nn.Module, device: torch.device | str = "cpu") -> None:
        self._model = model.to(device).eval()
        # TV and TGV start from the result of the previous call and stop by an error over the whole
        # batch: a replay would differ, and so would smaller batches.
        self._keeps_state = hasattr(model, "restart")

    def __call__(self, images: torch.Tensor, sigma: float) -> torch.Tensor:
        """Return the denoised images, (N, H, W)."""
        frames = images.unsqueeze(1)
        if not self._keeps_state:
            out: torch.Tensor = self._model(frames, sigma)
            return out.squeeze(1)
        return torch.cat(
            [self._restarted(frame, sigma) for frame in torch.split(frames, 1)]
        ).squeeze(1)

    def _restarted(self, frame: torch.Tensor, sigma: float) -> torch.Tensor:
        self._model.restart = True  # type: ignore[assignment]  # modules take attributes of any type
        out: torch.Tensor = self._model(frame, sigma)
        return out


def __getattr__(name: str) -> Callable[..., DeepinvDenoiser]:
    """Return the plug-in of a class of ``deepinv.models``."""
    if name.startswith("_"):
        raise AttributeError(name)
    kind = getattr(
        require_optional("deepinv.models", "deepinv", _NEEDED_BY, "sci-stream-bridges"), name, None
    )
    if kind is None:
        raise AttributeError(f"deepinv.models has no {name!r}")
    try:
        known = inspect.signature(kind).parameters
    except (TypeError, ValueError):
        known = {}  # type: ignore[assignment]  # refused below, where it is made

    def make(device: torch.device, weights: Path | None = None) -> DeepinvDenoiser:
        options: dict[str, Any] = {name: value for name, value in _OPTIONS.items() if name in known}
        if weights is not None:
            if "pretrained" not in known:
                raise ConfigError(f"deepinv.models.{name} takes no weights", got=weights)
            options["pretrained"] = str(weights)
        model = kind(**options)
        if not isinstance(model, torch.nn.Module):
            raise ConfigError(f"deepinv.models.{name} is not a denoiser", got=type(model).__name__)
        return DeepinvDenoiser(model, device)

    return make
