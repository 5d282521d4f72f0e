"""Small images that resemble photographs."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt
import torch

CPU = torch.device("cpu")


def picture(seed: int, height: int = 64, width: int = 80) -> npt.NDArray[np.uint8]:
    """Return (H, W, 3): smooth colours with edges."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (5, 6, 3)).astype(np.uint8)
    smooth = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    top, left = int(rng.integers(height // 2)), int(rng.integers(width // 2))
    smooth[top : top + height // 3, left : left + width // 3] = rng.integers(0, 256, 3)
    return np.asarray(smooth, dtype=np.uint8)
