r"""Video block matching with separable 4-D transforms along motion: V-BM4D's idea.

The patches most similar to a reference patch in each frame follow its motion. Several of each
frame, the most similar ones first, form an array of four dimensions, time × rank × rows × columns,
in which image content is sparse after a cosine transform along each of them. Coefficients below a
multiple of σ are noise and become 0.

References
----------
Maggioni, Boracchi, Foi, Egiazarian, "Video denoising, deblocking, and enhancement through separable
4-D nonlocal spatiotemporal transforms", IEEE Trans. Image Process. 21 (2012): its first stage, with
one trajectory for each rank.
"""

from __future__ import annotations

import torch

from sci_stream.recon.denoisers.temporal import cosines
from sci_stream_lab.paper.patch_groups import PatchGroupDenoiser, Search

# Coefficients below that many σ become 0.
_THRESHOLD = 2.7


class BlockMatchingDenoiser(PatchGroupDenoiser):
    """The denoiser `vbm4d`."""

    name = "vbm4d"
    search = Search(patch=8, stride=4, radius=7, count=4, per_frame=True)

    def shrink(
        self, patches: torch.Tensor, sigma: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return groups of patches, (G, B·count, p²), without the noise in their transform.

        A group counts the more the fewer coefficients remain, of whose noise its patches keep a
        part.
        """
        side = round(patches.shape[2] ** 0.5)
        ranks = min(self.search.count, patches.shape[1])
        in_space = torch.kron(cosines(side), cosines(side)).to(patches)
        in_time = torch.kron(cosines(patches.shape[1] // ranks), cosines(ranks)).to(patches)
        coefficients = in_time @ patches @ in_space.mT
        signal = coefficients.abs() >= _THRESHOLD * sigma
        signal[:, 0, 0] = True  # the mean of the group
        clean = in_time.mT @ (coefficients * signal) @ in_space
        return clean, signal.sum((1, 2), keepdim=True).to(patches.dtype).reciprocal()
