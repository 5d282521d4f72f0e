"""Reconstruct arrays: ``sci_stream.reconstruct`` and ``sci_stream.reconstruct_stream``."""

from __future__ import annotations

import dataclasses
import html
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sci_stream.calibration.diagnosis import findings, is_withheld, withhold
from sci_stream.calibration.evidence import (
    MATCH,
    OF_RIGHT_MASKS,
    Defect,
    inspect,
    mask_fit,
    truth_defects,
)
from sci_stream.calibration.monitor import LEARNING_SNAPSHOTS, CalibrationMonitor
from sci_stream.errors import InputError, require_optional
from sci_stream.file_guard import complete_output
from sci_stream.files.video_output import FOLDERS, VideoStack, as_page, format_of, write_video
from sci_stream.imaging.tone import ToneSettings
from sci_stream.model import Array, BayerPhase, Snapshot
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.mask_errors import MaskCorrection
from sci_stream.optics.white import brightness_percentile, fit_white, transmission, white_level
from sci_stream.recon.algorithms.unrolled import Prior
from sci_stream.recon.backend.device import pick_device
from sci_stream.recon.backend.half_precision import Precision
from sci_stream.recon.denoisers.external import CallableDenoiser, DenoiserDefaults
from sci_stream.recon.denoisers.registry import chosen_denoiser, named_prior
from sci_stream.recon.engine import Engine
from sci_stream.recon.settings import (
    SolverSettings,
    default_settings,
    settings_for,
    suited_to_masks,
)
from sci_stream.reports import SolveReport

AnyArray = Array | torch.Tensor
AnyDenoiser = str | Callable[..., Any]
Progress = Callable[[int, int], None]
"""Called after each iteration with the number done and the total."""

# Mean brightness, 99.5th percentile, at which floating-point y has a known scale: that of a scene
# of at least a quarter of white, with room for noise above it. Otherwise the percentile itself is
# white, as for counts.
_KNOWN_SCALE = (0.25, 1.25)
# Snapshots between checks of the masks once they are known to fit; a check costs a twentieth of a
# solve.
_CHECK_EVERY = 4


class DataWarning(UserWarning):
    """The data has a defect, which the text names with its remedy."""


class MaskMismatchWarning(DataWarning):
    """The masks do not belong to the measurement, or are in another order: no video is made up."""


