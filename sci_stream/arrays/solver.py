"""Solve arrays: masks and snapshots on the caller's scale, with a guarded solver."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from sci_stream.arrays.inputs import (
    AnyArray,
    as_series,
    real_array,
    require_fit,
    true_frames,
)
from sci_stream.arrays.pairing import paired
from sci_stream.arrays.scale import estimated_white
from sci_stream.calibration.diagnosis import WITHHELD
from sci_stream.calibration.evidence.defect import Defect
from sci_stream.calibration.evidence.inspection import stuck_in
from sci_stream.calibration.evidence.true_frames import truth_defects
from sci_stream.calibration.monitor import LEARNING_SNAPSHOTS
from sci_stream.errors import DataError, InputError
from sci_stream.model import F32, Array, BayerPhase, Flags, Snapshot
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.mask_errors import in_recorded_light
from sci_stream.optics.white import transmission
from sci_stream.ports import Reconstructor, Solver
from sci_stream.recon.backend.device import pick_device
from sci_stream.recon.backend.half_precision import Precision
from sci_stream.recon.denoisers.external import as_solver, defaults_of
from sci_stream.recon.denoisers.registry import chosen_denoiser, named_prior
from sci_stream.recon.engine import Engine
from sci_stream.recon.guarded import NO_GUARD, Delivered, Guard, GuardedSolver
from sci_stream.recon.joint import Solved, jointly
from sci_stream.recon.networks.network import Network
from sci_stream.recon.settings import (
    SolverSettings,
    default_settings,
    settings_for,
    suited_to_masks,
)
from sci_stream.reports import SolveReport

AnySolver = str | Callable[..., Any] | Network | Reconstructor
Progress = Callable[[int, int], None]
"""Called after each iteration with the number done and the total."""

OnMismatch = Literal["raise", "snapshot"]
"""What to do where the masks do not fit or a solve diverges: raise, or return the snapshot."""

LightChoice = Literal["even", "as_recorded"]
"""Light of the video: even over the frames of an exposure, or as it was."""


@dataclass(frozen=True)
class ArrayOptions:
    """Options of the solver; see `sci_stream.reconstruct`."""

    iterations: int | None = None
    solver: AnySolver = "auto"
    weights: str | Path | None = None
    sigmas: tuple[float, float] | None = None
    device: str = "auto"
    noise: float | None = None
    white: float | None = None
    bayer: BayerPhase | str | None = None
    check_masks: bool = True
    on_mismatch: OnMismatch = "raise"
    light: LightChoice = "even"
    lamps_hz: float | None = None
    warm_start: bool = True


class ArraySolver:
    """Check arrays, bring them to the engine's scale and solve them one after the other.

    For a series call `begin`, then `videos`; for a stream `take` and `solve` with each snapshot,
    and `start` with the first.
    """

    def __init__(self, masks: AnyArray | Calibration, options: ArrayOptions) -> None:
        self._options = options
        self._found: dict[str, Defect] = {}
        self._solver: GuardedSolver | None = None
        self._masks_max = 1.0
        _require_options(options)
        exposure_ns = masks.exposure_ns if isinstance(masks, Calibration) else None
        if options.lamps_hz is not None and not exposure_ns:
            raise InputError(
                "lamps_hz needs the duration of the frames",
                expected="masks that are a Calibration with exposure_ns",
                got=type(masks).__name__,
                hint="Pass Calibration(phi=masks, exposure_ns=…), or omit lamps_hz.",
            )
        if isinstance(masks, Calibration):
            self.calibration = _with_options(masks, options)
            self.white = masks.full_scale_dn
            self._measured_masks = True
        else:
            self.white = float(options.white or 0.0)
            self._measured_masks = False
            self._take_masks(masks)
        self.device = pick_device(options.device)
        self.solver, settings = _solver(options.solver, options.weights, self.device)
        settings = _adjusted(suited_to_masks(settings, self.calibration.fineness), options)
        self.settings = settings

    def _take_masks(self, masks: AnyArray) -> None:
        values = real_array(masks, "masks", invalid=True)
        if values.ndim == 4 and len(values) == 1:
            values = values[0]
        valid = np.isfinite(values)
        self._masks_max, phi = transmission(np.where(valid, values, values.dtype.type(0)))
        self.calibration = Calibration(
            phi=phi,
            full_scale_dn=self.white or 1.0,
            read_noise_dn=self._options.noise,
            bayer=BayerPhase.named(self._options.bayer),
        )
        self._leave_out(valid, "the masks")

    @property
    def defects(self) -> list[Defect]:
        """Defects so far, one of each name."""
        defects = dict(self._found)
        if self._solver is not None:
            for defect in self._solver.defects:
                defects.setdefault(defect.name, defect)
        return list(defects.values())

    @property
    def withholds(self) -> bool:
        """Whether a video would be made up: the snapshots are returned in its place."""
        return any(defect.fatal for defect in self.defects)

    def take(self, y: AnyArray) -> Array:
        """Return snapshots as (N, H, W), with 0, or NaN after `start`, in invalid pixels.

        Raises as `as_series`.
        """
        series = as_series(real_array(y, "y", invalid=True))
        require_fit(series, self.calibration.phi.shape)
        valid = np.isfinite(series)
        self._leave_out(valid, "y")
        invalid = 0 if self._solver is None or valid.all() else np.nan
        return np.where(valid, series, series.dtype.type(invalid))

    def _leave_out(self, valid: Flags, name: str) -> None:
        invalid = np.asarray(~valid.all(0))
        if not invalid.any():
            return
        text = f"{int(invalid.sum())} pixels of {name} are NaN or infinite: left out"
        self._found.setdefault("invalid_pixels", Defect("invalid_pixels", text, corrected=True))
        if self._solver is not None:
            return  # the engine leaves out NaN
        bad = invalid | ~self.calibration.good
        self.calibration = dataclasses.replace(self.calibration, bad_pixels=bad)

    def begin(self, y: Sequence[Array] | Array, seqs: range, truth: AnyArray | None) -> None:
        """Take some snapshots of a series, (N, H, W), and its truth; find the scale and errors of
        the masks.

        Raises `DataError` if the masks do not fit the snapshots, unless ``on_mismatch`` is
        ``"snapshot"``.
        """
        masks = self.calibration.phi.shape
        require_fit(y[0], masks)
        self._series = y, seqs
        self._truth = None if truth is None else true_frames(truth, len(y), masks)
        # Where the scale is known, a long recording is not read for it.
        some = seqs[:1] if self.white else range(len(y))
        shown = real_array(np.asarray(y[some.start : some.stop]), "y")
        self.start(shown, None if self._truth is None else self._truth[some.start : some.stop])
        assert self._solver is not None
        for seq in seqs[:LEARNING_SNAPSHOTS]:
            self._solver.measure(self.snapshot(seq, real_array(y[seq], f"snapshot {seq}")))
        self._require_video()

    def start(self, y: Array, truth: Array | None) -> None:
        """Pair the masks with the first snapshots, (N, H, W), find their scale, make the engine."""
        checks = self._options.check_masks
        if checks and not self._measured_masks:
            self.calibration, defects = paired(y[0], self.calibration)
            self._found |= {defect.name: defect for defect in defects}
        if not self.white:
            phi = self.calibration.phi * self.calibration.good
            if checks:
                phi = phi * ~stuck_in(y[0], self.calibration)
            self.white = estimated_white(y, phi, truth, self._masks_max)
            self.calibration = dataclasses.replace(self.calibration, full_scale_dn=self.white)
        if checks and truth is not None and len(truth):
            for defect in truth_defects(y[: len(truth)], self.calibration, truth):
                self._found.setdefault(defect.name, defect)
        engine = Engine(self.calibration, self.solver, self.device, self.settings)
        self.settings = engine.settings
        guard = Guard(lamps_hz=self._options.lamps_hz) if checks else NO_GUARD
        self._solver = GuardedSolver(engine, guard)

    def videos(self, progress: Progress) -> Iterator[tuple[F32, SolveReport]]:
        """Solve the snapshots in order, those of a scene jointly; ``progress`` is called after each
        iteration.
        """
        y, seqs = self._series
        total = len(seqs) * self.settings.iterations
        steps = itertools.count(1)
        assert self._solver is not None
        self._solver.engine.keeps_tail = len(seqs) > 1

        def solved() -> Iterator[Solved]:
            for seq in seqs:
                known = self._truth is not None and seq < len(self._truth)
                true = self._truth[seq] if self._truth is not None and known else None
                counts = real_array(y[seq], f"snapshot {seq}")
                yield self._solved(seq, counts, true, lambda: progress(next(steps), total))

        for _, delivered in jointly(solved()):
            yield self._output(delivered)

    def solve(self, seq: int, y: Array) -> tuple[F32, SolveReport]:
        """Reconstruct snapshot ``seq``, (H, W), from the one before it.

        On a GPU solves are recorded, which pays in a long series.

        Raises `DataError` as `begin`, and if the solve diverges.
        """
        _, delivered = self._solved(seq, y)
        return self._output(delivered)

    def _output(self, delivered: Delivered) -> tuple[F32, SolveReport]:
        """Return the video, in the light of the options, and its report."""
        video = delivered.video
        report = delivered.report
        if self._options.light == "as_recorded" and report.start_reason != WITHHELD:
            video = in_recorded_light(video, report.masks_at)
        return video.astype(np.float32, copy=False), report

    def _solved(
        self,
        seq: int,
        y: Array,
        truth: Array | None = None,
        count: Callable[[], None] | None = None,
    ) -> Solved:
        """Solve a snapshot; ``count`` is called after each iteration. Raises as `solve`."""
        assert self._solver is not None
        snapshot = self.snapshot(seq, y, truth)
        watch = None if count is None else (lambda _video: count())
        delivered = self._solver.solve(snapshot, watch=watch)
        if delivered.report.start_reason == "diverged":
            text = (
                f"the solve of snapshot {seq} diverged to NaN or infinity with the denoiser "
                f"{self.solver.name}: check the scale of y and the masks, or choose another one"
            )
            self._found["diverged"] = Defect("diverged", text, fatal=True)
        self._require_video()
        return snapshot, delivered

    def _require_video(self) -> None:
        if self._options.on_mismatch == "snapshot":
            return
        for defect in self.defects:
            if not defect.fatal:
                continue
            hint = 'on_mismatch="snapshot" returns the snapshot in place of a video'
            if defect.name != "diverged":
                hint += ", check_masks=False solves it all the same"
            raise DataError(f"{defect.text[:1].upper()}{defect.text[1:]}", hint=f"{hint}.")

    def snapshot(self, seq: int, y: Array, truth: Array | None = None) -> Snapshot:
        """Return arrays as the engine takes them."""
        counts = np.asarray(y, np.float32) if y.dtype not in (np.uint8, np.uint16) else y
        return self.calibration.snapshot("arrays", seq, counts, truth)


def _require_options(options: ArrayOptions) -> None:
    """Raise `InputError` if an option is invalid by itself."""
    white = options.white
    if white is not None and not (_is_finite(white) and white > 0):
        raise InputError("white is invalid", expected="a finite number > 0", got=repr(white))
    noise = options.noise
    if noise is not None and not (_is_finite(noise) and noise >= 0):
        raise InputError("noise is invalid", expected="a finite number ≥ 0", got=repr(noise))
    hz = options.lamps_hz
    if hz is not None and not (_is_finite(hz) and hz > 0):
        raise InputError("lamps_hz is invalid", expected="a finite number > 0, Hz", got=repr(hz))
    if options.light not in ("even", "as_recorded"):
        raise InputError(
            "light is invalid", expected="'even' or 'as_recorded'", got=repr(options.light)
        )
    if options.on_mismatch not in ("raise", "snapshot"):
        raise InputError(
            "on_mismatch is invalid",
            expected="'raise' or 'snapshot'",
            got=repr(options.on_mismatch),
        )


def _is_finite(value: object) -> bool:
    number = np.asarray(value)
    return number.shape == () and number.dtype.kind in "fiu" and bool(np.isfinite(number))


def _with_options(calibration: Calibration, options: ArrayOptions) -> Calibration:
    """Return a calibration with the noise of the options."""
    if options.white is not None or options.bayer is not None:
        raise InputError(
            "white and bayer are part of the calibration",
            hint="Omit them, or pass masks as an array.",
        )
    if options.noise is None:
        return calibration
    return dataclasses.replace(calibration, read_noise_dn=options.noise, gain_e_per_dn=None)


def _solver(
    solver: AnySolver, weights: str | Path | None, device: torch.device
) -> tuple[Solver, SolverSettings]:
    """Return the solver on the device and the settings that suit it."""
    path = None if weights is None else Path(weights)
    if isinstance(solver, str):
        name = chosen_denoiser(solver, device, path)
        return named_prior(name, device, path, Precision.AUTO), default_settings(device, name)
    return as_solver(solver, device, path), settings_for(defaults_of(solver), device)


def _adjusted(settings: SolverSettings, options: ArrayOptions) -> SolverSettings:
    if (iterations := options.iterations) is not None:
        if not _is_finite(iterations) or iterations % 1 or iterations < 1:
            raise InputError(
                "iterations is invalid", expected="an integer ≥ 1", got=repr(iterations)
            )
        least = min(settings.min_iterations, iterations)
        settings = dataclasses.replace(settings, iterations=int(iterations), min_iterations=least)
    if options.sigmas is not None:
        settings = dataclasses.replace(
            settings, sigma_first=options.sigmas[0], sigma_last=options.sigmas[1]
        )
    return dataclasses.replace(
        settings, warm_start=options.warm_start, weigh_noise=options.noise != 0
    )
