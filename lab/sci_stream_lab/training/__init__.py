"""Training of FFDNet variants on a folder of photographs.

``train`` is the loop; its parts are ``settings`` (everything that determines the result), ``media``
and ``images`` (the folder, decoded once), ``patches`` (the batches), ``learner`` (network, average,
optimisers), ``checkpoint`` and ``curve`` (files of a run) and ``evaluation`` (PSNR on noisy
images). ``export`` and ``card`` turn a run into weights with a model card, ``convert`` imports
checkpoints of other layouts.
"""
