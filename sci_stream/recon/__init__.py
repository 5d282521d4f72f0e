"""Reconstruct the B frames behind a snapshot: plug-and-play generalized alternating projection and
its priors.

`engine.Engine` is the one object a node holds. Its solves have three stages: ``prepare`` finds the
valid pixels of a snapshot and its noise (`measurement`), ``initialize`` where to begin
(`initialization`), and ``solve`` iterates (`algorithms`, the paper's; `denoisers`, the priors).
`backend` has all that depends on the device, and `budget` decides how many iterations the next
snapshot may cost.
"""
