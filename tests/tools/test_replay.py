"""A replay gives the recorded result, or a better one, in a new recording that names its parent."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pytest
import torch

import sci_stream
from sci_stream.config import ReconstructSection
from sci_stream.devices.solver import describe_solver, make_prior, solver_id
from sci_stream.errors import (
    CalibrationError,
    ConfigError,
    FileFormatError,
    InputError,
    StorageError,
    WeightsError,
)
from sci_stream.model import (
    BayerPhase,
    Policy,
    Reconstruction,
    SeriesInfo,
    Snapshot,
    SnapshotId,
    StageTimes,
)
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.displacement import NO_DISPLACEMENT, Displacement
from sci_stream.optics.mask_errors import MaskCorrection
from sci_stream.recon.denoisers.variants import shipped_weights
from sci_stream.recon.engine import Engine
from sci_stream.recon.settings import default_settings, suited_to_masks
from sci_stream.recording.calibration_file import save_calibration
from sci_stream.recording.layout import Compression
from sci_stream.recording.reader import Recording
from sci_stream.recording.writer import RecordingWriter
from sci_stream.reports import SolveReport
from sci_stream.tools.replay.replay import ReplayPlan, replay
from sci_stream.tools.replay.solver import SolverChanges
from tests.tools.replay_kit import differences

B, H, W = 3, 24, 32
FULL = 6
ITERATIONS = (FULL, 3, FULL, 4, FULL, 1)
"""Spent on each snapshot of the recorded run."""
CPU = torch.device("cpu")


def scene(seq: int) -> np.ndarray:
    rows, columns = np.mgrid[:H, :W]
    times = seq + np.arange(B)[:, None, None] / B
    return (0.5 + 0.4 * np.sin((columns - 12 * times) / 4) * np.cos(rows / 5)).astype(np.float32)


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    rng = np.random.default_rng(3)
    phi = np.clip((rng.random((B, H, W)) < 0.5) + 0.05 * rng.random((B, H, W)), 0, 1)
    return Calibration(
        phi.astype(np.float32),
        dark=64.0,
        full_scale_dn=900.0,
        saturation_dn=4095,
        bayer=BayerPhase.RGGB,
    )


@dataclasses.dataclass(frozen=True)
class Live:
    """Record like a live run: solve with the engine and store the settings."""

    calibration: Calibration
    section: ReconstructSection
    rig_toml: str = ""
    notes: bool = True
    changed: tuple[int, ReconstructSection] | None = None
    """From this seq on it is solved otherwise, as if an operator had set it."""
    moves: Mapping[int, Displacement] = dataclasses.field(default_factory=dict)
    """From these seqs on the masks are taken to be there, as if ``correct_shift`` had moved
    them."""

    stored: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def snapshot(self, seq: int) -> Snapshot:
        c = self.calibration
        noise = np.random.default_rng(seq).normal(0, 3, (H, W))
        counts = np.clip(c.dark + c.full_scale_dn * (c.phi * scene(seq)).sum(0) + noise, 0, 4095)
        return Snapshot(
            SnapshotId("run", 0, seq), counts.astype(np.uint16), c.hash, B, 10**9 + seq * 20_000_000
        )

    def record(self, path: Path) -> Path:
        c = self.calibration
        info = SeriesInfo(
            "run", 10**9, "rig", Policy.RECORD, "simulated", "1", H, W, "BayerRG12", 12, B, c.hash,
            bayer=c.bayer,
            rig_toml=self.rig_toml,
        )  # fmt: skip
        with RecordingWriter(path, info, c, **self.stored) as writer:
            prior_name, name = "", ""
            for seq, iterations in enumerate(ITERATIONS):
                if seq == 0 or (self.changed is not None and seq == self.changed[0]):
                    section = self.section if seq == 0 or self.changed is None else self.changed[1]
                    prior, settings = make_prior(section, CPU)
                    if prior.name != prior_name:
                        engine, prior_name = Engine(c, prior, CPU, settings), prior.name
                    engine.settings = settings
                    if self.notes:
                        result = describe_solver(section, prior.name, settings)
                        name = solver_id(result)
                        writer.notes["solvers"] = {**writer.notes.get("solvers", {}), name: result}
                snapshot = self.snapshot(seq)
                writer.write_raw(snapshot)
                if seq in self.moves:
                    engine.correct_masks(MaskCorrection(self.moves[seq]))
                video, report = engine.reconstruct(snapshot, iterations)
                report = dataclasses.replace(report, solver=name)
                times = StageTimes(acquired_ns=snapshot.host_time_ns, finished_ns=time.time_ns())
                writer.write_reconstruction(
                    Reconstruction(
                        snapshot.id,
                        video,
                        c.hash,
                        report,
                        times,
                        "reconstruct-0",
                        "cpu",
                        bayer=c.bayer,
                    )
                )
            writer.write_raw(self.snapshot(len(ITERATIONS)))
            writer.write_outcome(len(ITERATIONS), "raw_only")
            writer.close({"acquired": len(ITERATIONS) + 1, "closed": True})
        return path


SECTION = ReconstructSection(solver="tv", iterations=FULL, sigma_first=0.3, sigma_last=0.02)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, calibration: Calibration) -> Path:
    return Live(calibration, SECTION).record(tmp_path_factory.mktemp("live") / "run.h5")


@pytest.fixture
def recorded(tmp_path: Path, live: Path) -> Path:
    return Path(shutil.copy(live, tmp_path / "run.h5"))


def quality_db(path: Path, seqs: tuple[int, ...] = tuple(range(6))) -> float:
    with sci_stream.open(path) as recording:
        errors = [
            np.square(recording.frame_of("video", seq).astype(np.float64) - scene(seq)).mean()
            for seq in seqs
        ]
    return float(np.mean(-10 * np.log10(errors)))


def test_replay_equals_live_result(recorded: Path) -> None:
    done = replay(recorded, ReplayPlan())
    assert (done.done, done.total, done.before, done.complete) == (7, 7, 0, True)
    found = differences(recorded, done.path)
    assert list(found) == list(range(6))
    # Both are stored in float16: what floating point does before shows in its last place at most.
    assert max(found.values()) <= 2**-10
    with sci_stream.open(recorded) as live, sci_stream.open(done.path) as again:
        assert again.video.seqs.tolist() == list(range(7)), "including the raw-only one"
        assert again.table["iterations"].tolist() == [*ITERATIONS, FULL]
        for column in ("epoch", "camera_frame_id", "host_time_ns", "start", "start_reason"):
            assert again.table[column][:6].tolist() == live.table[column][:6].tolist()
        assert again.ledger is not None
        assert again.ledger["closed"]
        assert again.finished


@pytest.mark.parametrize(
    "changed",
    [
        ReconstructSection(solver="ffdnet-lite", iterations=FULL),
        ReconstructSection(solver="tv", iterations=7, sigma_first=0.2, sigma_last=0.01),
    ],
    ids=["another prior", "other settings"],
)
def test_replay_follows_settings_changed_during_series(
    tmp_path: Path, calibration: Calibration, changed: ReconstructSection
) -> None:
    recorded = Live(calibration, SECTION, changed=(3, changed)).record(tmp_path / "run.h5")
    done = replay(recorded, ReplayPlan())
    found = differences(recorded, done.path)
    assert len(found) == 6
    assert max(found.values()) <= 2**-10
    with sci_stream.open(recorded) as live, sci_stream.open(done.path) as again:
        assert again.table["solver"][:6].tolist() == live.table["solver"][:6].tolist()
        assert len(set(again.table["solver"].tolist())) == 2
        assert again.table["solver"][6] == again.table["solver"][5], (
            "the raw-only one, as those before it"
        )
        assert set(again.notes["solvers"]) == {
            name.decode() for name in again.table["solver"].tolist()
        }
        assert again.parent is not None
        assert again.parent["replayed_with"]["solvers"] == again.notes["solvers"]
    one_way = replay(
        recorded, ReplayPlan(out=tmp_path / "more.h5", solver=SolverChanges(iterations=9))
    )
    with sci_stream.open(one_way.path) as again:
        assert {result["iterations"] for result in again.notes["solvers"].values()} == {9}
        assert again.table["iterations"].tolist() == [9] * 7


def test_replay_follows_masks_shifted_during_series(
    tmp_path: Path, calibration: Calibration, live: Path
) -> None:
    near, far = (
        Displacement(x=(0.0, 0.0, 0.7, 0.3, 0.0)),
        Displacement((1, -1), y=(0.0, -1 / 30, 1.0, 1 / 30, 0.0)),
    )
    recorded = Live(calibration, SECTION, moves={2: near, 3: far, 5: NO_DISPLACEMENT}).record(
        tmp_path / "run.h5"
    )
    done = replay(recorded, ReplayPlan())
    found = differences(recorded, done.path)
    assert max(found.values()) <= 2**-10
    as_calibrated = differences(recorded, live)
    assert as_calibrated[3] > 0.01, "otherwise nothing is tested"
    with sci_stream.open(recorded) as moved, sci_stream.open(done.path) as again:
        result = [b"", b"", near.to_text.encode(), far.to_text.encode(), far.to_text.encode(), b""]
        assert moved.table["masks_at"].tolist() == [*result, b""]
        assert moved.table["masks_corrected"].tolist() == [0, 0, 1, 1, 1, 0, 0]
        assert again.table["masks_at"].tolist() == [*result, b""]

    shifted = dataclasses.replace(calibration, phi=np.roll(calibration.phi, 1, axis=2))
    save_calibration(tmp_path / "later.h5", shifted)
    other = replay(
        recorded, ReplayPlan(calibration=tmp_path / "later.h5", out=tmp_path / "other.h5")
    )
    with sci_stream.open(other.path) as again:
        assert set(again.table["masks_at"].tolist()) == {b""}, "where that calibration has them"
    part = replay(recorded, ReplayPlan(first=4, last=6, out=tmp_path / "part.h5"))
    assert max(differences(recorded, part.path).values()) <= 2**-10


def test_recording_without_mask_column_replays_as_calibrated(recorded: Path) -> None:
    with h5py.File(recorded, "r+") as file:
        del file["rows/masks_at"]
        del file["rows_crc32"]
    done = replay(recorded, ReplayPlan())
    assert max(differences(recorded, done.path).values()) <= 2**-10


def test_unknown_settings_of_rows_are_logged(
    recorded: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with h5py.File(recorded, "r+") as file:
        names = file["rows/solver"][:]
        names[4:6] = b"0123456789ab"
        file["rows/solver"][:] = names
        del file["rows_crc32"]
    done = replay(recorded, ReplayPlan())
    assert "solver settings of 2 snapshots are unknown" in caplog.text
    assert max(differences(recorded, done.path).values()) <= 2**-10


def test_recording_without_solver_column_uses_its_notes(recorded: Path) -> None:
    with h5py.File(recorded, "r+") as file:
        del file["rows/solver"]
        del file["rows_crc32"]
    with sci_stream.open(recorded) as recording:
        assert set(recording.table["solver"].tolist()) == {b""}
    done = replay(recorded, ReplayPlan())
    assert max(differences(recorded, done.path).values()) <= 2**-10


def test_result_names_parent_and_settings(recorded: Path) -> None:
    done = replay(recorded, ReplayPlan(solver=SolverChanges(iterations=9)))
    assert done.path == recorded.with_name("run_replay.h5")
    with sci_stream.open(done.path) as again:
        assert again.parent is not None
        assert (again.parent["file"], again.parent["series"]) == ("run.h5", "run")
        made = again.parent["replayed_with"]
        (result,) = made["solvers"].values()
        assert result["denoiser"] == "tv"
        assert result["iterations"] == 9
        assert result["sigma_first"] == 0.3
        assert not made["iterations_as_recorded"]
        assert set(again.table["iterations"].tolist()) == {9}
    with sci_stream.open(recorded) as live:
        assert live.parent is None


def test_more_iterations_can_be_requested(recorded: Path) -> None:
    more = replay(
        recorded, ReplayPlan(out=recorded.with_name("more.h5"), solver=SolverChanges(iterations=12))
    )
    with sci_stream.open(more.path) as again, sci_stream.open(recorded) as live:
        assert set(again.table["iterations"].tolist()) == {12}
        assert not np.array_equal(again.frame_of("video", 1), live.frame_of("video", 1))


def test_better_prior_improves_the_result(recorded: Path) -> None:
    other = replay(
        recorded, ReplayPlan(out=recorded.with_name("lite.h5"), solver=SolverChanges("ffdnet-lite"))
    )
    assert quality_db(other.path) > quality_db(recorded) + 0.5
    with sci_stream.open(other.path) as again:
        assert [result["denoiser"] for result in again.notes["solvers"].values()] == ["ffdnet-lite"]
        assert set(again.table["iterations"].tolist()) == {20}, (
            "the defaults of the new prior, not of the recorded one"
        )


def test_better_calibration_improves_the_result(tmp_path: Path, calibration: Calibration) -> None:
    wrong = dataclasses.replace(calibration, phi=np.roll(calibration.phi, 1, axis=0))
    truth = Live(calibration, SECTION)

    class Mistaken(Live):
        def snapshot(self, seq: int) -> Snapshot:
            return dataclasses.replace(truth.snapshot(seq), calibration_hash=wrong.hash)

    recorded = Mistaken(wrong, SECTION).record(tmp_path / "run.h5")
    save_calibration(tmp_path / "better.h5", calibration)
    done = replay(recorded, ReplayPlan(calibration=tmp_path / "better.h5"))
    assert quality_db(done.path) > quality_db(recorded) + 1.0
    with sci_stream.open(done.path) as again:
        assert again.calibration.hash == again.info.calibration_hash == calibration.hash
        assert again.parent is not None
        assert again.parent["calibration_hash"] == wrong.hash


def test_recording_without_notes_uses_its_rig(tmp_path: Path, calibration: Calibration) -> None:
    rig = (
        f'[reconstruct]\ndenoiser = "tv"\niterations = {FULL}\nsigma_first = 0.3\nsigma_last = '
        "0.02\n"
    )
    recorded = Live(calibration, SECTION, rig_toml=rig, notes=False).record(tmp_path / "run.h5")
    done = replay(recorded, ReplayPlan())
    assert max(differences(recorded, done.path).values()) <= 2**-10


def test_replay_stores_video_as_its_source_does(tmp_path: Path, calibration: Calibration) -> None:
    stored = {"video_dtype": "u2", "compression": Compression.BITSHUFFLE_LZ4}
    done = replay(
        Live(calibration, SECTION, stored=stored).record(tmp_path / "run.h5"), ReplayPlan(last=1)
    )
    with Recording(done.path) as again:
        assert (again.stored_dtype("video"), again.compression) == tuple(stored.values())


def test_recording_of_an_unknown_denoiser_replays_with_another(
    tmp_path: Path, calibration: Calibration
) -> None:
    rig = '[reconstruct]\ndenoiser = "elsewhere"\n'
    recorded = Live(calibration, SECTION, rig_toml=rig, notes=False).record(tmp_path / "run.h5")
    with pytest.raises(ConfigError, match=r"Unknown solver.*'elsewhere'"):
        replay(recorded, ReplayPlan())
    done = replay(recorded, ReplayPlan(solver=SolverChanges(solver="tv")))
    with sci_stream.open(done.path) as again:
        assert again.frame_of("video", 1).shape == (B, H, W)


def test_another_denoiser_takes_the_iterations_of_coarse_masks(
    tmp_path: Path, calibration: Calibration
) -> None:
    coarse = dataclasses.replace(
        calibration, phi=np.stack([cv2.GaussianBlur(m, (0, 0), 2) for m in calibration.phi])
    )
    done = replay(
        Live(coarse, SECTION).record(tmp_path / "run.h5"),
        ReplayPlan(solver=SolverChanges(solver="tv")),
    )
    usual = default_settings(CPU, "tv")
    with sci_stream.open(done.path) as again:
        taken = again.table["iterations"][-1]
    assert taken == suited_to_masks(usual, coarse.fineness).iterations > usual.iterations


def test_resumed_replay_equals_uninterrupted_one(recorded: Path) -> None:
    whole = replay(recorded, ReplayPlan(out=recorded.with_name("whole.h5")))
    result: list[int] = []

    def note(done: int, total: int, _report: SolveReport) -> None:
        assert total == 7
        result.append(done)

    parts = recorded.with_name("parts.h5")
    first = replay(recorded, ReplayPlan(out=parts), progress=note, stop=lambda: len(result) >= 3)
    assert (first.done, first.complete) == (3, False)
    with sci_stream.open(parts) as part:
        assert not part.finished
    second = replay(recorded, ReplayPlan(out=parts, resume=True), progress=note)
    assert (second.before, second.done, second.complete) == (3, 7, True)
    assert result == list(range(1, 8))
    found = differences(whole.path, parts)
    assert len(found) == 7
    assert max(found.values()) == 0
    with sci_stream.open(parts) as joined:
        assert len(joined.video) == 7
        assert joined.finished
        assert joined.ledger is not None
        assert joined.ledger["reconstructed"] == 7
    with sci_stream.open(whole.path) as uninterrupted:
        for name in ("parts.h5", "parts_001.h5"):
            with Recording(recorded.with_name(name)) as file:
                assert file.parent == uninterrupted.parent
    third = replay(recorded, ReplayPlan(out=parts, resume=True))
    assert (third.before, third.done, third.complete) == (7, 7, True), "everything is done"


def test_replay_stopped_within_a_window_resumes_equally(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sci_stream.recon.joint._MAX_BLOCK", 2)
    plan = ReplayPlan(device="cpu", solver=SolverChanges(solver="unrolled", iterations=9))
    whole = replay(recorded, dataclasses.replace(plan, out=recorded.with_name("whole.h5")))
    parts = dataclasses.replace(plan, out=recorded.with_name("parts.h5"), resume=True)
    solves = itertools.count(1)
    first = replay(recorded, parts, stop=lambda: next(solves) > 4)
    assert (first.done, first.complete) == (2, False), "the second block lacks its last neighbour"
    assert replay(recorded, parts).complete
    found = differences(whole.path, first.path)
    assert (len(found), max(found.values())) == (7, 0)


def test_replay_continues_after_a_long_quiet_time(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("recording.writer", "tools.replay.replay"):
        monkeypatch.setattr(f"sci_stream.{module}.MAX_EMPTY_ROWS", 2)
    with h5py.File(recorded, "r+") as file:
        file["rows/state"][2:5] = 2  # video without raw counts, as between two events
        del file["rows_crc32"]
    done = replay(recorded, ReplayPlan())
    with sci_stream.open(done.path) as again:
        assert again.video.seqs.tolist() == [0, 1, 5, 6]
        assert ([segment.first_seq for segment in again.segments], again.finished) == ([0, 5], True)


def test_resume_refuses_a_different_replay(recorded: Path) -> None:
    done = replay(recorded, ReplayPlan())
    with pytest.raises(StorageError, match=r"run_replay\.h5 exists.*--resume"):
        replay(recorded, ReplayPlan())
    with pytest.raises(InputError, match="not from this replay"):
        replay(recorded, ReplayPlan(resume=True, solver=SolverChanges(iterations=2)))
    with pytest.raises(FileFormatError, match="holds no raw snapshots"):
        replay(done.path, ReplayPlan())


@pytest.mark.parametrize("name", ["run", "_Läufe (2) [a]", 99 * "x", "Ü"])
def test_range_is_inclusive_of_a_file_of_any_name(recorded: Path, name: str) -> None:
    recorded = recorded.rename(recorded.with_stem(name))
    done = replay(recorded, ReplayPlan(first=2, last=4))
    with sci_stream.open(done.path) as again:
        assert again.video.seqs.tolist() == [2, 3, 4]
        assert again.first_seq == 2
    with pytest.raises(InputError, match="expected seq from 0 to 6; got 7 to 9"):
        replay(recorded, ReplayPlan(first=7, last=9))


def test_unfit_options_are_refused(
    recorded: Path, tmp_path: Path, calibration: Calibration
) -> None:
    other = Calibration(calibration.phi[:2], dark=64.0, full_scale_dn=900.0, bayer=BayerPhase.RGGB)
    save_calibration(tmp_path / "two.h5", other)
    with pytest.raises(
        CalibrationError, match=r"two\.h5 does not fit.*\(3, 24, 32\).*\(2, 24, 32\)"
    ):
        replay(recorded, ReplayPlan(calibration=tmp_path / "two.h5"))
    mono = dataclasses.replace(calibration, bayer=None)
    save_calibration(tmp_path / "mono.h5", mono)
    with pytest.raises(CalibrationError, match="Bayer phase RGGB; got none"):
        replay(recorded, ReplayPlan(calibration=tmp_path / "mono.h5"))
    with pytest.raises(ConfigError, match="magic"):
        replay(recorded, ReplayPlan(solver=SolverChanges(solver="magic")))
    with pytest.raises(StorageError, match="nowhere does not exist"):
        replay(recorded, ReplayPlan(out=tmp_path / "nowhere" / "out.h5"))
    with pytest.raises(FileFormatError, match=r"missing\.h5"):
        replay(tmp_path / "missing.h5", ReplayPlan())


def test_missing_or_changed_weights_are_refused(tmp_path: Path, calibration: Calibration) -> None:
    weights = tmp_path / "mine.safetensors"
    weights.write_bytes(shipped_weights("ffdnet-lite").read_bytes())
    section = ReconstructSection(solver="ffdnet-lite", weights=weights, iterations=FULL)
    rig = f'[reconstruct]\ndenoiser = "ffdnet-lite"\nweights = "{weights}"\niterations = {FULL}\n'
    recorded = Live(calibration, section, rig_toml=rig).record(tmp_path / "run.h5")
    done = replay(recorded, ReplayPlan())
    assert max(differences(recorded, done.path).values()) <= 2**-10

    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(WeightsError, match=r"mine\.safetensors has changed.*SHA-256.*--weights"):
        replay(recorded, ReplayPlan(out=tmp_path / "again.h5"))
    weights.unlink()
    with pytest.raises(WeightsError, match=r"not found: .*mine\.safetensors"):
        replay(recorded, ReplayPlan(out=tmp_path / "again.h5"))


def test_recording_without_calibration_needs_one(
    recorded: Path, tmp_path: Path, calibration: Calibration
) -> None:
    with h5py.File(recorded, "r+") as file:
        del file["calibration"]
    with pytest.raises(
        FileFormatError, match=r"run\.h5 is incomplete; expected a group 'calibration'"
    ):
        replay(recorded, ReplayPlan())
    save_calibration(tmp_path / "mine.h5", calibration)
    assert replay(recorded, ReplayPlan(calibration=tmp_path / "mine.h5")).complete
