"""The rigs of `bench reality`: masks, blur, frames per snapshot, colour; and their snapshots under
a perturbation.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np

from sci_stream.errors import ConfigError
from sci_stream.files.measurement_file import load_measurement
from sci_stream.model import Snapshot
from sci_stream.optics.calibration import Calibration
from sci_stream_drivers.simulated.masks import moving_patterns
from sci_stream_lab.bench.reality.optics import (
    F32,
    MARGIN_PX,
    PatternOptics,
    measured_patterns,
    random_patterns,
    shifting_patterns,
)
from sci_stream_lab.bench.reality.perturbations import Perturbation, SensorModel, sensor_for
from sci_stream_lab.bench.reality.scenes import BAYER, SceneUnavailableError, data_folder

BLURS_PX: Final = (0.0, 0.3, 0.5, 0.8)
FRAMES: Final = (8, 14, 24)

_FILES: Final = {"published": "benchmark/*_cacti.mat", "measured": "real/*_cacti.mat"}


@dataclass(frozen=True, slots=True)
class OpticalSetup:
    """Masks of one kind with a blur; B; and whether the sensor has colour filters.

    ``patterns`` are ``published``, the masks of the published simulations, ``random``, generated
    binary ones, ``shift``, one that moves, ``moving``, one that moves by less than the size of its
    elements, as measured ones do, or ``measured``, the real capture's grey ones.
    """

    patterns: str
    blur_px: float
    n_frames: int
    colour: bool = False

    @property
    def name(self) -> str:
        """The rig in words."""
        return (
            f"{self.patterns} s={self.blur_px:g} B={self.n_frames}{' Bayer' if self.colour else ''}"
        )

    @property
    def seed(self) -> int:
        """Seed of everything random about it, equal in every process."""
        return zlib.crc32(self.name.encode())

    def optics(self, size: int) -> PatternOptics:
        """Return its masks over a square field.

        Raises
        ------
        SceneUnavailableError
            If the masks are those of a file that is not there, or has others.
        """
        rng = np.random.default_rng(self.seed)
        shape = (size, size)
        if self.patterns == "random":
            patterns = random_patterns(self.n_frames, shape, rng)
        elif self.patterns == "shift":
            patterns = shifting_patterns(self.n_frames, shape, rng)
        elif self.patterns == "moving":
            with_margin = (size + 2 * MARGIN_PX, size + 2 * MARGIN_PX)
            patterns = moving_patterns(self.n_frames, with_margin, rng).astype(np.float32)
        else:
            patterns = measured_patterns(self._file_masks(size), shape)
        return PatternOptics(patterns, self.blur_px)

    def _file_masks(self, size: int) -> F32:
        for path in sorted(data_folder().glob(_FILES[self.patterns])):
            mask = np.asarray(load_measurement(path).masks)
            if len(mask) == self.n_frames and min(mask.shape[1:]) >= size:
                return np.asarray(mask, np.float32) / np.float32(mask.max())
        raise SceneUnavailableError(
            f"there are no {self.patterns} masks of B = {self.n_frames} and {size} pixels"
        )


RIGS: Final = (
    OpticalSetup("published", 0.0, 8),
    OpticalSetup("published", 0.3, 8),
    OpticalSetup("published", 0.5, 8),
    OpticalSetup("published", 0.8, 8),
    OpticalSetup("random", 0.5, 14, colour=True),
    OpticalSetup("shift", 0.5, 14),
    OpticalSetup("shift", 0.8, 8, colour=True),
    OpticalSetup("shift", 0.3, 24),
    OpticalSetup("random", 0.8, 24),
    OpticalSetup("moving", 0.6, 14),
    OpticalSetup("measured", 0.0, 14),
)
"""The default rigs: each kind of masks, each blur, each B, grey and Bayer, several times, but not
their product."""

QUICK_RIGS: Final = (
    OpticalSetup("published", 0.5, 8),
    OpticalSetup("random", 0.5, 14, colour=True),
    OpticalSetup("shift", 0.3, 14),
)
"""A minute's worth."""

