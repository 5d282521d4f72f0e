"""``sci-stream masks advise``: the masks that suit a rig, by simulating it with others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from sci_stream.config import Rig, validate_options
from sci_stream.model import Snapshot, SnapshotId
from sci_stream.nodes.reconstruct.solver_settings import make_prior
from sci_stream.nodes.runtime.camera_drivers import load_driver
from sci_stream.optics.calibration import Calibration
from sci_stream.recon.backend.device import pick_device
from sci_stream.recon.engine import Engine


@dataclass(frozen=True, slots=True)
class MaskAdvice:
    """One choice of masks with its mean PSNR and clipped share; ``feature_px`` in pixels of the sensor."""

    n_frames: int
    open_share: float
    feature_px: float
    psnr_db: float
    clipped: float


@dataclass(frozen=True, slots=True)
class MaskChoices:
    """Choices to compare: B, open shares, and sides of an element in pixels of the sensor."""

    n_frames: tuple[int, ...]
    open_shares: tuple[float, ...]
    features_px: tuple[float, ...]


def advise(
    rig: Rig,
    choices: MaskChoices,
    clips: Sequence[str],
    *,
    exposure: float,
    size_px: int,
    snapshots: int,
    report: Callable[[int, int], None],
) -> list[MaskAdvice]:
    """Simulate each choice with the rig's denoiser, best first.

    Parameters
    ----------
    clips
        Scenes of the simulated camera, or video files.
    exposure
        Light: the share of the sensor's range that a white scene fills behind masks half open at the first B. It stays
        the same: fewer open elements clip less, more frames share the same time.
    size_px, snapshots
        Height and width of the simulation, and snapshots of each clip.
    report
        Receives progress: done, of how many.
    """
    device = pick_device(rig.reconstruct.devices[0])
    prior, settings = make_prior(rig.reconstruct, device)
    driver = load_driver("simulated")
    given = rig.camera.options if rig.camera.driver == "simulated" else {}
    results = []
    combinations = [(b, s, f) for b in choices.n_frames for s in choices.open_shares for f in choices.features_px]
    for done, (n_frames, share, feature_px) in enumerate(combinations):
        report(done, len(combinations))
        quality, clipped = [], []
        for clip in clips:
            options = {
                "bayer": given.get("bayer", "none"), "bit_depth": given.get("bit_depth", 12), "scene": clip,
                "width_px": size_px, "height_px": size_px, "n_frames": n_frames, "mask": "random",
                # An element as large as its blur: smaller ones blur into each other.
                "mask_density": share, "mask_blur_px": 0.5 * feature_px, "truth": True, "snapshot_rate_hz": 0.0,
                "exposure": min(10.0, exposure * share / 0.5),
            }  # fmt: skip
            camera = driver(validate_options(driver.Options, options, "the simulation"))
            try:
                camera.open()
                calibration = camera.calibration()
                assert calibration is not None
                engine = Engine(calibration, prior, device, settings)
                camera.start()
                for seq in range(snapshots):
                    frame = camera.read(60.0)
                    assert frame is not None
                    solved = engine.reconstruct(_snapshot(frame.counts, frame.truth, calibration, seq))[1]
                    quality.append(solved.psnr_db or 0.0)
                    clipped.append(solved.saturated_fraction)
            finally:
                camera.close()
        results.append(MaskAdvice(n_frames, share, feature_px, fmean(quality), fmean(clipped)))
    return sorted(results, key=lambda advice: -advice.psnr_db)


def _snapshot(counts: object, truth: object, calibration: Calibration, seq: int) -> Snapshot:
    return Snapshot(
        id=SnapshotId("advice", 0, seq),
        counts=counts,  # type: ignore[arg-type] # of a frame
        calibration_hash=calibration.hash,
        n_frames=calibration.n_frames,
        host_time_ns=0,
        bayer=calibration.bayer,
        truth=truth,  # type: ignore[arg-type]
    )
