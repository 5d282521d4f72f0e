"""The coded exposure: B scene images through B masks, summed on the sensor."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sci_stream.model import BayerPhase
from sci_stream.optics.bayer import sample_colours
from sci_stream_drivers.simulated.scenes import Scene

# ITU-R BT.709 weights of linear R, G, B: a monochrome sensor with the sensitivity of the eye.
_LUMINANCE = np.array([0.2126, 0.7152, 0.0722], np.float32)


class Exposure:
    r"""Measure y = Σ_b φ_b ⊙ x_b (Eq. 1 of the paper, without noise) of a scene.

    Snapshot n covers the scene times nB … (n + 1)B, without a pause between snapshots; frame x_b is the mean of the
    scene over one unit of time, through the colour filters of the sensor.

    One unit of the scene's time is one sub-frame; ``phi`` is (B, H, W), and x_b the mean of ``temporal_samples``
    images.
    """

    def __init__(
        self, scene: Scene, phi: npt.NDArray[np.float32], bayer: BayerPhase | None, temporal_samples: int = 1
    ) -> None:
        self._scene = scene
        self._phi = phi
        self._bayer = bayer
        self._samples = temporal_samples

    def frames(self, n: int) -> npt.NDArray[np.float32]:
        """Return x of snapshot ``n``, (B, H, W) float32 on the 0–1 scale, a new array: the truth."""
        x = np.empty(self._phi.shape, np.float32)
        sample = np.empty_like(x[0])
        for b in range(len(x)):
            first = (n * len(x) + b) * self._samples
            self._sense(first / self._samples, x[b])
            for s in range(1, self._samples):
                self._sense((first + s) / self._samples, sample)
                x[b] += sample
        if self._samples > 1:
            x /= np.float32(self._samples)
        return x

    def frame(self, t: float) -> npt.NDArray[np.float32]:
        """Return the scene at a time, in sub-frames, (H, W) float32."""
        x = np.empty(self._phi.shape[1:], np.float32)
        self._sense(t, x)
        return x

    def measure(
        self, x: npt.NDArray[np.float32], phi: npt.NDArray[np.float32] | None = None
    ) -> npt.NDArray[np.float32]:
        """Return y = Σ_b φ_b ⊙ x_b, (H, W) float32; through other masks than its own if ``phi`` are given."""
        y: npt.NDArray[np.float32] = np.einsum("bhw,bhw->hw", self._phi if phi is None else phi, x)
        return y

    def _sense(self, t: float, out: npt.NDArray[np.float32]) -> None:
        """Write the scene at ``t`` as the sensor's filters see it, (H, W), into ``out``."""
        rgb = self._scene.render(t)
        if self._bayer is None:
            np.matmul(rgb, _LUMINANCE, out=out)
        else:
            out[:] = sample_colours(rgb, self._bayer)
