"""The choice between a prior of grey frames and its sibling for the mosaics of a colour camera."""

from __future__ import annotations

from sci_stream.model import BayerPhase
from sci_stream.ports import MosaicDenoiser
from sci_stream.recon.algorithms.unrolled import Prior, UnrolledSolver


def suited_to_colours(prior: Prior, bayer: BayerPhase | None) -> tuple[Prior, bool]:
    """Return the prior for frames of a sensor, and whether it takes their planes together.

    Trained stages keep their own networks: their features of neighbouring frames are of one plane.
    The denoiser of the iterations before them is replaced.
    """
    frames = prior.before if isinstance(prior, UnrolledSolver) else prior
    if bayer is None or not isinstance(frames, MosaicDenoiser):
        return prior, False
    mosaics = frames.for_mosaic(bayer)
    if mosaics is None:
        return prior, False
    return (prior.after(mosaics) if isinstance(prior, UnrolledSolver) else mosaics), True
