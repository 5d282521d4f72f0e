"""The masks of a calibration on the device, at their calibrated position or shifted from it."""

from __future__ import annotations

from functools import cached_property

import torch

from sci_stream.optics import bayer as bayer_planes
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.displacement import NO_DISPLACEMENT, Displacement
from sci_stream.optics.forward import gram_diag, inverse_gram
from sci_stream.optics.mask_shift import invalid_pixels, shift_masks
from sci_stream.recon.backend.cuda_graph import overwrite
from sci_stream.recon.initialization.lmmse import LmmseEstimator


class MaskStack:
    """Φ by planes P (1, or a mosaic's 4), and quantities derived from it.

    Parameters
    ----------
    calibration
        Its masks are copied to the device once, and again at each shift.
    device
        Where to keep them.
    in_place
        Write everything that follows from displaced masks to where it was before, since recordings read it there.
    """

    def __init__(self, calibration: Calibration, device: torch.device, *, in_place: bool = False) -> None:
        self._calibration = calibration
        self._device = device
        self._in_place = in_place
        self.phi = torch.empty(0)
        """(P, B, h, w)."""
        self.r_inv = torch.empty(0)
        """(P, h, w), (ΦΦᵀ)⁻¹, 0 at pixels that are never valid."""
        self.displace(NO_DISPLACEMENT)

    def displace(self, displacement: Displacement) -> None:
        """Shift the masks from their calibrated position, to the precision of `Displacement.rounded`."""
        calibration, displacement = self._calibration, displacement.rounded()
        # A copy: the calibration's arrays are read-only, which torch does not support.
        phi = torch.from_numpy(calibration.phi.copy()).to(self._device)
        phi = self.planes(phi if displacement.is_none else shift_masks(phi, displacement))
        # Recordings read the masks at their address: keep it.
        self.phi = self.phi.copy_(phi) if self.phi.shape == phi.shape else phi
        good = ~invalid_pixels(displacement, calibration.shape)
        if calibration.bad_pixels is not None:
            good &= torch.from_numpy(~calibration.bad_pixels)
        r_inv = inverse_gram(gram_diag(self.phi), self.planes(good.to(self._device)))
        self.r_inv = self.r_inv.copy_(r_inv) if self.r_inv.shape == r_inv.shape else r_inv
        self.position = displacement.to_text
        """The displacement as reports give it."""
        if self._in_place and "linear" in self.__dict__:
            with torch.inference_mode():  # as when it was created: inference tensors can be written only in this mode
                overwrite(self.linear, LmmseEstimator(self.phi, self.r_inv))
        else:
            self.__dict__.pop("linear", None)

    @cached_property
    def linear(self) -> LmmseEstimator:
        """The linear estimator of these masks."""
        return LmmseEstimator(self.phi, self.r_inv)

    def planes(self, image: torch.Tensor) -> torch.Tensor:
        """Add the plane dimension in front: four planes of a mosaic, else one."""
        return image.unsqueeze(0) if self._calibration.bayer is None else bayer_planes.split(image)

    def merged(self, planes: torch.Tensor) -> torch.Tensor:
        """Undo `planes`."""
        return planes.squeeze(0) if self._calibration.bayer is None else bayer_planes.merge(planes)
