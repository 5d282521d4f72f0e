"""One snapshot through every door of the product: equal video, equal defects, equal outcome."""

from __future__ import annotations

import dataclasses
import queue
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

import sci_stream
from sci_stream.calibration.diagnosis import WITHHELD, diagnose
from sci_stream.config import ReconstructSection
from sci_stream.files.measurement_file import Measurements
from sci_stream.model import Policy, Reconstruction, SeriesInfo, Snapshot
from sci_stream.nodes.reconstruct.solver_thread import Ready, Solved, SolverThread
from sci_stream.recon.denoisers.registry import make_denoiser
from sci_stream.recon.engine import Engine
from sci_stream.recon.guarded import GuardedSolver
from sci_stream.recon.settings import default_settings
from sci_stream.recording.writer import RecordingWriter
from sci_stream.tools.solve import SolveOptions, solve_file
from sci_stream.web.recordings import Recordings
from sci_stream.web.replays import Replays
from tests.calibration.moved_masks import Rig

pytestmark = pytest.mark.rig(seconds=60)

CPU = torch.device("cpu")
SIZE = 96
ITERATIONS = 4
PATIENCE_S = 120.0
OF_MASKS = {"mask_shift", "mask_match"}


class Outcome(NamedTuple):
    """Result of a door.

    ``video`` is None where the door writes none; ``recorded`` are the defects that a row has,
    besides those that its figures of the masks show.
    """

    video: np.ndarray | None
    defects: frozenset[str] | None
    withheld: bool
    recorded: str | None = None


def right(rig: Rig) -> Snapshot:
    return rig.snapshot()


def displaced(rig: Rig) -> Snapshot:
    counts = np.roll(rig.snapshot().counts, 1, 1)
    return dataclasses.replace(rig.snapshot(), counts=counts)


def of_other_masks(rig: Rig) -> Snapshot:
    counts = np.roll(rig.snapshot().counts, (15, 31), (0, 1))
    return dataclasses.replace(rig.snapshot(), counts=counts)


def with_stuck_pixels(rig: Rig) -> Snapshot:
    snapshot = rig.snapshot()
    counts = snapshot.counts.copy()
    counts[20, 30] = counts[60, 70] = 4095
    return dataclasses.replace(snapshot, counts=counts)


def with_gamma(rig: Rig) -> Snapshot:
    snapshot = rig.snapshot()
    light = (snapshot.counts - rig.calibration.dark.mean()).clip(0) / 4095
    counts = rig.calibration.dark.mean() + 4095 * light**0.6
    return dataclasses.replace(snapshot, counts=counts.astype(np.uint16))


def saturated(rig: Rig) -> Snapshot:
    snapshot = rig.snapshot()
    return dataclasses.replace(snapshot, counts=np.full_like(snapshot.counts, 4095))


KINDS: list[tuple[Callable[[Rig], Snapshot], set[str], bool]] = [
    (right, set(), False),
    (displaced, {"mask_shift"}, False),
    (of_other_masks, {"mask_match"}, True),
    (with_stuck_pixels, {"stuck_pixels"}, False),
    (with_gamma, {"gamma"}, False),
    (saturated, {"mask_match"}, True),
]


def _name(parameter: object) -> str:
    return getattr(parameter, "__name__", "")


def of_guarded_solver(rig: Rig, snapshot: Snapshot) -> Outcome:
    settings = dataclasses.replace(default_settings(CPU, "tv"), iterations=ITERATIONS)
    engine = Engine(rig.calibration, make_denoiser("tv", CPU), CPU, settings)
    video, report, defects, _ = GuardedSolver(engine).solve(snapshot)
    names = frozenset(defect.name for defect in defects)
    return Outcome(video, names, report.start_reason == WITHHELD)


def solved_by_node(rig: Rig, snapshot: Snapshot) -> Solved:
    section = ReconstructSection(
        solver="tv", iterations=ITERATIONS, threads=1, video_dtype="float32", adapt_budget=False
    )
    solver = SolverThread(section, "cpu")
    woken: queue.SimpleQueue[None] = queue.SimpleQueue()
    solver.start(lambda: woken.put(None))
    solver.adopt(rig.calibration)
    solver.submit(snapshot)
    results: list[object] = []
    while len(results) < 2:
        woken.get(timeout=PATIENCE_S)
        results += solver.results()
    solver.stop()
    ready, solved = results
    assert isinstance(ready, Ready)
    assert isinstance(solved, Solved)
    return solved


def of_node(rig: Rig, snapshot: Snapshot) -> Outcome:
    solved = solved_by_node(rig, snapshot)
    health = solved.report.health
    assert health is not None
    names = frozenset(defect.name for defect in diagnose(health, 0.1))
    return Outcome(solved.video, names, solved.report.start_reason == WITHHELD)


def of_arrays(rig: Rig, snapshot: Snapshot) -> Outcome:
    result = sci_stream.reconstruct(
        snapshot.counts,
        rig.calibration,
        solver="tv",
        iterations=ITERATIONS,
        device="cpu",
        on_mismatch="snapshot",
    )
    return _of_result(result)


def of_stream(rig: Rig, snapshot: Snapshot) -> Outcome:
    (result,) = sci_stream.reconstruct_stream(
        [snapshot.counts],
        rig.calibration,
        solver="tv",
        iterations=ITERATIONS,
        device="cpu",
        on_mismatch="snapshot",
    )
    return _of_result(result)


