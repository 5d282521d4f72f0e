"""``sci_stream.reconstruct`` and ``sci_stream.reconstruct_stream``."""

from __future__ import annotations

import html
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sci_stream.arrays.inputs import AnyArray, real_array
from sci_stream.arrays.pairing import of_one_size
from sci_stream.arrays.solver import (
    AnySolver,
    ArrayOptions,
    ArraySolver,
    LightChoice,
    OnMismatch,
    Progress,
)
from sci_stream.calibration.evidence.defect import Defect
from sci_stream.errors import InputError, require_optional
from sci_stream.file_guard import complete_output
from sci_stream.files.measurement_file import COLOURS, look_like_colours
from sci_stream.files.video_output import FOLDERS, VideoStack, as_page, format_of, write_video
from sci_stream.imaging.tone import ToneSettings
from sci_stream.model import F32, F64, Array, BayerPhase
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.mask_errors import MaskCorrection
from sci_stream.recon.backend.torch_state import plain_torch_state
from sci_stream.reports import SolveReport


class DataWarning(UserWarning):
    """The data has a defect, which the text names with its remedy."""


class MaskMismatchWarning(DataWarning):
    """The masks do not belong to the measurement: no video is made up."""


@dataclass(frozen=True, eq=False)
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
        path = Path(path)
        tone = ToneSettings().changed({"gamma": gamma})
        form = format_of(path)
        with complete_output(path, replace=replace, folder=FOLDERS.get(form, "")) as partial:
            write_video(partial, self._stack(path.stem), form, tone=tone, fps=fps)
        return path

    def show(self, *, fps: float = 8.0, gamma: float = 1.0) -> None:
        """Show a player in a notebook: snapshot, video, frame strip and faults.

        It loads nothing from elsewhere.
        """
        display = require_optional("IPython.display", "", "`show` in a notebook", "ipykernel")
        display.display(display.HTML(self._player(fps, gamma)))

    def _repr_html_(self) -> str:
        return self._player(fps=8.0, gamma=1.0)

    def __repr__(self) -> str:
        shape = "×".join(str(n) for n in self.video.shape)
        parts = [f"video {shape}", f"{self.report.iterations} iterations"]
        if self.psnr_db is not None:
            parts.append(f"PSNR {self.psnr_db:.2f} dB")
        if self.report.moving_image:
            parts.append(f"moving image {self.report.moving_image}")
        parts.extend(defect.name for defect in self.defects)
        return f"<Reconstructed: {', '.join(parts)}>"

    def _player(self, fps: float, gamma: float) -> str:
        tone = ToneSettings().changed({"gamma": gamma})
        page = as_page(self._stack("Reconstructed video").as_pictures(tone), fps, gamma)
        style = "width: 100%; height: 540px; border: 0"
        return f'<div><iframe srcdoc="{html.escape(page)}" style="{style}"></iframe></div>'

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
    def frame_times(self) -> F64:
        """Begin and duration of each frame as shares of the exposure, (B, 2) or (N, B, 2): equal
        unless corrected.
        """
        B = self.video.shape[-3]
        series = self.video.ndim == 4
        times = np.array(
            [MaskCorrection.from_text(report.masks_at).frame_times(B) for report in self.reports]
        )
        return times if series else times[0]


