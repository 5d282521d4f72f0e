"""Training of the stages that end a solve, each a network and a data step, as a whole and for any
masks.

``network`` has the shape and the initial weights, ``masks`` draws masks by class and their errors,
``samples`` codes scenes with them and solves them up to the stages, ``data`` makes the batches and
validates, ``learner`` has the loss.
"""
