r"""Weighted nuclear norm minimisation: the prior of DeSCI.

Similar patches of a video, one a row, form a matrix Y that has a low rank but for its noise. Its
singular values s are shrunk, each by a weight that is the larger the less of the value is signal::

    min_X ½‖Y − X‖² + Σ_i C/(s_i(X) + ε) s_i(X)

which has the closed form s ← ½ (s + √(s² − 4C)) where that is real, else 0. Of pure noise the
largest singular value of a matrix (K, p²) is σ(√K + p), so 4C is the square of nearly that.
Singular values come from the smaller of YᵀY and YYᵀ.

References
----------
Gu, Xie, Meng, Feng, Zuo, Zhang, "Weighted nuclear norm minimization and its applications to low
level vision", Int. J. Comput. Vis. 121 (2017). With GAP: Liu, Yuan, Suo, Brady, Dai, "Rank
minimization for snapshot compressive imaging", IEEE Trans. Pattern Anal. Mach. Intell. 41 (2019).
"""

from __future__ import annotations

import torch

from sci_stream_lab.paper.patch_groups import PatchGroupDenoiser, Search

# √4C in units of σ(√K + p). 1.1 is as good at σ = 8/255, 0.3 dB worse at 50/255; 1.3 is 0.4 to 0.8
# dB worse.
_THRESHOLD = 1.0

_TINY = 1e-12


class WnnmDenoiser(PatchGroupDenoiser):
    """The denoiser `wnnm`."""

    name = "wnnm"
    # 32 patches: batches of symmetric matrices up to that size have a fast way on GPUs. Patches of
    # 6 pixels in groups of 64, and of 7 in groups of 32, denoise a video 0.1 to 0.5 dB less well
    # (Traffic, σ 8, 20 and 50 of 255).
    search = Search(patch=8, stride=4, radius=7, count=32)

    def shrink(
        self, patches: torch.Tensor, sigma: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return groups of patches, (G, K, p²), of a lower rank."""
        count, pixels = patches.shape[1:]
        mean = patches.mean(1, keepdim=True)
        varied = patches - mean
        gram = varied.mT @ varied if count > pixels else varied @ varied.mT
        # A diverged solve is detected at its end; eigenvalues of infinities would be an error of
        # the library.
        squares, vectors = torch.linalg.eigh(torch.nan_to_num(gram))
        squares = squares.clamp_min_(0.0).unsqueeze(1)
        values = squares.sqrt()
        real = squares - (_THRESHOLD * sigma * (count**0.5 + pixels**0.5)).square()
        shrunk = torch.where(real > 0, 0.5 * (values + real.clamp_min(0.0).sqrt()), 0.0)
        keep = (vectors * (shrunk / values.clamp_min(_TINY))) @ vectors.mT
        clean = varied @ keep if count > pixels else keep @ varied
        return clean.add_(mean), torch.ones_like(mean[..., :1])