@dataclass(frozen=True, slots=True, eq=False)
class Reconstructed:
    """Result of `reconstruct`.

    Parameters
    ----------
    video
        (B, H, W) for one snapshot, (N, B, H, W) for a series: float32, 0–1, not clipped, a Bayer
        mosaic if the masks are. A NumPy array or, if y was one, a torch tensor on the device of y.
    reports
        How each snapshot was solved.
    psnr_db
        Mean PSNR over all frames, dB, peak 1.0; None without truth.
    white
        Value of y that became 1.0 in the video: the value that a white frame adds through an open
        mask.
    defects
        Defects that the snapshots show; ``fatal`` ones withhold the video.
    snapshots
        y as (N, H, W).
    bayer
        Phase of the mosaic.
    """

    video: Any
    reports: tuple[SolveReport, ...]
    psnr_db: float | None
    white: float
    defects: tuple[Defect, ...] = ()
    snapshots: Array = field(default_factory=lambda: np.zeros((0, 0, 0)), repr=False)
    bayer: BayerPhase | None = None

    @property
    def faults(self) -> tuple[str, ...]:
        """The defects, a sentence each with its remedy."""
        return tuple(defect.text for defect in self.defects)

    def save(
        self, path: str | Path, *, fps: float = 25.0, gamma: float = 1.0, replace: bool = False
    ) -> Path:
        """Write the video to a file: ``.mp4``, ``.gif``, ``.tif``, ``.zarr``, ``.npz``, ``.html``,
        or others.

        ``fps``, Hz, of films; ``gamma`` of pictures: 2.2 suits linear light; ``replace`` an
        existing file. Mosaics are written in colour. Raises `InputError` for an unknown suffix,
        `StorageError` if the file cannot be written.
        """
        path, tone = Path(path), ToneSettings().changed({"gamma": gamma})
        form = format_of(path)
        with complete_output(path, replace=replace, folder=FOLDERS.get(form, "")) as partial:
            write_video(partial, self._stack(path.stem), form, tone=tone, fps=fps)
        return path

    def show(self, *, fps: float = 8.0, gamma: float = 1.0) -> None:
        """Show a player in a notebook: snapshot, video, frame strip and faults.

        It loads nothing from elsewhere.
        """
        display = require_optional("IPython.display", "", "`show` in a notebook", "ipykernel")
        pictures = self._stack("video").as_pictures(ToneSettings().changed({"gamma": gamma}))
        page = html.escape(as_page(pictures, fps, gamma))
        display.display(
            display.HTML(f'<div><iframe srcdoc="{page}" width="100%" height="520"></iframe></div>')
        )

    def _stack(self, name: str) -> VideoStack:
        video = self.video.cpu().numpy() if isinstance(self.video, torch.Tensor) else self.video
        series = video.reshape(-1, *video.shape[-3:])
        return VideoStack(
            snapshots=series,
            seqs=range(len(series)),
            shape=series.shape[1:],
            dtype=series.dtype,
            name=name,
            bayer=self.bayer,
            first=self.snapshots[0] if len(self.snapshots) else None,
            defects=self.defects,
        )

    @property
    def report(self) -> SolveReport:
        """Report of the solve; of a series, that of the last snapshot."""
        return self.reports[-1]

    @property
    def correction(self) -> MaskCorrection:
        """Correction of the masks for the last snapshot; ``correction.words`` says it in words."""
        return MaskCorrection.from_text(self.report.masks_at)

    @property
    def frame_times(self) -> npt.NDArray[np.float64]:
        """Begin and duration of each frame as shares of the exposure, (B, 2) or (N, B, 2): equal
        unless corrected.
        """
        B, series = self.video.shape[-3], self.video.ndim == 4
        times = np.array(
            [MaskCorrection.from_text(report.masks_at).frame_times(B) for report in self.reports]
        )
        return times if series else times[0]


@dataclass(frozen=True, slots=True)
class ArrayOptions:
    """Options of the solver; see `reconstruct`."""

    iterations: int | None = None
    denoiser: AnyDenoiser = "auto"
    weights: str | Path | None = None
    sigmas: tuple[float, float] | None = None
    device: str = "auto"
    noise: float | None = None
    white: float | None = None
    bayer: BayerPhase | str | None = None
    check_masks: bool = True


