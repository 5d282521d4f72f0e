"""A series that is not live: consecutive snapshots are finished jointly."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest
import torch

import sci_stream
from sci_stream.calibration.diagnosis import WITHHELD
from sci_stream.optics.mask_errors import NO_CORRECTION, MaskCorrection, MaskError
from sci_stream.recon import joint
from sci_stream.recon.backend.half_precision import Precision
from sci_stream.recon.denoisers.registry import named_prior
from sci_stream.recon.engine import Engine
from sci_stream.recon.guarded import NO_GUARD, Decision, GuardedSolver
from sci_stream.recon.joint import Solved, jointly
from sci_stream.recon.settings import default_settings
from tests.recon.films import Film, film

CPU = torch.device("cpu")
ITERATIONS = 10


@pytest.fixture(scope="module")
def moving() -> Film:
    return film("fast", 5)


def solver(one: Film, name: str = "unrolled") -> GuardedSolver:
    settings = dataclasses.replace(
        default_settings(CPU, name), iterations=ITERATIONS, warm_start=True
    )
    prior = named_prior(name, CPU, None, Precision.FLOAT32)
    engine = Engine(one.calibration, prior, CPU, settings)
    engine.keeps_tail = True
    return GuardedSolver(engine, NO_GUARD)


def singly(one: Film, name: str = "unrolled") -> list[Solved]:
    solving = solver(one, name)
    return [(snapshot, solving.solve(snapshot)) for snapshot in one.snapshots]


def changed(before: list[Solved], after: list[Solved]) -> list[bool]:
    """Whether the joint solve gave another video, by snapshot."""
    pairs = zip(before, after, strict=True)
    return [not np.array_equal(first[1].video, second[1].video) for first, second in pairs]


def ends_db(videos: list[np.ndarray], truths: list[np.ndarray]) -> float:
    """Return the PSNR of the frames on both sides of seams, dB."""
    errors = np.stack(videos) - np.stack(truths)
    ends = np.concatenate([errors[1:, 0], errors[:-1, -1]])
    return float(-10 * np.log10(np.mean(ends**2)))


def test_joint_solve_improves_frames_beside_seams(moving: Film) -> None:
    y = np.stack([snapshot.counts for snapshot in moving.snapshots])
    truths = [snapshot.truth / np.float32(255) for snapshot in moving.snapshots]
    live = [one.video for one in sci_stream.reconstruct_stream(y, moving.calibration)]
    series = sci_stream.reconstruct(y, moving.calibration, truth=np.stack(truths))
    assert ends_db(list(series.video), truths) > ends_db(live, truths) + 0.1
    assert np.mean(np.square(series.video - truths)) < np.mean(np.square(live - np.stack(truths)))


def test_joint_solve_improves_frames_in_light_that_changes(moving: Film) -> None:
    frames = np.stack([snapshot.truth / np.float32(255) for snapshot in moving.snapshots])
    times = np.arange(frames.shape[0] * frames.shape[1]).reshape(frames.shape[:2])
    lights = 1 + 0.3 * np.cos(2 * np.pi * 100 / 240 * times)
    lights = np.float32(lights / lights.mean(1, keepdims=True))[..., None, None]
    y = (moving.calibration.phi * frames * lights).sum(1)
    with pytest.warns(sci_stream.DataWarning, match="light changes"):
        live = [
            one.video for one in sci_stream.reconstruct_stream(y, moving.calibration.phi, white=1)
        ]
    with pytest.warns(sci_stream.DataWarning, match="light changes"):
        series = sci_stream.reconstruct(y, moving.calibration.phi, white=1)
    truths = list(frames)
    assert ends_db(list(series.video), truths) > ends_db(live, truths) + 0.1


def test_reports_of_a_joint_solve_are_of_its_video(moving: Film) -> None:
    for snapshot, delivered in jointly(iter(singly(moving))):
        assert snapshot.truth is not None
        error = np.mean(np.square(delivered.video - snapshot.truth / np.float32(255)), (1, 2))
        measured = moving.calibration.measurement(snapshot.counts)
        residual = measured - (moving.calibration.phi * delivered.video).sum(0)
        report = delivered.report
        assert report.psnr_db == pytest.approx(float(np.mean(-10 * np.log10(error))), abs=0.01)
        expected = np.linalg.norm(residual) / np.linalg.norm(measured)
        assert report.residual == pytest.approx(float(expected), rel=0.05)


def test_mosaics_and_masks_of_several_frames_are_joined() -> None:
    one = film("fast", 2, bayer="RGGB")
    solving = solver(one)
    dwells = (MaskError(gain=1.0), *[MaskError()] * 7)
    solving.engine.correct_masks(MaskCorrection(masks=dwells))
    single = [(snapshot, solving.solve(snapshot)) for snapshot in one.snapshots]
    result = list(jointly(iter(single)))
    assert changed(single, result) == [True, True]
    assert [delivered.video.shape for _, delivered in result] == [(8, 64, 64)] * 2
    for (_, before), (_, after) in zip(single, result, strict=True):
        assert after.report.residual < before.report.residual + 0.01


def test_lost_snapshot_breaks_a_window(moving: Film) -> None:
    without = Film(moving.calibration, moving.snapshots[:2] + moving.snapshots[3:4])
    single = singly(without)
    assert changed(single, list(jointly(iter(single)))) == [True, True, False]


def test_withheld_snapshot_breaks_a_window(moving: Film) -> None:
    solving = solver(moving)
    outcomes = (False, False, True, False)
    single = [
        (snapshot, solving.solve_as_decided(snapshot, Decision(NO_CORRECTION, withheld)))
        for snapshot, withheld in zip(moving.snapshots, outcomes, strict=False)
    ]
    result = list(jointly(iter(single)))
    assert changed(single, result) == [True, True, False, False]
    assert result[2][1].report.start_reason == WITHHELD


def test_cut_breaks_a_window(moving: Film) -> None:
    other = film("drops").snapshots[0]
    moved = dataclasses.replace(moving.snapshots[2], counts=other.counts, truth=None)
    single = singly(Film(moving.calibration, (*moving.snapshots[:2], moved)))
    assert single[2][1].report.start_reason == "cut"
    assert changed(single, list(jointly(iter(single)))) == [True, True, False]


def test_blocks_are_yielded_when_their_neighbour_is_solved(
    moving: Film, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joint, "_MAX_BLOCK", 2)
    single = singly(moving)
    taken: list[int] = []

    def solved() -> Iterator[Solved]:
        for one in single:
            taken.append(one[0].id.seq)
            yield one

    seen = [(one[0].id.seq, taken[-1]) for one in jointly(solved())]
    assert seen == [(0, 2), (1, 2), (2, 4), (3, 4), (4, 4)]


def test_blocks_do_not_depend_on_where_a_series_begins(
    moving: Film, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a resumed replay equals an uninterrupted one."""
    monkeypatch.setattr(joint, "_MAX_BLOCK", 2)
    single = singly(moving)
    whole, later = list(jointly(iter(single))), list(jointly(iter(single[1:])))
    for one, other in zip(whole[2:], later[1:], strict=True):
        np.testing.assert_array_equal(one[1].video, other[1].video)


def test_windows_beyond_the_memory_pass_as_solved(
    moving: Film, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joint, "_MAX_PIXELS", 3 * 8 * 64 * 64)
    single = singly(moving)
    assert not any(changed(single, list(jointly(iter(single)))))


def test_solver_without_stages_passes_at_once(moving: Film) -> None:
    single = singly(moving, "ffdnet-lite")

    def solved() -> Iterator[Solved]:
        yield single[0]
        pytest.fail("the next snapshot was awaited")

    assert next(jointly(solved())) == single[0]
