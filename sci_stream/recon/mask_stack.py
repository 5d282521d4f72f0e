"""The masks of a calibration on the device, as calibrated or corrected."""

from __future__ import annotations

import torch
from torch import Tensor

from sci_stream.optics import bayer
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.forward import gram_diag, inverse_gram
from sci_stream.optics.mask_errors import NO_CORRECTION, MaskCorrection
from sci_stream.optics.mask_shift import corrected_masks, invalid_pixels
from sci_stream.recon.backend.cuda_graph import overwrite
from sci_stream.recon.initialization.lmmse import LmmseEstimator
from sci_stream.recon.noise_estimation import CodedWindows, coded_windows


class MaskStack:
    """Φ by planes P (1, or a mosaic's 4), and quantities derived from it.

    Parameters
    ----------
    calibration
        Its masks are copied to the device once. At each correction all that follows from them is
        written to where it was before, since recordings read it there.
    one_turn
        Take each mask once, also if it is found exposed for several frames.
    """

    def __init__(
        self, calibration: Calibration, device: torch.device, *, one_turn: bool = False
    ) -> None:
        self._one_turn = one_turn
        self._calibration = calibration
        self._device = device
        self.phi: Tensor
        """(P, B', h, w), B' ≥ B: a mask that a correction finds exposed for several frames is there
        as often."""
        self.r_inv: Tensor
        """(P, h, w), (ΦΦᵀ)⁻¹, 0 at pixels that are never valid."""
        self.linear: LmmseEstimator
        self.windows: CodedWindows | None
        self.turns: tuple[int, ...] = ()
        """How often each mask is there."""
        self.correction = NO_CORRECTION
        self.correct(NO_CORRECTION)

    def correct(self, correction: MaskCorrection) -> None:
        """Take the masks with this correction of the calibrated ones,
        to the precision of its text.
        """
        calibration = self._calibration
        correction = correction.rounded()
        if correction.of_masks == self.correction.of_masks and self.turns:
            self.correction = correction
            return
        # A copy: the calibration's arrays are read-only, which torch does not support.
        phi = torch.from_numpy(calibration.phi.copy()).to(self._device)
        phi = phi if correction.is_none else corrected_masks(phi, correction)
        # A mask with the light of two frames carries the motion of two: two frames behind it, of
        # half the light each.
        n_frames = calibration.n_frames
        turns = (1,) * n_frames if self._one_turn else correction.turns(n_frames)
        if max(turns) > 1:
            phi = torch.cat(
                [mask.div(n).expand(n, *mask.shape) for mask, n in zip(phi, turns, strict=True)]
            )
        phi = self.planes(phi)
        good = ~invalid_pixels(correction.displacement, calibration.shape)
        good &= torch.from_numpy(calibration.good)
        r_inv = inverse_gram(gram_diag(phi), self.planes(good.to(self._device)))
        fresh = phi, r_inv, LmmseEstimator(phi, r_inv, calibration.fineness), coded_windows(phi)
        if turns == self.turns:
            with (
                torch.inference_mode()
            ):  # as models are made: inference tensors can be written only in this mode
                overwrite((self.phi, self.r_inv, self.linear, self.windows), fresh)
        else:
            self.phi, self.r_inv, self.linear, self.windows = fresh
        self.turns = turns
        self.correction = correction

    def planes(self, image: Tensor) -> Tensor:
        """Add the plane dimension in front: four planes of a mosaic, else one."""
        return image.unsqueeze(0) if self._calibration.bayer is None else bayer.split(image)

    def merged(self, planes: Tensor, turns: tuple[int, ...] | None = None) -> Tensor:
        """Undo `planes`; a frame of several turns, by default the present ones, is their mean."""
        turns = turns or self.turns
        if max(turns) > 1:
            planes = torch.stack([part.mean(1) for part in torch.split(planes, list(turns), 1)], 1)
        return self.images(planes)

    def images(self, planes: Tensor) -> Tensor:
        """Undo `planes`, with a frame for each turn."""
        return planes.squeeze(0) if self._calibration.bayer is None else bayer.merge(planes)
