"""``sci-stream replay``: reconstruct a recording again from its raw snapshots, with the live
engine.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from sci_stream.calibration.evidence.inspection import stuck_in
from sci_stream.clock import unix_ns
from sci_stream.delivery.ledger import Ledger, Outcome
from sci_stream.errors import CalibrationError, InputError, StorageError
from sci_stream.model import JsonObject, Reconstruction, Snapshot, SnapshotId, StageTimes
from sci_stream.nodes.runtime.process import versions
from sci_stream.optics.calibration import Calibration
from sci_stream.recon.backend.device import pick_device
from sci_stream.recon.engine import Engine
from sci_stream.recon.guarded import Delivered, GuardedSolver
from sci_stream.recon.joint import Solved, jointly
from sci_stream.recording.calibration_file import load_calibration
from sci_stream.recording.columns import START, recorded_chunks
from sci_stream.recording.series import RecordedSeries
from sci_stream.recording.writer import MAX_EMPTY_ROWS, RecordingWriter
from sci_stream.reports import SolveReport, Start
from sci_stream.tools.replay.solver import ReplaySolver, SolverChanges, SolverSetup, replay_solver

log = logging.getLogger(__name__)

# A killed replay loses at most this; flushing each snapshot would cost more than solving small
# ones.
_FLUSH_S = 1.0

# Snapshots solved, but not written, before the first one of a partial replay: a warm-started result
# depends on its predecessors, less and less with distance.
_MAX_PRECEDING = 16
_NODE = "replay"

Progress = Callable[[int, int, SolveReport], None]


@dataclass(frozen=True)
class ReplayPlan:
    """Options of a replay.

    ``out`` None for ``<name>_replay.h5`` beside the recording; ``first`` and ``last`` seq, both
    included; ``event`` the number of one of a triggered recording; ``resume`` an interrupted
    replay.
    """

    out: Path | None = None
    solver: SolverChanges = field(default_factory=SolverChanges)
    calibration: Path | None = None
    device: str = "auto"
    first: int | None = None
    last: int | None = None
    event: int | None = None
    resume: bool = False


@dataclass(frozen=True)
class Replayed:
    """Result: ``done`` of ``total`` snapshots are in ``path``, ``before`` of them from an earlier
    run.
    """

    path: Path
    done: int
    total: int
    before: int
    seconds: float

    @property
    def complete(self) -> bool:
        """Whether the replay is complete."""
        return self.done == self.total


def default_output(source: Path) -> Path:
    """Return the path of a recording's replay where none is given."""
    return source.with_name(f"{source.stem}_replay.h5")


