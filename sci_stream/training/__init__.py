"""Weights of our own: FFDNet in any of its sizes, trained on a folder of photographs.

``train`` is the loop; below it, each on its own: ``settings`` (what decides the result), ``images`` (the folder,
decoded once), ``patches`` (what a step sees), ``learner`` (network, average, Adam), ``checkpoint`` and ``curve`` (what
a run leaves behind), ``evaluation`` (PSNR on noisy images). ``export`` and ``card`` turn a run into weights with their
model card, ``convert`` brings foreign checkpoints into the own form.
"""