ALL_RIGS: Final = (
    *(OpticalSetup("published", blur, 8) for blur in BLURS_PX),
    *(
        OpticalSetup(patterns, blur, B, colour)
        for patterns, blur, B, colour in product(
            ("random", "shift", "moving"), BLURS_PX, FRAMES, (False, True)
        )
    ),
    OpticalSetup("measured", 0.0, 14),
)
"""The product of everything that can be generated, besides the masks that come from files."""


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """Snapshots of a scene with the calibration that the rig has, and the one that it should have.

    ``exact`` has the masks through which the scene was seen and the noise of the sensor;
    ``assumed`` the unperturbed masks, and nothing about noise. The snapshots of both differ in
    nothing but the calibration that they name.
    """

    assumed: Calibration
    exact: Calibration
    snapshots: tuple[Snapshot, ...]

    def of(self, calibration: Calibration) -> tuple[Snapshot, ...]:
        """Return the snapshots as if acquired with this calibration."""
        return tuple(
            calibration.snapshot("bench", s.id.seq, s.counts, s.truth) for s in self.snapshots
        )


def film(
    rig: OpticalSetup, optics: PatternOptics, videos: F32, perturbation: Perturbation
) -> Series:
    """Film a scene with a perturbed rig.

    Parameters
    ----------
    rig
        It gives the seed.
    optics
        Its masks as calibrated.
    videos
        (S, B, H, W), the true frames of S snapshots, 0–1; a mosaic if the rig has colour filters.
    perturbation
        What happened to the rig after its calibration; the same for all snapshots.
    """
    perturbed = perturbation.applied(optics, rig.seed)
    assumed, true = optics.masks(), perturbed.masks()
    measured = [np.einsum("bhw,bhw->hw", true, video) for video in videos]
    sensor = sensor_for(perturbation, max(float(y.max()) for y in measured))
    rng = np.random.default_rng([rig.seed, 1])
    calibration = _calibration(rig, assumed, sensor, knows_noise=False)
    snapshots = tuple(
        calibration.snapshot("bench", seq, sensor.counts(y, rng), video)
        for seq, (y, video) in enumerate(zip(measured, videos, strict=True))
    )
    exact = (
        calibration if not perturbation.parts else _calibration(rig, true, sensor, knows_noise=True)
    )
    return Series(calibration, exact, snapshots)


def _calibration(
    rig: OpticalSetup, phi: F32, sensor: SensorModel, *, knows_noise: bool
) -> Calibration:
    # A gain above 1 is no transmission: the calibration has it in the scale.
    peak = max(1.0, float(phi.max()))
    return Calibration(
        phi=np.clip(phi / np.float32(peak), 0, 1),
        full_scale_dn=sensor.full_scale_dn * peak,
        saturation_dn=None if sensor.max_dn is None else float(sensor.max_dn),
        read_noise_dn=sensor.noise_dn if knows_noise and sensor.noise_dn else None,
        bayer=BAYER if rig.colour else None,
        source=f"bench reality: {rig.name}",
    )


def choose_rigs(
    rigs: tuple[OpticalSetup, ...],
    *,
    patterns: tuple[str, ...] = (),
    blurs_px: tuple[float, ...] = (),
    frames: tuple[int, ...] = (),
) -> tuple[OpticalSetup, ...]:
    """Return the rigs with these properties; an empty tuple allows any.

    Raises
    ------
    ConfigError
        If there is none.
    """
    chosen = tuple(
        rig
        for rig in rigs
        if (not patterns or rig.patterns in patterns)
        and (not blurs_px or rig.blur_px in blurs_px)
        and (not frames or rig.n_frames in frames)
    )
    if not chosen:
        raise ConfigError(
            "No rig has these properties",
            expected="; ".join(rig.name for rig in rigs),
            got=f"masks {patterns or 'any'}, blur {blurs_px or 'any'}, frames {frames or 'any'}",
            hint="--full has more rigs.",
        )
    return chosen
