"""Simulated rigs that are drawn by a number: size, masks, colour, bits, speed and scene."""

from __future__ import annotations

import numpy as np

from sci_stream_drivers.simulated.options import SCENES, SimulatedOptions

_SIZES_PX = (128, 128, 128, 128, 128, 128, 128, 128, 144, 160)
# Each so many-th rig is as large as this, px.
_LARGER = ((10, 192), (20, 256), (40, 512), (160, 1024))


def drawn_rig(number: int) -> SimulatedOptions:
    """Return the options of the simulated camera of a rig; some are large."""
    rng = np.random.default_rng([7, number])
    size = int(rng.choice(_SIZES_PX))
    for every, larger in _LARGER:
        if number % every == every - 1:
            size = larger
    return SimulatedOptions.model_validate(
        {
            "height_px": size,
            "width_px": size,
            "n_frames": int(rng.choice([4, 6, 8, 10, 12, 16, 24])),
            "mask": str(rng.choice(["random", "shifting", "moving"])),
            "bayer": rng.choice(np.array(["none", "RGGB", "GBRG"], object)),
            "bit_depth": int(rng.choice([12, 10, 8])),
            "exposure": float(rng.choice([0.9, 0.5])),
            "speed": float(rng.choice([0.5, 1.0, 2.0])),
            "seed": number,
            "scene": str(rng.choice(SCENES)),
            "snapshot_rate_hz": 0.0,
            "truth": True,
        }
    )