def replay_recording(
    source: str | Path,
    out: str | Path | None = None,
    *,
    iterations: int | None = None,
    solver: str | None = None,
    denoiser: str | None = None,
    weights: str | Path | None = None,
    calibration: str | Path | None = None,
    device: str = "auto",
    first: int | None = None,
    last: int | None = None,
    event: int | None = None,
    resume: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Replayed:
    """Reconstruct a recording again from its raw snapshots, into a new recording.

    Parameters
    ----------
    source
        The recording; it is not changed.
    out
        The new recording; by default ``NAME_replay.h5`` beside it.
    iterations, solver, weights
        Of every snapshot; by default as recorded: the result then equals the recorded video within
        float16 rounding.
    denoiser
        The earlier name of ``solver``.
    calibration
        A better calibration than the recorded one.
    device
        ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"cuda:N"``.
    first, last
        Sequence numbers, both included; by default all.
    event
        Number of an event of a triggered recording; by default all.
    resume
        Continue an interrupted replay.
    progress
        Called after each snapshot with the number done and the total.

    Raises
    ------
    InputError, FileFormatError, StorageError
        As `replay`.

    Examples
    --------
    >>> done = sci_stream.replay("recordings/run.h5", iterations=60)  # doctest: +SKIP
    >>> sci_stream.open(done.path).video.shape  # doctest: +SKIP
    """
    out, weights, calibration = (
        None if path is None else Path(path) for path in (out, weights, calibration)
    )
    changes = SolverChanges(solver if denoiser is None else denoiser, weights, iterations)
    plan = ReplayPlan(out, changes, calibration, device, first, last, event, resume)
    return replay(Path(source), plan, progress=lambda done, total, _report: progress(done, total))


def replay(
    source: Path,
    plan: ReplayPlan,
    *,
    progress: Progress = lambda _done, _total, _report: None,
    stop: Callable[[], bool] = lambda: False,
) -> Replayed:
    """Reconstruct the raw snapshots of a recording in order of seq into a new recording that names
    its parent.

    By default each snapshot gets its recorded prior, settings and iterations, so that the result
    equals the recorded one within float16 rounding. If a solve ran out of time, its σ schedule was
    cut short, which a replay does not repeat: it then does better. With another prior or other
    iterations, trained stages see several snapshots as one video (`sci_stream.recon.joint`).

    ``progress`` is called after each snapshot with the number done, the total, and the last report;
    ``stop`` before each: True ends the replay cleanly, to be resumed later.

    Raises `FileFormatError` if ``source`` is not a recording or holds no raw snapshots;
    `InputError` if the options do not fit the recording; `StorageError` if the output exists
    without ``resume``, or cannot be written.
    """
    with RecordedSeries(source) as series:
        seqs = _chosen(series, plan)
        calibration = _calibration(series, plan.calibration)
        device = pick_device(plan.device)
        solver = replay_solver(series, plan.solver, calibration, device)
        out = plan.out or default_output(source)
        parent = _parent(series, calibration, solver)
        done = _done_before(out, parent, plan)
        # Not an error: a recording whose notes were cut is still replayed.
        if solver.unknown:
            log.warning(
                "%s: solver settings of %d snapshots are unknown; using those of the previous "
                "snapshots",
                source, solver.unknown,
            )  # fmt: skip
        run = _Run(series, calibration, device, solver)
        began_s = time.monotonic()
        open_seqs = [seq for seq in seqs if seq not in done]
        before = len(seqs) - len(open_seqs)
        if open_seqs:
            run.write(
                out,
                open_seqs,
                parent,
                before,
                progress=lambda i, r: progress(i, len(seqs), r),
                stop=stop,
            )
        return Replayed(out, before + run.done, len(seqs), before, time.monotonic() - began_s)


def _chosen(series: RecordedSeries, plan: ReplayPlan) -> list[int]:
    stored = series.require_raw()
    seqs = stored.between(plan.first, plan.last)
    if plan.event is not None:
        seqs = sorted(set(seqs).intersection(series.seqs_of_event(plan.event)))
    if not seqs:
        raise InputError(
            f"No snapshot of {series.path} is in that range",
            expected=f"seq from {stored.seqs[0]} to {stored.seqs[-1]}",
            got=f"{plan.first or 0} to {stored.seqs[-1] if plan.last is None else plan.last}"
            + ("" if plan.event is None else f", of event {plan.event}"),
        )
    return seqs


def _calibration(series: RecordedSeries, file: Path | None) -> Calibration:
    if file is None:
        return series.calibration
    calibration = load_calibration(file)
    info = series.info
    for what, fits, got in (
        (
            "masks of (B, H, W) =",
            (info.n_frames, info.height_px, info.width_px),
            calibration.phi.shape,
        ),
        ("Bayer phase", info.bayer or "none", calibration.bayer or "none"),
    ):
        if got != fits:
            misfit = f"The calibration {file} does not fit the recording {series.path}"
            raise CalibrationError(misfit, expected=f"{what} {fits}", got=got)
    return calibration


def _parent(series: RecordedSeries, calibration: Calibration, solver: ReplaySolver) -> JsonObject:
    return {
        "file": series.path.name,
        "series": series.info.series,
        "started_ns": series.info.started_ns,
        "calibration_hash": series.info.calibration_hash,
        "replayed_with": {
            "solvers": solver.described,
            "iterations_as_recorded": solver.as_recorded,
            "calibration_hash": calibration.hash,
            "versions": versions(),
        },
    }


def _done_before(out: Path, parent: JsonObject, plan: ReplayPlan) -> set[int]:
    """Return the snapshots of an interrupted replay,
    after checking that it has the same options.
    """
    if not out.exists():
        if not out.parent.is_dir():
            raise StorageError(f"The folder {out.parent} does not exist", hint="Create it first.")
        return set()
    if not plan.resume:
        raise StorageError(
            f"{out} exists", hint="Choose another --out, or --resume to continue it."
        )
    with RecordedSeries(out) as earlier:
        # Mixing two settings in one recording would be invisible afterwards.
        if earlier.parent != parent:
            raise InputError(
                f"{out} is not from this replay: another recording, other settings or other "
                "versions",
                expected="the parent and settings of this one",
                hint="Give the same options as the first time, or choose another --out.",
            )
        return set(earlier.video.seqs.tolist())


class _StoppedError(Exception):
    """A stop is requested."""


@dataclass(eq=False)
class _Run:
    """Solve snapshots in order and write them; ``done`` of them so far."""

    series: RecordedSeries
    calibration: Calibration
    device: torch.device
    solver: ReplaySolver
    solvers: dict[str, GuardedSolver] = field(default_factory=dict)
    done: int = 0

    def write(
        self,
        out: Path,
        seqs: list[int],
        parent: JsonObject,
        before: int,
        *,
        progress: Callable[[int, SolveReport], None],
        stop: Callable[[], bool],
    ) -> None:
        """Reconstruct snapshots until all are done or a stop is requested; ``before`` were done
        earlier.
        """
        calibration = self.calibration
        # A `Name` of the file, which may have any: readers refuse another one.
        series = re.sub(r"[^A-Za-z0-9._-]", "_", out.stem).lstrip("._-")[:96] or "replay"
        info = dataclasses.replace(
            self.series.info, series=series, calibration_hash=calibration.hash
        )
        ledger = Ledger()
        # The ledger of a resumed replay covers the whole of it, not only the part since.
        for index in range(before):
            ledger.settle(index, Outcome.RECONSTRUCTED)
        picture, error = (
            self.series.stored_dtype(name) is not None for name in ("picture", "error")
        )
        writer = RecordingWriter(
            out, info, calibration, raw=False, picture=picture, error=error, first_seq=seqs[0],
            parent=parent,
            video_dtype=self.series.stored_dtype("video") or "f2",
            compression=self.series.segments[0].compression,
        )  # fmt: skip
        with ExitStack() as opened:
            opened.enter_context(writer)
            writer.notes["solvers"] = self.solver.described
            flushed_s = time.monotonic()
            for index, reconstruction in enumerate(self._reconstructions(seqs, stop)):
                seq = reconstruction.id.seq
                if (
                    index and seq - seqs[index - 1] > MAX_EMPTY_ROWS
                ):  # not kept in between, of a triggered recording
                    writer.settled_below = seq
                    last = writer
                    writer = opened.enter_context(writer.next_segment())
                    last.close(ledger.counts(), continued=writer.path.name)
                writer.write_reconstruction(reconstruction)
                if self.solver.decisions is not None:
                    writer.write_evidence(seq, self.series.row(seq))
                self.done += 1
                ledger.settle(before + index, Outcome.RECONSTRUCTED)
                if time.monotonic() - flushed_s > _FLUSH_S:
                    writer.flush()
                    flushed_s = time.monotonic()
                progress(before + self.done, reconstruction.report)
            if self.done < len(seqs):
                # Marked as continued, not finished: `--resume` recognises it by that.
                writer.close(ledger.counts(), continued="")  # when it is resumed
                return
            ledger.end(before + self.done)
            writer.close(ledger.counts())

    def _reconstructions(
        self, seqs: list[int], stop: Callable[[], bool]
    ) -> Iterator[Reconstruction]:
        """Reconstruct snapshots in order, until a stop is requested.

        Those whose joint solve lacks snapshots then are left to be solved again.
        """
        started_ns: dict[int, int] = {}

        def solved() -> Iterator[Solved]:
            for seq in (*self._preceding(seqs[0]), *seqs):
                if stop():
                    raise _StoppedError
                started_ns[seq] = unix_ns()
                yield self._solve(seq)

        with suppress(_StoppedError):
            for snapshot, delivered in jointly(solved()):
                seq = snapshot.id.seq
                if seq >= seqs[0]:
                    yield self._reconstruction(snapshot, delivered, started_ns.pop(seq))

    def _preceding(self, first: int) -> range:
        """Return the directly preceding snapshots: solved, too, the first one starts as in an
        uninterrupted run.
        """
        if not self.solver.of(first).settings.warm_start:
            return range(0)
        stored = set(self.series.raw.seqs.tolist())
        start = first
        # Back to the last cold start, whose result does not depend on what came before.
        while (
            start > first - _MAX_PRECEDING
            and start - 1 in stored
            and not self._recorded_cold(start)
        ):
            start -= 1
        return range(start, first)

    def _recorded_cold(self, seq: int) -> bool:
        """Whether a snapshot starts cold because it did when recorded."""
        cold = START.word_of(self.series.row(seq)["start"]) == Start.COLD
        return cold and self.solver.as_recorded

    def _solver(self, setup: SolverSetup) -> GuardedSolver:
        """Return the solver of a prior with these settings, created on first use."""
        solver = self.solvers.get(setup.solver.name)
        if solver is None:
            engine = Engine(self.calibration, setup.solver, self.device, setup.settings)
            engine.warm_up()
            if self.series.rows["stuck_pixels"].any():
                engine.left_out = stuck_in(self.series.raw[0], self.calibration)
            # Windows of snapshots would not give the video that was recorded.
            engine.keeps_tail = not self.solver.as_recorded
            solver = self.solvers[setup.solver.name] = GuardedSolver(engine)
        elif solver.engine.settings is not setup.settings:
            solver.engine.change_settings(setup.settings)
        return solver

    def _solve(self, seq: int) -> Solved:
        setup = self.solver.of(seq)
        solver = self._solver(setup)
        row = self.series.row(seq)
        snapshot = self._snapshot(seq, row)
        if self._recorded_cold(seq):
            # If another node or none solved the previous snapshot, this one was not started from
            # it.
            solver.engine.forget()
        recorded = int(row["iterations"]) if self.solver.as_recorded else 0
        iterations = recorded or setup.settings.iterations
        if self.solver.as_recorded:  # a live rig looks for moving images where it has time
            solver.engine.seeks_moving_image = math.isfinite(row.get("moving_share", math.nan))
        decision = self.solver.decision_of(seq)
        if decision is None:
            return snapshot, solver.solve(snapshot, iterations)
        if decision.correction.sensor.lag and self.series.has("raw", seq - 1):
            before = self._snapshot(seq - 1, self.series.row(seq - 1))
            decision = decision._replace(before=before)
        return snapshot, solver.solve_as_decided(snapshot, decision, iterations)

    def _reconstruction(
        self, snapshot: Snapshot, delivered: Delivered, started_ns: int
    ) -> Reconstruction:
        seq = snapshot.id.seq
        return Reconstruction.of(
            snapshot,
            video=delivered.video,
            report=dataclasses.replace(delivered.report, solver=self.solver.of(seq).id),
            times=StageTimes(
                acquired_ns=snapshot.host_time_ns, started_ns=started_ns, finished_ns=unix_ns()
            ),
            node=_NODE,
            device=str(self.device),
            picture=self.series.frame_of("picture", seq)
            if self.series.has("picture", seq)
            else None,
        )

    def _snapshot(self, seq: int, row: Mapping[str, Any]) -> Snapshot:
        info = self.series.info
        calibration = self.calibration
        return Snapshot(
            id=SnapshotId(info.series, int(row["epoch"]), seq),
            counts=self.series.frame_of("raw", seq),
            calibration_hash=calibration.hash,
            n_frames=calibration.n_frames,
            host_time_ns=int(row["host_time_ns"]),
            camera_time_ns=None if row["camera_time_ns"] < 0 else int(row["camera_time_ns"]),
            camera_frame_id=None if row["camera_frame_id"] < 0 else int(row["camera_frame_id"]),
            pixel_format=info.pixel_format,
            bayer=info.bayer,
            dropped_before=int(row["dropped_before"]),
            chunks=recorded_chunks(row),
        )