def reconstruct(
    y: AnyArray,
    masks: AnyArray | Calibration,
    *,
    iterations: int | None = None,
    denoiser: AnyDenoiser = "auto",
    weights: str | Path | None = None,
    sigmas: tuple[float, float] | None = None,
    device: str = "auto",
    noise: float | None = None,
    truth: AnyArray | None = None,
    white: float | None = None,
    bayer: BayerPhase | str | None = None,
    check_masks: bool = True,
    progress: Progress = lambda _done, _total: None,
) -> Reconstructed:
    r"""Recover the B frames behind each coded snapshot, y = Σ_b masks_b ⊙ x_b + noise.

    Parameters
    ----------
    y
        (H, W), one snapshot, or (N, H, W), consecutive ones, each solved from the video of the one
        before it where that helps (warm start). NumPy or torch, any real dtype. See ``white`` for
        its scale.
    masks
        (B, H, W), ≥ 0, in the order of the frames, on any scale: they are divided by their maximum.
        Or a `Calibration`, whose dark frame, scale, noise, bad pixels and Bayer phase are then
        used; y is in DN.
    iterations
        Per snapshot; by default what suits the denoiser and the device.
    denoiser
        A name (``"auto"``: as the weights, ``"ffdnet"`` on a large GPU, else ``"unrolled"``;
        ``"tv"``, a plug-in, ``"module:Class"`` or ``"file.py:function"``), a `torch.nn.Module`,
        called as ``module(images (N, 1, H, W), sigma)``, or any other callable, called as
        ``f(images (N, H, W), sigma)``. sigma is a float on the 0–1 scale; it is omitted where only
        one argument is accepted.
    weights
        Checkpoint, for the named denoisers that accept one.
    sigmas
        Noise levels of the first and the last iteration, 0–1; an upper limit of the first: less
        where the initial estimate is closer. By default what suits the denoiser.
    device
        ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"cuda:N"``.
    noise
        Standard deviation of the noise of y, in units of y. None: estimated from each snapshot. 0:
        y is explained exactly, as in the paper.
    truth
        (B, H, W), or (N, B, H, W) or (N·B, H, W) for a series: the true frames, 0–1 or 0–255, for
        PSNR; fewer are those of the first snapshots.
    white
        Value that a white frame adds to y through an open mask, which becomes 1.0 in the video. By
        default, with truth: fitted to it; for floating-point y that a scene within 0–1 explains,
        behind the masks as they are or divided by their maximum: that scale; otherwise such that
        the 99.5th percentile of the mean brightness becomes 1.
    bayer
        Phase of the colour filters (``"RGGB"``, …) if the sensor has them: y, masks and video are
        mosaics. Each colour is reconstructed separately; `sci_stream.imaging.rendering.render`
        makes pictures of the video.
    check_masks
        Look for defects of y and the masks, with a `DataWarning` for each
        (`sci_stream.calibration.evidence`); move masks that are whole pixels off, and correct
        errors of each that the snapshots show (`SolveReport.masks_at`). Return the snapshot itself
        as every frame, with a `MaskMismatchWarning`, if the masks explain nothing of it, lie in
        another orientation or are in another order. False to reconstruct with the masks as they
        are, as for scenes of white noise.
    progress
        Called after each iteration with the number of iterations done and the total.

    Raises
    ------
    InputError
        If an argument is invalid, or the denoiser returns another shape, NaN or infinity.
    DeviceError
        If the device does not exist or runs out of memory.

    Examples
    --------
    >>> import numpy as np, sci_stream
    >>> masks = np.random.default_rng(0).integers(0, 2, (4, 32, 32))
    >>> x = np.linspace(0, 1, 4 * 32 * 32).reshape(4, 32, 32)
    >>> y = (masks * x).sum(0)
    >>> result = sci_stream.reconstruct(y, masks, denoiser="tv", iterations=8, truth=x)
    >>> result.video.shape, result.psnr_db > 25
    ((4, 32, 32), True)
    """
    options = ArrayOptions(
        iterations, denoiser, weights, sigmas, device, noise, white, bayer, check_masks
    )
    solver = ArraySolver(masks, options)
    series = solver.take(y)
    solver.begin(series, range(len(series)), truth)
    videos, reports = zip(*solver.videos(progress), strict=True)
    _warn(solver.defects)
    video = videos[0] if np.ndim(y) == 2 else np.stack(videos)
    return solver.result(_like(video, y), reports, mean_psnr_db(reports), series)


def mean_psnr_db(reports: Iterable[SolveReport]) -> float | None:
    """Return the mean PSNR over all frames of these solves; None without truth."""
    scores = [report.psnr_db for report in reports if report.psnr_db is not None]
    return float(np.mean(scores)) if scores else None


def _warn(defects: Iterable[Defect]) -> None:
    for defect in defects:
        warnings.warn(
            defect.text, MaskMismatchWarning if defect.fatal else DataWarning, stacklevel=3
        )


def reconstruct_stream(
    snapshots: Iterable[AnyArray],
    masks: AnyArray | Calibration,
    *,
    iterations: int | None = None,
    denoiser: AnyDenoiser = "auto",
    weights: str | Path | None = None,
    sigmas: tuple[float, float] | None = None,
    device: str = "auto",
    noise: float | None = None,
    white: float | None = None,
    bayer: BayerPhase | str | None = None,
    check_masks: bool = True,
) -> Iterator[Reconstructed]:
    """Yield the reconstruction of each snapshot as it arrives, warm-started from the one before it.

    Parameters
    ----------
    snapshots
        Snapshots (H, W) in the order of recording; any iterable, also one without end.
    masks, iterations, denoiser, weights, sigmas, device, noise, white, bayer, check_masks
        As for `reconstruct`. Without ``white``, the first snapshot determines the scale of all.

    Raises
    ------
    InputError
        If an argument is invalid, at once; if a snapshot is, when it arrives.

    Examples
    --------
    >>> results = sci_stream.reconstruct_stream(camera, masks, white=4095 / 8)
    >>> for result in results:  # doctest: +SKIP
    ...     show(result.video)
    """
    options = ArrayOptions(
        iterations, denoiser, weights, sigmas, device, noise, white, bayer, check_masks
    )
    solver = ArraySolver(masks, options)
    return _stream(solver, snapshots)


