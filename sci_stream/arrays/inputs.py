"""Arrays as callers have them, checked and brought to one form."""

from __future__ import annotations

import numpy as np
import torch

from sci_stream.errors import InputError
from sci_stream.model import F32, Array
from sci_stream.optics.white import white_level

AnyArray = Array | torch.Tensor


def as_series(y: Array) -> Array:
    """Return one snapshot, (H, W), or several, (N, H, W), as (N, H, W).

    Raises
    ------
    InputError
        If it has another shape, or is empty.
    """
    if y.ndim > 3 and y.size == y.shape[0] * np.prod(y.shape[-2:]):
        # (N, 1, H, W), as networks take pictures
        y = y.reshape(y.shape[0], *y.shape[-2:])
    if y.ndim not in (2, 3) or 0 in y.shape:
        raise InputError(
            "y has an invalid shape", expected="(H, W), or (N, H, W) for a series", got=y.shape
        )
    return y[np.newaxis] if y.ndim == 2 else y


def real_array(value: AnyArray, name: str, *, invalid: bool = False) -> Array:
    """Return an argument as a NumPy array of real numbers, finite unless ``invalid`` ones are
    allowed.

    Masked values become NaN.

    Raises
    ------
    InputError
        If it holds anything else.
    """
    if isinstance(value, np.ma.MaskedArray):
        value = np.ma.filled(value.astype(np.float64), np.nan)
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        array: Array = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    else:
        array = np.asarray(value)
    if array.dtype.kind not in "buif":
        raise InputError(
            f"{name} does not hold real numbers",
            expected="an array of numbers",
            got=f"dtype {array.dtype}",
        )
    if not invalid and array.dtype.kind == "f" and not np.isfinite(array).all():
        wrong = int((~np.isfinite(array)).sum())
        raise InputError(
            f"{name} contains NaN or infinity",
            expected="finite values",
            got=f"{wrong} of {array.size} values",
        )
    return array


def require_fit(y: Array, masks: tuple[int, ...]) -> None:
    """Raise `InputError` unless y, (…, H, W), has as many pixels as masks of a shape, (B, H, W)."""
    size = y.shape[-2:]
    if size == masks[1:]:
        return
    raise InputError(
        "y and the masks differ in size",
        expected=f"y of {masks[1]}×{masks[2]} pixels, as masks (B, H, W) = {masks}",
        got=f"y of shape {y.shape}",
    )


def true_frames(truth: AnyArray, count: int, masks: tuple[int, ...]) -> F32:
    """Return the true frames of the first snapshots, or of all, as (n, B, H, W), 0–1.

    Raises `InputError` unless they fit ``count`` snapshots behind masks of a shape, (B, H, W).
    """
    B, H, W = masks
    frames = real_array(truth, "truth")
    size = B * H * W
    is_stack = frames.ndim < 4 or frames.shape[-3] == B
    if (
        not is_stack
        or frames.size % size
        or frames.size > count * size
        or frames.shape[-2:] != (H, W)
    ):
        raise InputError(
            "The truth does not fit y and the masks",
            expected=f"{count} × {B} frames of {H}×{W} pixels, or {B} for each of the first "
            "snapshots",
            got=f"shape {frames.shape}",
            hint="The frames come first: (B, H, W), for a series (N, B, H, W). Frames in colour "
            "belong to y of one colour each: pass truth[:, 0] with y[0], or their grey values.",
        )
    white = white_level(frames)
    return np.asarray(frames, np.float32).reshape(-1, B, H, W) / np.float32(white)
