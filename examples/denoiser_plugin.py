"""A denoiser in ten lines: a bilateral filter from OpenCV.

Name it in a rig file, in `sci_stream.reconstruct` or on the command line as
``my_package:BilateralDenoiser``, or give it a short name in the pyproject.toml of its package::

    [project.entry-points."sci_stream.denoisers"]
    bilateral = "my_package:BilateralDenoiser"
"""

from __future__ import annotations

import cv2
import numpy as np
import torch

from sci_stream.plugins import CallableDenoiser, DenoiserDefaults
from sci_stream_testing.denoisers import DenoiserContract


class BilateralDenoiser:
    """Called with the device, once; then with images and noise levels."""

    # Optional: how the solver runs with it.
    defaults = DenoiserDefaults(sigma_last=6 / 255, iterations=12)

    def __init__(self, device: torch.device) -> None:
        self.device = device  # a network would load its weights to it

    def __call__(self, images: torch.Tensor, sigma: float) -> np.ndarray:
        """Return denoised images, (N, H, W), a tensor or an array; sigma is a float on the 0–1
        scale.
        """
        return np.stack(
            [cv2.bilateralFilter(image, 5, 3 * sigma, 1.5) for image in images.cpu().numpy()]
        )


class TestBilateralDenoiser(DenoiserContract):
    """``pytest my_package.py`` runs the suite that every denoiser must pass."""

    def make(self, device: torch.device) -> CallableDenoiser:
        """Return the denoiser as the solver calls it, with checks."""
        return CallableDenoiser(BilateralDenoiser(device), device)
