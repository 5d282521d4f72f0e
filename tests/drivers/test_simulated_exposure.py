from __future__ import annotations

import numpy as np

from sci_stream.model import Array, BayerPhase
from sci_stream_drivers.simulated.exposure import Exposure

H, W, B = 6, 8, 4
PHI = np.random.default_rng(2).random((B, H, W)).astype(np.float32)


class Ramp:
    """A scene whose colours differ and increase with time."""

    def render(self, t: float) -> Array:
        return np.broadcast_to(np.array([t, 10 * t, 100 * t], np.float32), (H, W, 3))


def test_snapshots_follow_one_another_without_a_pause() -> None:
    x = np.concatenate([Exposure(Ramp(), PHI, BayerPhase.RGGB).frames(n) for n in range(3)])
    np.testing.assert_array_equal(x[:, 0, 0], np.arange(3 * B))


def test_monochrome_sensor_sees_luminance() -> None:
    x = Exposure(Ramp(), PHI, None).frames(0)
    np.testing.assert_allclose(x[1], 0.2126 + 7.152 + 7.22, rtol=1e-6)


def test_measurement_is_the_masked_sum() -> None:
    exposure = Exposure(Ramp(), PHI, BayerPhase.GBRG)
    x = exposure.frames(2)
    np.testing.assert_allclose(exposure.measure(x), (PHI * x).sum(axis=0), rtol=1e-5)
