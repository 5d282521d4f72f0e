"""``sci-stream masks advise``: the masks that suit a rig, by simulating it with others."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from sci_stream.config import Rig, validate_options
from sci_stream.devices.camera_drivers import load_driver
from sci_stream.devices.solver import make_prior
from sci_stream.model import Snapshot, SnapshotId
from sci_stream.modulation.patterns import ONE_HOT_HINT
from sci_stream.recon.backend.device import pick_device
from sci_stream.recon.engine import Engine
from sci_stream_lab.bench.environment import environment
from sci_stream_lab.bench.result import BenchResult, Progress, ResultColumn, ResultTable


@dataclass(frozen=True, slots=True)
class MaskChoice:
    """One choice of masks with its mean PSNR and clipped share; ``feature_px`` in pixels of the
    sensor.
    """

    n_frames: int
    open_share: float
    feature_px: float
    psnr_db: float
    clipped: float


@dataclass(frozen=True)
class MasksResult(BenchResult):
    """Figures of ``masks advise``, best first."""

    choices: tuple[MaskChoice, ...] = ()


# Share of clipped pixels from which masks with more head room are worth a try. Chosen.
_CLIPS = 0.01

_COLUMNS = (
    ResultColumn("n_frames", "B"),
    ResultColumn("open_share", "open", ".0%"),
    ResultColumn("feature_px", "element px", ".3g", "px"),
    ResultColumn("psnr_db", "PSNR dB", ".2f", "dB"),
    ResultColumn("clipped", "clipped", ".1%"),
)


def bench(
    rig: Rig,
    choices: tuple[Sequence[int], Sequence[float], Sequence[float]],
    clips: Sequence[str],
    *,
    exposure: float,
    size_px: int,
    snapshots: int,
    progress: Progress,
) -> MasksResult:
    """Simulate each choice of masks with the rig's denoiser.

    All combinations of ``choices`` are compared: B, open shares, and sides of an element in pixels
    of the sensor. ``clips`` are scenes of the simulated camera, or video files, of ``snapshots``
    each. ``exposure`` is the light: the share of the sensor's range that a white scene fills behind
    half-open masks. It stays the same: fewer open elements clip less.
    """
    device = pick_device(rig.reconstruct.devices[0])
    prior, settings = make_prior(rig.reconstruct, device)
    driver = load_driver("simulated")
    present = rig.camera.options if rig.camera.driver == "simulated" else {}
    rows = []
    for n_frames, share, feature_px in itertools.product(*choices):
        progress(f"B = {n_frames}, {share:.0%} open, elements of {feature_px:g} px")
        figures: list[tuple[float, float]] = []
        for clip in clips:
            options = {
                "bayer": present.get("bayer", "none"), "bit_depth": present.get("bit_depth", 12),
                "scene": clip,
                "width_px": size_px, "height_px": size_px, "n_frames": n_frames, "mask": "random",
                "mask_density": share, "mask_blur_px": 0.5 * feature_px, "truth": True,
                "snapshot_rate_hz": 0.0,
                "exposure": min(10.0, exposure * share / 0.5), "snapshots": snapshots,
            }  # fmt: skip
            camera = driver(validate_options(driver.Options, options, "the simulation"))
            camera.open()
            calibration = camera.calibration()
            assert calibration is not None
            engine = Engine(calibration, prior, device, settings)
            camera.start()
            while (frame := camera.read(60.0)) is not None:
                number = SnapshotId("masks", 0, len(figures))
                snapshot = Snapshot(
                    number,
                    frame.counts,
                    calibration.hash,
                    n_frames,
                    0,
                    bayer=calibration.bayer,
                    truth=frame.truth,
                )
                solved = engine.reconstruct(snapshot)[1]
                figures.append((solved.psnr_db or 0.0, solved.saturated_fraction))
            camera.close()
        psnr_db, clipped = zip(*figures, strict=True)
        rows.append(MaskChoice(n_frames, share, feature_px, fmean(psnr_db), fmean(clipped)))
    best_first = tuple(sorted(rows, key=lambda choice: -choice.psnr_db))
    title = f"Masks behind {prior.name}, {size_px}×{size_px}, light {exposure:g}"
    return MasksResult(
        name="masks",
        environment=environment(),
        tables=(ResultTable(title, _COLUMNS, best_first),),
        settings={
            "clips": ", ".join(clips),
            "exposure": exposure,
            "size_px": size_px,
            "snapshots": snapshots,
        },
        choices=best_first,
        notes=(ONE_HOT_HINT,) if best_first[0].clipped > _CLIPS else (),
    )
