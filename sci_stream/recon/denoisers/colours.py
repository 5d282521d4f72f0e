"""The choice between a denoiser of grey frames and its sibling for mosaics of a colour camera."""

from __future__ import annotations

from sci_stream.model import BayerPhase
from sci_stream.ports import Denoiser, MosaicDenoiser


def suited_to_colours(denoiser: Denoiser, bayer: BayerPhase | None) -> tuple[Denoiser, bool]:
    """Return the denoiser for frames of a sensor, and whether it takes their planes together."""
    if bayer is None or not isinstance(denoiser, MosaicDenoiser):
        return denoiser, False
    mosaics = denoiser.for_mosaic(bayer)
    return (denoiser, False) if mosaics is None else (mosaics, True)
