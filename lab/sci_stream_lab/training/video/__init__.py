"""Training of networks that see neighbouring frames, on clips and on photographs set moving.

``clips`` decodes the clips, ``scenes`` draws short videos and masks, ``entries`` turns them into the network's inputs
of noisy videos and of iterations of the solver, ``pool`` keeps these and draws batches from them, ``data`` decides what
enters the pool when, and validates.
"""
