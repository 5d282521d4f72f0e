r"""Video block matching with separable 4-D transforms along motion: V-BM4D's idea.

The patches most similar to a reference patch in each frame follow its motion. Several of each frame, the most similar
ones first, form an array of four dimensions, time × rank × rows × columns, in which image content is sparse after a
cosine transform along each of them. Coefficients below a multiple of σ are noise and become 0.

References
----------
Maggioni, Boracchi, Foi, Egiazarian, "Video denoising, deblocking, and enhancement through separable 4-D nonlocal
spatiotemporal transforms", IEEE Trans. Image Process. 21 (2012): its first stage, with one trajectory for each rank.
"""

from __future__ import annotations

import torch

from sci_stream.recon.denoisers.nonlocal_priors.patch_groups import PatchGroupDenoiser, Search
from sci_stream.recon.denoisers.temporal import cosines

SEARCH = Search(patch=8, stride=4, radius=7, count=4, per_frame=True)

# Coefficients below that many σ become 0.
_THRESHOLD = 2.7


def threshold_4d(patches: torch.Tensor, sigma: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return groups of patches, (G, B·count, p²), without what is noise in their transform.

    A group counts the more the fewer coefficients are left, of whose noise its patches keep a part. See
    `sci_stream.recon.denoisers.nonlocal_priors.patch_groups.Shrink`.
    """
    side = round(patches.shape[2] ** 0.5)
    ranks = min(SEARCH.count, patches.shape[1])
    in_space = torch.kron(cosines(side), cosines(side)).to(patches)
    in_time = torch.kron(cosines(patches.shape[1] // ranks), cosines(ranks)).to(patches)
    coefficients = in_time @ patches @ in_space.mT
    kept = coefficients.abs() >= _THRESHOLD * sigma
    kept[:, 0, 0] = True  # the mean of the group
    clean = in_time.mT @ (coefficients * kept) @ in_space
    return clean, kept.sum((1, 2), keepdim=True).to(patches.dtype).reciprocal()


def block_matching_denoiser() -> PatchGroupDenoiser:
    """Return the denoiser."""
    return PatchGroupDenoiser("vbm4d", SEARCH, threshold_4d)
