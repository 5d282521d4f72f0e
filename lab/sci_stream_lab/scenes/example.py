"""Write the film that a demo's page plays at first: ``python -m sci_stream_lab.scenes.example``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

import sci_stream
from sci_stream.imaging.demosaic import Demosaic, demosaic
from sci_stream.model import F32, BayerPhase
from sci_stream.web import app
from sci_stream_drivers.simulated.textures import SRGB_TO_LINEAR
from sci_stream_lab.scenes.__main__ import as_srgb, frames

_SIZE_PX = 256
_N_FRAMES = 8
# From the drop in the air to the drops above the crown, in three snapshots.
_TIMES = slice(14, 86, 3)
_WHITE = 0.9
_READ_NOISE = 0.004
_ITERATIONS = 40
_FRAME_MS = 110
_FILM_QUALITY = 45
_EXPOSURE_QUALITY = 35


def main() -> None:
    """Film the splash behind random masks, solve it, and write the film and one exposure."""
    generator = np.random.default_rng(0)
    shape = (-1, _N_FRAMES, _SIZE_PX, _SIZE_PX)
    light = np.array([SRGB_TO_LINEAR[picture] for picture in frames("splash", _SIZE_PX)])[_TIMES]
    light *= _WHITE / light.max()
    mosaic = np.array([_mosaic(picture) for picture in light], np.float32).reshape(shape)
    masks = (generator.random(shape[1:]) < 0.5).astype(np.float32)
    y = (masks * mosaic).sum(1)
    y += generator.normal(0.0, _READ_NOISE, y.shape)
    solved = sci_stream.reconstruct(
        y, masks, bayer="RGGB", truth=mosaic, iterations=_ITERATIONS, light="as_recorded"
    )
    print(solved)
    levels = np.clip(solved.video.reshape(shape[0], *shape[2:]) / _WHITE, 0.0, 1.0) * 65_535
    rgb = demosaic(levels.astype(np.uint16), BayerPhase.RGGB, Demosaic.DIRECTIONAL)
    film = [Image.fromarray(as_srgb(picture / np.float32(65_535))) for picture in rgb]
    folder = Path(app.__file__).parent / "static"
    film[0].save(
        folder / "example-film.webp",
        save_all=True,
        append_images=film[1:],
        duration=_FRAME_MS,
        loop=0,
        quality=_FILM_QUALITY,
        method=6,
    )
    exposure = (255 * (y[1] / y[1].max()).clip(0.0, 1.0) ** (1 / 2.2)).astype(np.uint8)
    Image.fromarray(exposure).save(
        folder / "example-exposure.webp", quality=_EXPOSURE_QUALITY, method=6
    )


def _mosaic(picture: F32) -> F32:
    """Return the RGGB mosaic of a picture (H, W, 3)."""
    mosaic = picture[..., 1].copy()
    mosaic[::2, ::2] = picture[::2, ::2, 0]
    mosaic[1::2, 1::2] = picture[1::2, 1::2, 2]
    return mosaic


if __name__ == "__main__":
    main()