def reconstruct(
    y: AnyArray,
    masks: AnyArray | Calibration,
    *,
    iterations: int | None = None,
    solver: AnySolver = "auto",
    denoiser: AnySolver | None = None,
    weights: str | Path | None = None,
    sigmas: tuple[float, float] | None = None,
    device: str = "auto",
    noise: float | None = None,
    truth: AnyArray | None = None,
    white: float | None = None,
    bayer: BayerPhase | str | None = None,
    check_masks: bool = True,
    on_mismatch: OnMismatch = "raise",
    light: LightChoice = "even",
    lamps_hz: float | None = None,
    progress: Progress = lambda _done, _total: None,
) -> Reconstructed:
    r"""Recover the B frames behind each coded snapshot, y = Σ_b masks_b ⊙ x_b + noise.

    Parameters
    ----------
    y
        (H, W), one snapshot, or (N, H, W), consecutive ones, each solved from the video of the one
        before it where that helps (warm start), and all finished jointly if the solver has trained
        stages. NumPy or torch, any real dtype. See ``white`` for its scale.
    masks
        (B, H, W), ≥ 0, in the order of the frames, on any scale: they are divided by their maximum.
        Or a `Calibration`, whose dark frame, scale, noise, bad pixels and Bayer phase are then
        used; y is in DN. Masks with their frames last, or transposed, are turned with a
        `DataWarning` where only this makes the sizes equal.
    iterations
        Per snapshot; by default what suits the solver and the device.
    solver
        A name (``"auto"``: as the weights, ``"ffdnet"`` on a large GPU, else ``"unrolled"``;
        ``"tv"``, a plug-in, ``"module:Class"``, ``"file.py:Class"`` or a file of a network). A
        network that recovers the frames at once: a `torch.nn.Module` or function called as
        ``model(y (N, H, W), Phi (N, B, H, W), Phi_s (N, H, W))``, or a `sci_stream.Network`, which
        declares what differs. A denoiser: a `torch.nn.Module` called as
        ``module(images (N, 1, H, W), sigma)``, or any other callable, called as
        ``f(images (N, H, W), sigma)``. sigma is a float on the 0–1 scale; it is omitted where only
        one argument is accepted.
    denoiser
        The earlier name of ``solver``.
    weights
        Checkpoint, for named denoisers that accept one, and for networks.
    sigmas
        Noise levels of the first and the last iteration, 0–1; an upper limit of the first: less
        where the initial estimate is closer. By default what suits the solver.
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
        Look for defects of y and the masks, with a `DataWarning` for each that does not prevent a
        video. Turn, invert or move masks that fit y only then, and correct errors of the masks that
        the snapshots show (`Reconstructed.correction`). False to solve with the masks as they are,
        as for scenes of white noise.
    on_mismatch
        If the masks explain nothing of y, the truth needs them in another order, or a solve
        diverges: ``"raise"``, or ``"snapshot"`` to return the snapshot itself as every frame, with
        a `MaskMismatchWarning`, as a rig shows it.
    light
        ``"even"``: the frames are as bright as in light that does not change within the exposure;
        ``"as_recorded"``: they flicker as the light did (``report.light_depth``).
    lamps_hz
        Frequency at which the lamps pulse, twice that of the mains: their light is then measured
        more exactly. Needs a `Calibration` with the exposure.
    progress
        Called after each iteration with the number of iterations done and the total.

    Raises
    ------
    InputError
        If an argument is invalid, or the solver returns another shape.
    DataError
        If the masks do not fit y, or a solve diverges; see ``on_mismatch``.
    DeviceError
        If the device does not exist or runs out of memory.

    Examples
    --------
    >>> import numpy as np, sci_stream
    >>> masks = np.random.default_rng(0).integers(0, 2, (4, 32, 32))
    >>> x = np.linspace(0, 1, 4 * 32 * 32).reshape(4, 32, 32)
    >>> y = (masks * x).sum(0)
    >>> result = sci_stream.reconstruct(y, masks, solver="tv", iterations=8, truth=x)
    >>> result.video.shape, result.psnr_db > 25
    ((4, 32, 32), True)
    """
    options = ArrayOptions(
        iterations,
        denoiser or solver,
        weights,
        sigmas,
        device,
        noise,
        white,
        bayer,
        check_masks,
        on_mismatch,
        light,
        lamps_hz,
    )
    with plain_torch_state():
        given = of_one_size(y, masks, truth)
        arrays = ArraySolver(given.masks, options)
        series = arrays.take(given.y)
        arrays.begin(series, range(len(series)), given.truth)
        videos, reports = zip(*arrays.videos(progress), strict=True)
    _warn(arrays.defects)
    notes = given.notes
    if check_masks and options.bayer is None and look_like_colours(series):
        notes.append(COLOURS)
    for note in notes:
        warnings.warn(note, DataWarning, stacklevel=2)
    video = videos[0] if given.y.ndim == 2 else np.stack(videos)
    return _result(arrays, _like(video, y), reports, series)


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
    solver: AnySolver = "auto",
    denoiser: AnySolver | None = None,
    weights: str | Path | None = None,
    sigmas: tuple[float, float] | None = None,
    device: str = "auto",
    noise: float | None = None,
    white: float | None = None,
    bayer: BayerPhase | str | None = None,
    check_masks: bool = True,
    on_mismatch: OnMismatch = "raise",
    light: LightChoice = "even",
    lamps_hz: float | None = None,
) -> Iterator[Reconstructed]:
    """Yield the reconstruction of each snapshot as it arrives, warm-started from the one before it.

    Parameters
    ----------
    snapshots
        Snapshots (H, W) in the order of recording; any iterable, also one without end.
    masks, iterations, solver, denoiser, weights, sigmas, device, noise, white, bayer
        As for `reconstruct`. Without ``white``, the first snapshot determines the scale of all.
    check_masks, on_mismatch, light, lamps_hz
        As for `reconstruct`.

    Raises
    ------
    InputError
        If an argument is invalid, at once; if a snapshot is, when it arrives.
    DataError
        As `reconstruct`, when the snapshot arrives that shows it.

    Examples
    --------
    >>> results = sci_stream.reconstruct_stream(camera, masks, white=4095 / 8)
    >>> for result in results:  # doctest: +SKIP
    ...     show(result.video)
    """
    options = ArrayOptions(
        iterations,
        denoiser or solver,
        weights,
        sigmas,
        device,
        noise,
        white,
        bayer,
        check_masks,
        on_mismatch,
        light,
        lamps_hz,
    )
    with plain_torch_state():
        arrays = ArraySolver(masks, options)
    return _stream(arrays, snapshots, masks, options)


def _stream(
    solver: ArraySolver,
    snapshots: Iterable[AnyArray],
    masks: AnyArray | Calibration,
    options: ArrayOptions,
) -> Iterator[Reconstructed]:
    known = set[str]()
    is_transposed = False
    for seq, snapshot in enumerate(snapshots):
        counts = real_array(snapshot, f"snapshot {seq}", invalid=True)
        if counts.ndim != 2:
            raise InputError(
                f"Snapshot {seq} has an invalid shape", expected="(H, W)", got=counts.shape
            )
        with plain_torch_state():
            if seq == 0 and counts.shape != solver.calibration.shape:
                first = of_one_size(counts, masks)
                is_transposed = first.y is not counts
                solver = ArraySolver(first.masks, options)
                for note in first.notes:
                    warnings.warn(note, DataWarning, stacklevel=2)
            series = solver.take(counts.T if is_transposed else counts)
            if seq == 0:
                solver.start(series, None)
            video, report = solver.solve(seq, series[0])
        _warn(defect for defect in solver.defects if defect.name not in known)
        known.update(defect.name for defect in solver.defects)
        yield _result(solver, _like(video, snapshot), (report,), series)


def _result(
    solver: ArraySolver, video: Any, reports: tuple[SolveReport, ...], series: Array
) -> Reconstructed:
    return Reconstructed(
        video,
        reports,
        mean_psnr_db(reports),
        solver.white,
        tuple(solver.defects),
        series,
        solver.calibration.bayer,
    )


def _like(video: F32, given: AnyArray) -> Any:
    return torch.from_numpy(video).to(given.device) if isinstance(given, torch.Tensor) else video
