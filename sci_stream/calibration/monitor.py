"""Is the calibration still true? Asked of every few snapshots while a rig runs."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from sci_stream.calibration.mask_order import OrderWatch, thumbnails
from sci_stream.calibration.mask_registration import MaskFit, MaskFitter
from sci_stream.model import Array, CalibrationHealth, Snapshot
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.mask_shift import NO_DISPLACEMENT, Displacement

CORRECT_FROM_PX = 0.015
"""A smaller displacement is left alone: estimating it is not much better than ignoring it."""

_STOP_CORRECTING_PX = 0.0075
_RENEW_PX = 0.003
_NEWEST = 0.8
"""Weight of the newest fit in the running mean."""
_MOVING_PX = 0.01
_OFTEN = 4
"""So many times as often masks are looked at, until they have moved by less than `_MOVING_PX` in `_CALM` looks."""
_CALM = 4
_MOST_SD_PX = 0.1
_LEAST_MATCH = 0.2
_LOST = 0.6
"""The masks are searched for again when they explain less than this part of what they did at best."""
_FIRST_PAIRS = 9
_BELOW_BLACK_DN, _BELOW_BLACK = 4.0, 0.01
"""Darker than the dark frame by more than this, and by more than this part of full scale, is no read noise."""


class CalibrationMonitor:
    """Follows the masks of one calibration through a run. Used from one thread; keeps a fraction of a percent of it.

    Parameters
    ----------
    calibration
        As it was measured.
    device
        Where to compute.
    every
        Assess one snapshot in this many, ≥ 1; more at the start, and while the masks move.
    correct
        Propose displaced masks, see `correction`.
    """

    def __init__(self, calibration: Calibration, device: torch.device, *, every: int, correct: bool) -> None:
        self._calibration = calibration
        self._every = every
        self._correct = correct
        self._fitter = MaskFitter(calibration, device) if MaskFitter.fits(calibration) else None
        self._order = OrderWatch(calibration.n_frames)
        self._displacement: Displacement | None = None
        self._best_match = 0.0
        self._seen = 0
        self._until_look = 0
        self._calm = 0
        self._previous: tuple[str, int, int, npt.NDArray[np.float32]] | None = None
        good = True if calibration.bad_pixels is None else ~calibration.bad_pixels
        self._light = np.where(good, calibration.phi.sum(axis=0), np.float32(0))
        self.correction = NO_DISPLACEMENT
        """Where the masks should be taken to be; changed by `look` alone, and never unless asked to correct."""

    def look(self, snapshot: Snapshot, video: Array) -> CalibrationHealth | None:
        """Take note of a snapshot and its reconstruction.

        Parameters
        ----------
        snapshot
            Of this calibration.
        video
            (B, H, W), reconstructed from it.

        Returns
        -------
        State of the calibration if this snapshot was assessed; else None.
        """
        self._watch_order(snapshot, video)
        self._seen += 1
        if self._until_look > 0:
            self._until_look -= 1
            return None
        y = self._calibration.measurement(snapshot.counts)
        valid = np.isfinite(y)
        if self._calibration.saturation_dn is not None:
            valid &= snapshot.counts < self._calibration.saturation_dn
        y = np.where(valid, y, np.float32(0))
        fit = self._fit(y, valid) if self._fitter is not None else None
        trusted = fit is not None and fit.match >= _LEAST_MATCH and fit.shift_sd_px <= _MOST_SD_PX
        if fit is not None and trusted:
            self._follow(fit)
        shift = self._displacement.shift_px if trusted and self._displacement is not None else (None, None)
        self._until_look = (self._every if self._calm >= _CALM else max(1, self._every // _OFTEN)) - 1
        order, first_mask = self._order.order
        return CalibrationHealth(
            shift_x_px=shift[0],
            shift_y_px=shift[1],
            shift_sd_px=fit.shift_sd_px if fit is not None and trusted else None,
            match=fit.match if fit is not None else None,
            contrast=fit.contrast if fit is not None and trusted else None,
            order=order,
            first_mask=first_mask,
            corrected=not self.correction.is_none,
            below_black_fraction=self._below_black(snapshot.counts),
            brightness=self._brightness(y, valid),
            gain=relative_gain(snapshot.chunks, self._calibration),
        )

    def _fit(self, y: npt.NDArray[np.float32], valid: npt.NDArray[np.bool_]) -> MaskFit:
        assert self._fitter is not None
        known = self._displacement
        if known is not None:
            fit = self._fitter.fit(y, valid, known)
            if fit.match >= _LOST * self._best_match:
                return fit
        found = self._fitter.fit(y, valid, self._fitter.search(y, valid))
        return found if known is None or found.match > fit.match else fit

    def _follow(self, fit: MaskFit) -> None:
        """Take a fit into the running mean, and decide where the masks should be taken to be."""
        self._best_match = max(fit.match, 0.98 * self._best_match)
        new = fit.displacement
        if self._displacement is not None and self._displacement.base_px == new.base_px:
            new = self._displacement.blended(new, _NEWEST)
        if self._displacement is not None:
            moving = _distance_px(new, self._displacement) >= _MOVING_PX
            self._calm = 0 if moving else self._calm + 1
        self._displacement = new
        if not self._correct:
            return
        distance = _distance_px(new, NO_DISPLACEMENT)
        if distance < (CORRECT_FROM_PX if self.correction.is_none else _STOP_CORRECTING_PX):
            self.correction = NO_DISPLACEMENT
        elif _distance_px(new, self.correction) >= _RENEW_PX:
            self.correction = new

    def _watch_order(self, snapshot: Snapshot, video: Array) -> None:
        """Compare each snapshot that is looked at with the one before it, and the first few to begin with."""
        if self._seen > _FIRST_PAIRS and self._until_look > 1:
            self._previous = None
            return
        small = thumbnails(video)
        id_ = snapshot.id
        if self._previous is not None and snapshot.dropped_before == 0:
            series, epoch, seq, before = self._previous
            if (series, epoch, seq + 1) == (id_.series, id_.epoch, id_.seq):
                self._order.see(before, small)
        self._previous = (id_.series, id_.epoch, id_.seq, small)

    def _below_black(self, counts: Array) -> float:
        """Return the fraction of pixels that are darker than the dark frame by more than noise can be."""
        tolerance_dn = max(_BELOW_BLACK_DN, _BELOW_BLACK * self._calibration.full_scale_dn)
        return float(np.mean(counts < self._calibration.dark - np.float32(tolerance_dn)))

    def _brightness(self, y: npt.NDArray[np.float32], valid: npt.NDArray[np.bool_]) -> float | None:
        """Return the mean of the video, 0–1, from the measurement alone: Σy/ΣΣφ over the pixels that hold."""
        light = self._light * valid
        total = float(light.sum(dtype=np.float64))
        return float(y[light > 0].sum(dtype=np.float64)) / total if total > 0 else None


def relative_gain(chunks: Mapping[str, object], calibration: Calibration) -> float | None:
    """Return how much a camera exposes and amplifies, by what it adds to a frame, relative to the calibration.

    Parameters
    ----------
    chunks
        Of a snapshot: ``ExposureTime`` in µs, ``Gain`` in dB, as GenICam's naming convention has them.
    calibration
        With exposure time and gain, as far as they are known.

    Returns
    -------
    1 where both are as they were; None where nothing can be compared.
    """
    exposure_us, gain_db = chunks.get("ExposureTime"), chunks.get("Gain")
    parts = []
    if calibration.exposure_ns and isinstance(exposure_us, int | float):
        parts.append(1e3 * exposure_us / calibration.exposure_ns)
    if calibration.gain_db is not None and isinstance(gain_db, int | float):
        parts.append(10 ** (min(max(gain_db - calibration.gain_db, -200.0), 200.0) / 20))
    return math.prod(parts) if parts else None


def _distance_px(a: Displacement, b: Displacement) -> float:
    return max(abs(one - other) for one, other in zip(a.shift_px, b.shift_px, strict=True))
