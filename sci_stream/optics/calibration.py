"""The calibration of an SCI camera: masks, dark frame, scale and noise."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

import numpy as np

from sci_stream.errors import CalibrationError
from sci_stream.field_types import BitDepth, Count, Label, NonNegative, Number, Payload, Sentence
from sci_stream.model import F32, Array, BayerPhase, Flags, Snapshot, SnapshotId

# 128 bits: enough against accidental collisions, short enough for names and log lines.
_HASH_HEX_DIGITS = 32
# Light of a row or column of a mask, relative to the mean of all, below which it lies outside of
# the open field.
_DARK_EDGE = 0.05

BLIND_SHARE = 1e-3
"""Σφ² of a blind pixel, as a share of the mean of all pixels. A blind pixel is not measured.

Real masks leak where they are closed, and a correction of their blur lets them leak. Division by
such a Σφ² amplifies every error of the masks. Tuned on Drop, where a leak of 1e-5 cost 5.9 dB;
1e-2 of pixels that leak by 1e-6 to 1e-1 lose nothing on Traffic and Crash.
"""


# The scalars that scale the counts, and their units.
_UNITS = {"full_scale_dn": "DN", "read_noise_dn": "DN", "gain_e_per_dn": "electrons per DN"}


def _require_transmissions(phi: Array) -> None:
    """Raise `CalibrationError` unless masks are transmissions that cover one field."""
    if phi.ndim != 3 or 0 in phi.shape:
        raise CalibrationError(
            "The mask stack phi has an invalid shape",
            expected="(B, H, W), none of them 0",
            got=phi.shape,
        )
    invalid = int((~np.isfinite(phi)).sum())
    if invalid:
        raise CalibrationError(
            "The mask stack phi contains NaN or infinity", got=f"{invalid} such values"
        )
    low = float(phi.min())
    high = float(phi.max())
    if low < 0.0 or high > 1.0:
        raise CalibrationError(
            "The mask stack phi is not a transmission",
            expected="values in [0, 1]",
            got=f"{low:.4g} to {high:.4g}",
            hint="Divide masks by their maximum, or use `Calibration` only after dark and "
            "white correction.",
        )
    if _field_moves(phi):
        raise CalibrationError(
            "Each mask covers another part of a wider canvas, as the bands behind a prism do",
            expected="masks that all cover the whole field",
            hint="Spectral cameras are not supported: their bands would come out as frames "
            "that drift.",
        )


def _frozen(array: Array, dtype: type[np.generic]) -> Array:
    out = np.ascontiguousarray(array, dtype=dtype)
    if out is array or out.base is not None:
        out = out.copy()
    out.flags.writeable = False
    return out


@dataclass(frozen=True, eq=False)
class Calibration:
    r"""The validated mask stack Φ of a camera with its dark frame and scale.

    The counts of a pixel are, in DN, ``counts = dark + full_scale_dn · Σ_b φ_b x_b`` with the scene
    x on the 0–1 scale, so the measurement of the paper's Eq. (1) is ``y = (counts − dark) /
    full_scale_dn``.

    Parameters
    ----------
    phi
        (B, H, W), transmission of each mask, 0–1; calibrated masks are grey, not binary. Copied,
        read-only.
    dark
        (H, W) or a scalar, DN: counts without light.
    full_scale_dn
        Counts added by one frame of scene brightness 1 through a fully open mask, DN, > 0.
    saturation_dn
        Counts from here up are clipped and excluded from the data term; None if unknown.
    bad_pixels
        (H, W) bool, pixels excluded from the data term.
    read_noise_dn, gain_e_per_dn
        Standard deviation of counts without light, ≥ 0, and electrons per DN, > 0, which determine
        the shot noise; None if unknown. Reconstruction weights each count by them.
    bit_depth, bayer, camera_serial, exposure_ns, gain_db, created, source, patterns
        Conditions of the measurement, for checks against the camera and for the record; ``created``
        is an ISO 8601 time, ``source`` describes the origin, ``patterns`` is the hash of the
        patterns that a modulator showed.

    Raises
    ------
    CalibrationError
        If the shapes do not fit, values are not finite, φ leaves [0, 1] or the noise is invalid.
    """

    phi: Annotated[F32, Payload(("float32",), 3)]
    dark: Annotated[F32, Payload(("float32",), 2)] = field(
        default_factory=lambda: np.zeros((), np.float32)
    )
    full_scale_dn: NonNegative = 1.0
    saturation_dn: Number | None = None
    bad_pixels: Annotated[Flags | None, Payload(("uint8",), 2, optional=True)] = None
    read_noise_dn: NonNegative | None = None
    gain_e_per_dn: NonNegative | None = None
    bit_depth: BitDepth | None = None
    bayer: BayerPhase | None = None
    camera_serial: Label = ""
    exposure_ns: Count | None = None
    gain_db: Number | None = None
    created: Label = ""
    source: Sentence = ""
    patterns: Label = ""

    def __post_init__(self) -> None:
        phi = np.asarray(self.phi)
        _require_transmissions(phi)
        _, height, width = phi.shape
        dark = np.asarray(self.dark, dtype=np.float32)
        if dark.shape not in ((), (height, width)) or not np.isfinite(dark).all():
            raise CalibrationError(
                "The dark frame does not fit the masks",
                expected=f"a finite scalar or ({height}, {width})",
                got=dark.shape,
            )
        self._require_scalars()
        if self.bayer is not None and (height % 2 or width % 2):
            raise CalibrationError(
                "A Bayer mosaic needs even height and width",
                got=f"{height}×{width} with phase {self.bayer}",
            )
        object.__setattr__(self, "phi", _frozen(phi, np.float32))
        whole_dark = np.broadcast_to(dark, (height, width))
        object.__setattr__(self, "dark", _frozen(whole_dark, np.float32))
        if self.bad_pixels is None:
            return
        bad_pixels = np.asarray(self.bad_pixels)
        if bad_pixels.shape != (height, width):
            raise CalibrationError(
                "The bad-pixel map does not fit the masks",
                expected=(height, width),
                got=bad_pixels.shape,
            )
        object.__setattr__(self, "bad_pixels", _frozen(bad_pixels, np.bool_))

    def _require_scalars(self) -> None:
        """Raise `CalibrationError` unless scale and noise are numbers of their range."""
        for name, unit in _UNITS.items():
            value = getattr(self, name)
            may_be_zero = name == "read_noise_dn"
            if value is None and name != "full_scale_dn":
                continue
            if not np.isfinite(value) or value < 0 or (value == 0 and not may_be_zero):
                expected = "0 or more" if may_be_zero else "more than 0"
                raise CalibrationError(
                    f"{name} is no number of {unit}", expected=expected, got=value
                )

    @property
    def n_frames(self) -> int:
        """B, the number of frames per snapshot."""
        return int(self.phi.shape[0])

    @property
    def shape(self) -> tuple[int, int]:
        """(H, W) of the sensor."""
        return int(self.phi.shape[1]), int(self.phi.shape[2])

    @property
    def good(self) -> Flags:
        """(H, W): pixels that are not bad."""
        return np.ones(self.shape, np.bool_) if self.bad_pixels is None else ~self.bad_pixels

    @cached_property
    def gram_diag(self) -> F32:
        """(H, W) R = diag(ΦΦᵀ) = Σ_b φ_b², the paper's R_j. Zero for pixels that no mask opens."""
        r: F32 = np.einsum("bhw,bhw->hw", self.phi, self.phi)
        r.flags.writeable = False
        return r

    @cached_property
    def blind(self) -> Flags:
        """(H, W): pixels that no mask opens, or that the masks open too little to be measured."""
        r = self.gram_diag
        return np.asarray(r <= BLIND_SHARE * r.mean())

    @cached_property
    def fineness(self) -> float:
        """How fine the masks are, 0.1 to 1 in tenths: their mean squared spatial frequency relative
        to white noise.

        1 for independent elements of a pixel; masks of the capture 4fan14, of elements of two
        pixels with blur, 0.3.
        """
        step = 1 if self.bayer is None else 2  # neighbours of a plane
        if min(self.shape) <= step:
            return 1.0
        rows = self.phi[:, step:] - self.phi[:, :-step]
        columns = self.phi[..., step:] - self.phi[..., :-step]
        changes = float(np.square(rows).mean() + np.square(columns).mean())
        variance = float(self.phi.var((1, 2)).mean())
        return min(1.0, max(0.1, round(changes / (4 * variance), 1))) if variance > 0 else 1.0

    @cached_property
    def hash(self) -> str:
        """Hash of the content: equal for equal masks, dark frame, bad pixels, scale and noise, of
        any origin.
        """
        digest = hashlib.sha256()
        scalars = {
            "shape": self.phi.shape,
            "full_scale_dn": float(self.full_scale_dn),
            "saturation_dn": None if self.saturation_dn is None else float(self.saturation_dn),
            "bayer": self.bayer,
            "bad_pixels": self.bad_pixels is not None,
        }
        scalars |= {
            name: float(value)
            for name in ("read_noise_dn", "gain_e_per_dn")
            if (value := getattr(self, name)) is not None
        }
        digest.update(json.dumps(scalars, sort_keys=True).encode())
        digest.update(self.phi.data)
        digest.update(self.dark.data)
        if self.bad_pixels is not None:
            digest.update(self.bad_pixels.data)
        return digest.hexdigest()[:_HASH_HEX_DIGITS]

    @property
    def noise(self) -> tuple[float, float] | None:
        """Return the terms of the noise variance of y, a + b·max(y, 0); None if unknown.

        First a, of the read noise, then b, of the shot noise: both ≥ 0.
        """
        if self.read_noise_dn is None and self.gain_e_per_dn is None:
            return None
        shot = (
            0.0 if self.gain_e_per_dn is None else 1.0 / (self.gain_e_per_dn * self.full_scale_dn)
        )
        return ((self.read_noise_dn or 0.0) / self.full_scale_dn) ** 2, shot

    def snapshot(
        self, series: str, seq: int, counts: Array, truth: Array | None = None
    ) -> Snapshot:
        """Return counts from a file or a simulation, (H, W), as a snapshot of a series."""
        return Snapshot(
            id=SnapshotId(series, 0, seq),
            counts=counts,
            calibration_hash=self.hash,
            n_frames=self.n_frames,
            host_time_ns=0,
            bayer=self.bayer,
            truth=truth,
        )

    def measurement(self, counts: Array) -> F32:
        """Return y = (counts − dark) / full_scale_dn, (H, W) float32,
        in units of scene brightness.
        """
        if counts.shape != self.shape:
            raise CalibrationError(
                "A snapshot does not fit the calibration",
                expected=f"{self.shape} pixels",
                got=counts.shape,
            )
        y = np.subtract(counts, self.dark, dtype=np.float32)
        y /= np.float32(self.full_scale_dn)
        return y


def _field_moves(phi: Array) -> bool:
    """Return whether both borders of the open field move on from each mask to the next."""
    for axis in (1, 2):
        light = phi.mean(axis)
        lit = light > _DARK_EDGE * light.mean()
        steps = np.diff([lit.argmax(1), -lit[:, ::-1].argmax(1)])
        if min(len(phi) - 2, light.shape[1] - 8) > 0 and bool(
            (steps > 0).all() or (steps < 0).all()
        ):
            return True
    return False
