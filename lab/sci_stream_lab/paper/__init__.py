"""The methods of the paper, as it prints them.

X. Yuan, Y. Liu, J. Suo, Q. Dai, "Plug-and-play algorithms for large-scale snapshot compressive
imaging", CVPR 2020. Numbers of equations are those of its revised version, arXiv:2003.13654.

==============================
======================================================================== paper
module ==============================
======================================================================== Sections 3 and 4, Algorithm
1  `algorithms`: PnP-ADMM and PnP-GAP; `lambda_rules`: the rules a) and b) Section 5
`wnnm` and `block_matching`, on `patch_groups`; `sequence` Table 1                        `methods`:
how each row is computed; `printed`: its figures the authors' code              `published_code`:
PnP-GAP-FFDNet with its start, normalisation and σ ==============================
========================================================================

The instrument's own method grew out of this one, and shares the forward model and the fast priors
with it, but no loop (docs/algorithm.md).
"""
