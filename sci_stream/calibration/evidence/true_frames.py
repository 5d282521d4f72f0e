"""Whether true frames explain the counts that they come with."""

from __future__ import annotations

import numpy as np

from sci_stream.calibration.evidence.defect import Defect
from sci_stream.model import Array
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.white import fit_white

# Masks in another order explain y better than right ones by less than this factor, by chance.
_BETTER = 0.97
# Frames that belong to y leave less of it unexplained, with its noise.
_MAX_MISFIT = 0.1
# Neighbours of noise differ; those of another scene are alike.
_NOISE_ALIKE = 0.1


def truth_defects(y: Array, calibration: Calibration, truth: Array) -> list[Defect]:
    """Return whether true frames, (n, B, H, W), explain counts y, (n, H, W), badly, or better in
    another order.
    """
    y = calibration.good * (y - calibration.dark)
    phi = calibration.good * calibration.phi
    misfits = {}
    for name, order in {
        "masks[::-1]": np.arange(len(phi))[::-1],
        "masks": np.arange(len(phi)),
    }.items():
        white, misfits[name] = fit_white(y, phi[order], truth)
    # Each mask brings out the frame that differs from their mean as y does where it is open.
    changes = truth - truth.mean(1, keepdims=True)
    rest = (y - white * np.einsum("bhw,nhw->nhw", phi, truth.mean(1)))[:, np.newaxis]
    closeness = np.tensordot(
        rest * (phi - phi.mean((1, 2), keepdims=True)), changes, ((0, 2, 3), (0, 2, 3))
    )
    closeness /= np.maximum(np.linalg.norm(changes, axis=(2, 3)).sum(0), 1e-30)
    order = np.arange(len(phi))
    for _ in order:
        mask, frame = np.unravel_index(np.argmax(closeness), closeness.shape)
        order[frame] = mask
        closeness[mask] = -np.inf
        closeness[:, frame] = -np.inf
    name = f"masks[{order.tolist()}]"
    _, misfits[name] = fit_white(y, phi[order], truth)
    best = min(misfits, key=lambda name: misfits[name])
    if misfits[best] < _BETTER * misfits["masks"]:
        text = f"the true frames belong to the masks in another order: pass {best}"
        return [Defect("mask_order", text, fatal=True)]
    rest = y - white * np.einsum("bhw,nbhw->nhw", phi, truth)
    together = float((rest[..., 1:] * rest[..., :-1]).sum())
    if misfits["masks"] > _MAX_MISFIT and together > _NOISE_ALIKE * float((rest**2).sum()):
        text = (
            f"the true frames explain y only to within {misfits['masks']:.0%}: pass those of "
            "y, or the masks of both"
        )
        return [Defect("truth", text)]
    return []