def _of_result(result: sci_stream.Reconstructed) -> Outcome:
    names = frozenset(defect.name for defect in result.defects)
    return Outcome(result.video, names, result.report.start_reason == WITHHELD)


def of_file(rig: Rig, snapshot: Snapshot, folder: Path) -> Outcome:
    data = Measurements(y=snapshot.counts[np.newaxis], masks=rig.calibration)
    options = SolveOptions(solver="tv", iterations=ITERATIONS, device="cpu")
    done = solve_file(data, folder / "video.npy", options)
    names = frozenset(defect.name for defect in done.defects)
    video = None if done.out is None else np.load(done.out)[0]
    return Outcome(video, names, done.out is None)


def series_of(rig: Rig) -> SeriesInfo:
    camera = "simulated", "1", *rig.calibration.shape, "Mono12", 12
    rig_file = f'[reconstruct]\ndenoiser = "tv"\niterations = {ITERATIONS}\n'
    return SeriesInfo(
        "s",
        10**9,
        "rig",
        Policy.RECORD,
        *camera,
        rig.calibration.n_frames,
        rig.calibration.hash,
        rig_toml=rig_file,
    )


def of_replay(rig: Rig, snapshot: Snapshot, folder: Path) -> Outcome:
    """Replay a snapshot that the rig had no time to solve, and that replay."""
    calibration = rig.calibration
    with RecordingWriter(folder / "raw.h5", series_of(rig), calibration, video=False) as writer:
        writer.write_raw(snapshot)
        writer.write_outcome(snapshot.id.seq, "raw_only")
        writer.close({"acquired": 1, "closed": True})
    return _of_recording(sci_stream.replay(folder / "raw.h5", device="cpu").path)


def of_repeated_replay(rig: Rig, snapshot: Snapshot, folder: Path) -> Outcome:
    """Replay a snapshot that the rig solved."""
    reconstruction = reconstructed_by_node(rig, snapshot)
    with RecordingWriter(folder / "solved.h5", series_of(rig), rig.calibration) as writer:
        writer.write_reconstruction(reconstruction)
        writer.close({"acquired": 1, "closed": True})
    return _of_recording(sci_stream.replay(folder / "solved.h5", device="cpu").path)


def reconstructed_by_node(rig: Rig, snapshot: Snapshot) -> Reconstruction:
    solved = solved_by_node(rig, snapshot)
    return Reconstruction.of(
        snapshot,
        video=solved.video,
        report=solved.report,
        times=solved.times,
        node="reconstruct-0",
        device="cpu",
    )


def _of_recording(path: Path) -> Outcome:
    with sci_stream.open(path) as recording:
        row = {name: recording.table[name][-1] for name in ("start_reason", "defects")}
        video = np.asarray(recording.video[-1])
    return Outcome(video, None, row["start_reason"] == WITHHELD.encode(), row["defects"].decode())


@pytest.mark.filterwarnings("ignore::sci_stream.DataWarning")
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("change", "defects", "withheld"), KINDS, ids=_name)
def test_every_door_gives_one_answer(
    change: Callable[[Rig], Snapshot], defects: set[str], withheld: bool, tmp_path: Path
) -> None:
    rig = Rig(width_px=SIZE, height_px=SIZE, mask="random", scene="fast", truth=False)
    snapshot = dataclasses.replace(change(rig), truth=None)
    outcomes = {
        "guarded": of_guarded_solver(rig, snapshot),
        "node": of_node(rig, snapshot),
        "reconstruct": of_arrays(rig, snapshot),
        "stream": of_stream(rig, snapshot),
        "solve": of_file(rig, snapshot, tmp_path),
        "replay": of_replay(rig, snapshot, tmp_path),
        "replay of a result": of_repeated_replay(rig, snapshot, tmp_path),
    }
    reference = outcomes["guarded"]
    assert (reference.defects, reference.withheld) == (defects, withheld)
    assert reference.video is not None
    for door, outcome in outcomes.items():
        assert (door, outcome.withheld) == (door, withheld)
        if outcome.defects is not None:
            assert (door, outcome.defects) == (door, defects)
        if outcome.recorded is not None:
            of_data = ",".join(defects - OF_MASKS)
            assert (door, outcome.recorded) == (door, of_data)
        if outcome.video is not None:
            video = np.asarray(outcome.video, np.float32)
            np.testing.assert_allclose(video, reference.video, atol=2e-3, err_msg=door)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("change", "defects", "withheld"), KINDS, ids=_name)
def test_refined_snapshot_keeps_masks_and_outcome(
    change: Callable[[Rig], Snapshot], defects: set[str], withheld: bool, tmp_path: Path
) -> None:
    rig = Rig(width_px=SIZE, height_px=SIZE, mask="random", scene="fast", truth=False)
    shown = reconstructed_by_node(rig, dataclasses.replace(change(rig), truth=None))
    replays = Replays(Recordings(tmp_path, lambda: ""), dict, floor_bytes=0)
    replays.series_started(series_of(rig), rig.calibration)
    refined = replays.refine(shown, ITERATIONS)
    replays.close()
    assert refined.report.masks_at == shown.report.masks_at
    assert (refined.report.start_reason == WITHHELD) == withheld
    np.testing.assert_allclose(refined.video, shown.video, atol=2e-3)
