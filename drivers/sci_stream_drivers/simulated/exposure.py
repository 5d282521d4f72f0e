"""The coded exposure: B scene images through B masks, summed on the sensor."""

from __future__ import annotations

import numpy as np

from sci_stream.optics.bayer import sample_colours
from sci_stream.plugins import F32, BayerPhase
from sci_stream_drivers.simulated.scenes import Scene

# ITU-R BT.709 weights of linear R, G, B: a monochrome sensor with the sensitivity of the eye.
_LUMINANCE = np.array([0.2126, 0.7152, 0.0722], np.float32)


class Exposure:
    r"""Measure y = Σ_b φ_b ⊙ x_b (Eq. 1 of the paper, without noise) of a scene.

    Snapshot n covers the scene times nB … (n + 1)B, without a pause between snapshots; frame x_b is
    the scene at the start of its sub-frame, a unit of the scene's time, through the colour filters
    of the sensor. ``phi`` is (B, H, W).
    """

    def __init__(self, scene: Scene, phi: F32, bayer: BayerPhase | None) -> None:
        self._scene = scene
        self._phi = phi
        self._bayer = bayer

    def frames(self, n: int) -> F32:
        """Return x of snapshot ``n``, (B, H, W) float32 on the 0–1 scale, a new array:
        the truth.
        """
        B = len(self._phi)
        return np.stack([self.frame(n * B + b) for b in range(B)])

    def frame(self, t: float) -> F32:
        """Return the scene at a time, in sub-frames, as the sensor's filters see it, (H, W)
        float32.
        """
        rgb = self._scene.render(t)
        return (
            np.matmul(rgb, _LUMINANCE) if self._bayer is None else sample_colours(rgb, self._bayer)
        )

    def measure(self, x: F32, phi: F32 | None = None) -> F32:
        """Return y = Σ_b φ_b ⊙ x_b, (H, W) float32; through other masks than its own if ``phi`` are
        given.
        """
        y: F32 = np.einsum("bhw,bhw->hw", self._phi if phi is None else phi, x)
        return y