def _stream(solver: ArraySolver, snapshots: Iterable[AnyArray]) -> Iterator[Reconstructed]:
    known = 0
    for seq, snapshot in enumerate(snapshots):
        counts = real_array(snapshot, f"snapshot {seq}", invalid=True)
        if counts.ndim != 2:
            raise InputError(
                f"Snapshot {seq} has an invalid shape", expected="(H, W)", got=counts.shape
            )
        series = solver.take(counts)
        if seq == 0:
            solver.scale(series, None)
        video, report = solver.solve(seq, series[0])
        _warn(solver.defects[known:])
        known = len(solver.defects)
        yield solver.result(_like(video, snapshot), (report,), None, series)


class ArraySolver:
    """Check arrays, bring them to the engine's scale and solve them one after the other.

    Of a series, `begin`, then `videos`; of a stream, `take` and `solve` for each snapshot, and
    `scale` with the first.
    """

    def __init__(self, masks: AnyArray | Calibration, options: ArrayOptions) -> None:
        self.withholds = False
        """Whether a video would be made up: the snapshots are returned in its place."""
        self.defects: list[Defect] = []
        """Defects found so far, each once."""
        self._engine: Engine | None = None
        noise, white = options.noise, options.white
        for name, value, least in (("white", white, 0.0), ("noise", noise, -1.0)):
            if value is not None and not (np.isfinite(value) and value > least and value >= 0):
                raise InputError(
                    f"{name} is invalid",
                    expected="a finite number " + ("≥ 0" if least else "> 0"),
                    got=value,
                )
        if isinstance(masks, Calibration):
            if white is not None or options.bayer is not None:
                raise InputError(
                    "white and bayer are part of the calibration",
                    hint="Omit them, or pass masks as an array.",
                )
            if noise is not None:
                masks = dataclasses.replace(masks, read_noise_dn=noise, gain_e_per_dn=None)
            self.calibration, self.white = masks, masks.full_scale_dn
        else:
            values = real_array(masks, "masks", invalid=True)
            values = values[0] if values.ndim == 4 and len(values) == 1 else values
            valid = np.isfinite(values)
            self._masks_max, phi = transmission(np.where(valid, values, values.dtype.type(0)))
            self.white = 0.0 if white is None else float(white)
            self.calibration = Calibration(
                phi=phi,
                full_scale_dn=self.white or 1.0,
                read_noise_dn=noise,
                bayer=_phase(options.bayer),
            )
            self._leave_out(valid, "the masks")
        self.device = pick_device(options.device)
        self.denoiser, settings = _prior(options.denoiser, options.weights, self.device)
        settings = _adjusted(suited_to_masks(settings, self.calibration.fineness), options)
        self.settings = settings
        self._checks = options.check_masks
        self._monitor: CalibrationMonitor | None = None

    def take(self, y: AnyArray) -> Array:
        """Return snapshots as (N, H, W), with 0, or NaN after `scale`, in invalid pixels.

        Raises as `as_series`.
        """
        series = as_series(real_array(y, "y", invalid=True))
        self.require_fit(series)
        valid = np.isfinite(series)
        self._leave_out(valid, "y")
        return np.where(
            valid, series, series.dtype.type(0 if self._engine is None or valid.all() else np.nan)
        )

    def _leave_out(self, valid: npt.NDArray[np.bool_], name: str) -> None:
        invalid = np.asarray(~valid.all(0))
        if invalid.any():
            text = f"{int(invalid.sum())} pixels of {name} are NaN or infinite: left out"
            self._add(Defect("invalid_pixels", text, corrected=True))
            self._mark_bad(invalid)

    def begin(self, y: Sequence[Array] | Array, seqs: range, truth: AnyArray | None) -> None:
        """Take some snapshots of a series, (N, H, W), and its truth; find the scale and errors of
        the masks.
        """
        self.require_fit(y if isinstance(y, np.ndarray) and len(y) > 1 else y[0])
        self._series = y, seqs
        self._truth = None if truth is None else self.truth(truth, len(y))
        # Where the scale is known, a long recording is not read for it.
        some = seqs[:1] if self.white else range(len(y))
        shown = np.asarray(y[some.start : some.stop])
        self.scale(
            real_array(shown, "y"),
            None if self._truth is None else self._truth[some.start : some.stop],
        )
        for seq in seqs[:LEARNING_SNAPSHOTS]:
            self._measure(self.snapshot(seq, real_array(y[seq], f"snapshot {seq}")))

    def videos(self, progress: Progress) -> Iterator[tuple[npt.NDArray[np.float32], SolveReport]]:
        """Solve the snapshots in order; ``progress`` is called after each iteration."""
        y, seqs = self._series
        total, steps = len(seqs) * self.settings.iterations, itertools.count(1)
        for seq in seqs:
            true = self._truth[seq] if self._truth is not None and seq < len(self._truth) else None
            counts = real_array(y[seq], f"snapshot {seq}")
            yield self.solve(seq, counts, true, lambda: progress(next(steps), total))

    def require_fit(self, y: Array) -> None:
        """Raise unless y, (…, H, W), has as many pixels as the masks."""
        masks, size = self.calibration.phi.shape, y.shape[-2:]
        if size == masks[1:]:
            return
        orders = (
            order
            for order in itertools.permutations(range(3))
            if (masks[order[1]], masks[order[2]]) == size
        )
        hint = next((f"Pass masks.transpose{order}." for order in orders), None)
        if y.ndim == 3 and y.shape[:2] == masks[1:]:
            hint = "y seems to have its snapshots last: pass np.moveaxis(y, -1, 0)."
        raise InputError(
            "y and the masks differ in size",
            expected=f"y of {masks[1]}×{masks[2]} pixels, as masks (B, H, W) = {masks}",
            got=f"y of shape {y.shape}",
            hint=hint,
        )

    def truth(self, truth: AnyArray, count: int) -> npt.NDArray[np.float32]:
        """Return the true frames of the first snapshots, or of all, as (n, B, H, W), 0–1."""
        frames, (B, H, W) = real_array(truth, "truth"), self.calibration.phi.shape
        if (
            frames.size % (B * H * W)
            or frames.size > count * B * H * W
            or frames.shape[-2:] != (H, W)
        ):
            raise InputError(
                "The truth does not fit y and the masks",
                expected=f"{count} × {B} frames of {H}×{W} pixels, or {B} for each of the first "
                "snapshots",
                got=f"shape {frames.shape}",
                hint="The frames come first: (B, H, W), for a series (N, B, H, W).",
            )
        white = white_level(frames)
        return np.asarray(frames, np.float32).reshape(-1, B, H, W) / np.float32(white)

    def scale(self, y: Array, truth: Array | None) -> None:
        """Determine the defects of the first snapshot and the scale of y, (N, H, W), and create the
        engine.
        """
        self._inspect(y[0])
        if not self.white:
            self.white = self._estimated_white(y, truth)
            self.calibration = dataclasses.replace(self.calibration, full_scale_dn=self.white)
        if self._checks and truth is not None and len(truth):
            for defect in truth_defects(y[: len(truth)], self.calibration, truth):
                self._add(defect)
        self._engine = Engine(self.calibration, self.denoiser, self.device, self.settings)
        if self._checks:
            self._monitor = CalibrationMonitor(
                self.calibration, self.device, every=_CHECK_EVERY, correct=True, shuffled=True
            )

    def _inspect(self, y: Array) -> None:
        """Find the defects of a snapshot; move masks that lie whole pixels beside the place where y
        has them.
        """
        defects, stuck = inspect(y, self.calibration)
        for defect in defects:
            if self._checks and defect.shift_px is not None:
                self._add(defect)
                self._move_masks(y, *defect.shift_px)
                defects, stuck = inspect(y, self.calibration)
        for defect in defects:
            if self._checks or defect.corrected:
                self._add(defect)
        self._mark_bad(stuck)

    def _mark_bad(self, pixels: npt.NDArray[np.bool_]) -> None:
        if pixels.any() and self._engine is None:  # else that leaves out NaN
            bad = self.calibration.bad_pixels
            both = pixels if bad is None else bad | pixels
            self.calibration = dataclasses.replace(self.calibration, bad_pixels=both)

    def _move_masks(self, y: Array, dx: int, dy: int) -> None:
        """Move the masks to the right and down; pixels without a mask are bad, unless those of the
        other end fit.
        """
        calibration = self.calibration
        self.calibration = dataclasses.replace(
            calibration, phi=np.roll(calibration.phi, (dy, dx), (1, 2))
        )
        outside = np.zeros(calibration.shape, bool)
        outside[: max(dy, 0)] = outside[outside.shape[0] + min(dy, 0) :] = True
        outside[:, : max(dx, 0)] = outside[:, outside.shape[1] + min(dx, 0) :] = True
        moved = self.calibration
        if mask_fit(moved.measurement(y), moved.phi, moved.bayer, where=outside) < MATCH:
            self._mark_bad(outside)

    def _add(self, defect: Defect) -> None:
        if defect.name not in {known.name for known in self.defects}:
            self.defects.append(defect)
            self.withholds |= defect.fatal

    def _estimated_white(self, y: Array, truth: Array | None) -> float:
        phi = self.calibration.phi
        if self.calibration.bad_pixels is not None:
            phi = phi * ~self.calibration.bad_pixels
        if truth is not None:
            white, _ = fit_white(y[: len(truth)], phi, truth)
        else:
            white = brightness_percentile(y, phi) if phi.any() else 0.0
            low, high = _KNOWN_SCALE
            if np.issubdtype(y.dtype, np.floating):
                white = next(
                    (scale for scale in (self._masks_max, 1.0) if low <= white / scale <= high),
                    white,
                )
        if not white > 0:
            raise InputError(
                "y is dark: its scale cannot be determined", expected="positive values",
                got=f"a scale of {white:.4g}",
                hint="Pass white, the value that a white frame adds to y through an open mask.",
            )  # fmt: skip
        return white

    def solve(
        self,
        seq: int,
        y: Array,
        truth: Array | None = None,
        count: Callable[[], None] | None = None,
    ) -> tuple[npt.NDArray[np.float32], SolveReport]:
        """Reconstruct snapshot ``seq``, (H, W); ``count`` is called after each iteration.

        Without it, solves on a GPU are recorded, which pays in a long series.
        """
        assert self._engine is not None
        snapshot = self.snapshot(seq, y, truth)
        self._measure(snapshot)
        video, report = self._engine.reconstruct(snapshot, watch=count and (lambda _video: count()))
        health = None if self._monitor is None else self._monitor.check(snapshot, video)
        if health is not None:
            problems = findings(health, warn_shift_px=np.inf)
            for name in ("mask_match", "mask_order"):
                if name in problems:
                    self._add(Defect(name, problems[name], fatal=is_withheld(health)))
        if self.withholds:
            return withhold(
                video.astype(np.float32, copy=False), report, snapshot, self.calibration
            )
        return video.astype(np.float32, copy=False), report

    def _measure(self, snapshot: Snapshot) -> None:
        """Measure the masks with a snapshot, and correct them."""
        assert self._engine is not None
        if self._monitor is not None:
            used = self._monitor.correction
            self._monitor.measure(snapshot)
            if self._monitor.correction != used:
                self._engine.correct_masks(self._monitor.correction)
            if used.is_none and not self._monitor.correction.is_none:
                found, _ = inspect(snapshot.counts, self.calibration, self._monitor.correction)
                errors = OF_RIGHT_MASKS - {defect.name for defect in found}
                self.defects = [
                    defect for defect in self.defects if defect.name not in errors or defect.fatal
                ]

    def result(
        self, video: Any, reports: tuple[SolveReport, ...], psnr_db: float | None, snapshots: Array
    ) -> Reconstructed:
        """Return a video and its reports with the defects found so far."""
        defects, bayer = tuple(self.defects), self.calibration.bayer
        return Reconstructed(video, reports, psnr_db, self.white, defects, snapshots, bayer)

    def snapshot(self, seq: int, y: Array, truth: Array | None = None) -> Snapshot:
        """Return arrays as the engine takes them."""
        counts = np.asarray(y, np.float32) if y.dtype not in (np.uint8, np.uint16) else y
        return self.calibration.snapshot("arrays", seq, counts, truth)


