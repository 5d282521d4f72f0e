"""From a coded snapshot to B video frames: plug-and-play generalized alternating projection and its priors.

``engine`` is the one object a node holds. Below it, each on its own: ``gap`` (the algorithm), ``schedule`` (which σ
when), ``budget`` (how many iterations the next snapshot may cost), ``denoisers`` (the priors), ``weights`` (published
and own checkpoints), ``metrics`` and ``device``.
"""
