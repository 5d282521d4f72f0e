"""3×3 convolutions followed by ReLU, in one pass over the features where a library has both."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by
from torch import Tensor


def convolve_relu(features: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
    """Return the ReLU of a 3×3 convolution, zero outside the images.

    On a processor, without gradients, oneDNN clips while it writes the result.

    Parameters
    ----------
    features
        (N, C, H, W), channels last for speed.
    kernel, bias
        (K, C, 3, 3) and (K,), in the dtype of the features.

    Returns
    -------
    (N, K, H, W), a new tensor.
    """
    if (
        features.device.type == "cpu"
        and not torch.is_grad_enabled()
        and fuses_on_cpu(features.dtype)
    ):
        return _by_onednn(features, kernel, bias)
    return F.conv2d(features, kernel, bias, padding=1).relu_()


def _by_onednn(features: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
    one = [1, 1]
    result: Tensor = torch.ops.mkldnn._convolution_pointwise(
        features, kernel, bias, one, one, one, 1, "relu", [], ""
    )
    return result


@functools.cache
def fuses_on_cpu(dtype: torch.dtype) -> bool:
    """Return whether torch has oneDNN's convolution with ReLU for a dtype on this processor.

    The operator is private to torch: a small convolution shows whether it is there and right.
    """
    values = torch.linspace(-1, 1, 3 * 8 * 8).to(dtype)
    features = values.view(1, 3, 8, 8)
    kernel = values[:108].view(4, 3, 3, 3)
    bias = values[:4]
    try:
        result = _by_onednn(features, kernel, bias)
    except (AttributeError, RuntimeError, TypeError):
        return False
    plain = F.conv2d(features, kernel, bias, padding=1).relu_()
    return torch.allclose(result.float(), plain.float(), rtol=_ROUNDING, atol=_ROUNDING)


# Two roundings to bfloat16: the libraries may add in another order.
_ROUNDING = 2**-7