def as_series(y: Array) -> Array:
    """Return one snapshot, (H, W), or several, (N, H, W), as (N, H, W).

    Raises
    ------
    InputError
        If it has another shape, or is empty.
    """
    if y.ndim > 3:  # (N, 1, H, W), as networks take pictures
        y = (
            y.reshape(y.shape[0], *y.squeeze().shape[-2:])
            if y.size == y.shape[0] * np.prod(y.shape[-2:])
            else y
        )
    if y.ndim not in (2, 3) or 0 in y.shape:
        raise InputError(
            "y has an invalid shape", expected="(H, W), or (N, H, W) for a series", got=y.shape
        )
    return y[np.newaxis] if y.ndim == 2 else y


def real_array(value: AnyArray, name: str, *, invalid: bool = False) -> Array:
    """Return an argument as a NumPy array of real numbers, finite unless ``invalid`` ones are
    allowed.

    Masked values become NaN.

    Raises
    ------
    InputError
        If it holds anything else.
    """
    if isinstance(value, np.ma.MaskedArray):
        value = np.ma.filled(value.astype(np.float64), np.nan)
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        array: Array = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    else:
        array = np.asarray(value)
    if array.dtype.kind not in "buif":
        raise InputError(
            f"{name} does not hold real numbers",
            expected="an array of numbers",
            got=f"dtype {array.dtype}",
        )
    if not invalid and array.dtype.kind == "f" and not np.isfinite(array).all():
        wrong = int((~np.isfinite(array)).sum())
        raise InputError(
            f"{name} contains NaN or infinity",
            expected="finite values",
            got=f"{wrong} of {array.size} values",
        )
    return array


