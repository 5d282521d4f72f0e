"""Noise levels σ: scalars on the device, so that a recording reads another one at each replay;
numbers serve too.
"""

from __future__ import annotations

from torch import Tensor

Sigma = float | Tensor
"""σ on the 0–1 scale: (), or a number."""


def on_device(sigma: Sigma, like: Tensor) -> Tensor:
    """Return σ, (), or of each image, (N, 1, 1), on the device and in the dtype of ``like``."""
    if isinstance(sigma, Tensor):
        return sigma.to(
            like.device, like.dtype, non_blocking=True
        )  # the host need not wait for its copy
    return like.new_full((), float(sigma))
