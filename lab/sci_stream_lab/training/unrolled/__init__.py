"""Training of a solve as a whole: a few stages, each a network and a data step, for any masks.

``network`` is the solve and its weights, ``masks`` draws masks by class and their errors, ``samples`` codes scenes with
them and finds the starts, ``data`` makes the batches and validates, ``learner`` has the loss.
"""