def _phase(bayer: BayerPhase | str | None) -> BayerPhase | None:
    try:
        return None if bayer is None else BayerPhase(bayer)
    except ValueError:
        raise InputError(
            "Unknown Bayer phase", expected=", ".join(BayerPhase), got=repr(bayer)
        ) from None


def _prior(
    denoiser: AnyDenoiser, weights: str | Path | None, device: torch.device
) -> tuple[Prior, SolverSettings]:
    """Return the denoiser on the device and the settings that suit it."""
    if isinstance(denoiser, str):
        path = None if weights is None else Path(weights)
        name = chosen_denoiser(denoiser, device, path)
        return named_prior(name, device, path, Precision.AUTO), default_settings(device, name)
    if not callable(denoiser):
        raise InputError(
            "The denoiser is invalid",
            expected="a name, a torch.nn.Module or a callable",
            got=type(denoiser).__name__,
        )
    if weights is not None:
        raise InputError(
            "weights apply to a denoiser that is given by name",
            got=f"weights with {denoiser!r:.60}",
        )
    defaults = getattr(denoiser, "defaults", None)
    known = defaults if isinstance(defaults, DenoiserDefaults) else DenoiserDefaults()
    return CallableDenoiser(denoiser, device), settings_for(known, device)


def _adjusted(settings: SolverSettings, options: ArrayOptions) -> SolverSettings:
    if (iterations := options.iterations) is not None:
        if iterations != int(iterations) or iterations < 1:
            raise InputError("iterations is invalid", expected="an integer ≥ 1", got=iterations)
        least = min(settings.min_iterations, iterations)
        settings = dataclasses.replace(settings, iterations=int(iterations), min_iterations=least)
    if options.sigmas is not None:
        settings = dataclasses.replace(
            settings, sigma_first=options.sigmas[0], sigma_last=options.sigmas[1]
        )
    return dataclasses.replace(settings, warm_start=True, weigh_noise=options.noise != 0)


def _like(video: npt.NDArray[np.float32], given: AnyArray) -> Any:
    return torch.from_numpy(video).to(given.device) if isinstance(given, torch.Tensor) else video
