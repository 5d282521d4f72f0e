"""Replay many recordings: a list of jobs, run one after the other."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from sci_stream.errors import InputError, SciStreamError, StorageError
from sci_stream.recording.segments import first_segment, free_bytes, is_segment_of
from sci_stream.tools.replay.replay import Progress, ReplayPlan, default_output, replay

log = logging.getLogger(__name__)


class JobState(StrEnum):
    """Outcome of a job."""

    DONE = "done"
    """The recording was replayed."""
    PRESENT = "present"
    """A complete replay with the same options was there already."""
    STOPPED = "stopped"
    """Stopped on request; to be resumed."""
    FAILED = "failed"


@dataclass(frozen=True)
class ReplayJob:
    """One recording to replay; ``plan.out`` is set."""

    source: Path
    plan: ReplayPlan

    @property
    def out(self) -> Path:
        """The new recording."""
        return self.plan.out or default_output(self.source)


@dataclass(frozen=True)
class JobResult:
    """Result of a job: ``snapshots`` are in ``out`` after ``seconds``; ``error`` and ``cause``
    explain a failure.
    """

    source: str
    out: str
    state: JobState
    snapshots: int = 0
    seconds: float = 0.0
    worker: str = ""
    error: str = ""
    cause: SciStreamError | None = None

    @classmethod
    def of(cls, job: ReplayJob, state: JobState, began_s: float, **rest: Any) -> JobResult:
        """Return the result of a job that began at this time of the monotonic clock."""
        return cls(str(job.source), str(job.out), state, seconds=time.monotonic() - began_s, **rest)

    def to_json(self) -> dict[str, str | int | float]:
        """Return plain values."""
        plain = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "cause"
        }
        return {**plain, "state": self.state.value, "seconds": round(self.seconds, 3)}


def plan_jobs(sources: Iterable[Path], out: Path | None, plan: ReplayPlan) -> list[ReplayJob]:
    """Return the jobs of some recordings; ``out`` is a folder, None to write each replay beside its
    recording.

    A later segment is left out if the first one of its series, whose replay includes it, is among
    them. So is the replay of another one, which a pattern such as ``run*.h5`` matches, too.

    Raises `InputError` if two replays would have the same name; `StorageError` if the folder cannot
    be created.
    """
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"The folder {out} cannot be created", got=error.strerror) from error
    jobs: dict[Path, ReplayJob] = {}
    named = dict.fromkeys(sources)
    replays = {default_output(source): source for source in named}
    for source in named:
        first = first_segment(source)
        if first in replays:
            log.warning("%s is left out: it is the replay of %s", source, replays[first])
            continue
        if first != source and first in named and is_segment_of(source, first):
            continue
        target = default_output(source) if out is None else out / f"{source.stem}.h5"
        if target in jobs:
            raise InputError(
                f"Two recordings would be replayed to {target}",
                got=f"{jobs[target].source} and {source}",
                hint="Replay them into different folders, or without --out beside each recording.",
            )
        jobs[target] = ReplayJob(source, dataclasses.replace(plan, out=target))
    return list(jobs.values())


def run_jobs(
    jobs: Sequence[ReplayJob],
    *,
    progress: Progress = lambda _done, _total, _report: None,
    stop: Callable[[], bool] = lambda: False,
    keep_free_mib: float = 0.0,
) -> Iterator[JobResult]:
    """Run jobs one after the other in this process; yield each result.

    A failed recording does not end the others. A job fails, to be resumed, before its disk has less
    than ``keep_free_mib``.
    """
    for job in jobs:
        began_s = time.monotonic()
        floor = _Floor(job.out, keep_free_mib)

        def stops(floor: _Floor = floor) -> bool:
            return stop() or floor.is_reached()

        try:
            floor.require_room()
            done = replay(job.source, job.plan, progress=progress, stop=stops)
            if not done.complete:
                floor.require_room()
        except SciStreamError as error:
            yield JobResult.of(job, JobState.FAILED, began_s, error=str(error), cause=error)
            continue
        state = JobState.STOPPED if not done.complete else JobState.DONE
        if done.complete and done.before == done.total:
            state = JobState.PRESENT
        yield JobResult.of(job, state, began_s, snapshots=done.done)
        if stop():
            return


class _Floor:
    """The free space that the disk of a file keeps, MiB; once reached, it stays so."""

    def __init__(self, path: Path, mib: float) -> None:
        self._path = path
        self._mib = mib
        self._reached_mib: float | None = None

    def is_reached(self) -> bool:
        if self._mib and self._reached_mib is None:
            free_mib = free_bytes(self._path) / 2**20
            if free_mib < self._mib:
                self._reached_mib = free_mib
        return self._reached_mib is not None

    def require_room(self) -> None:
        """Raise `StorageError` if the floor is reached."""
        if self.is_reached():
            raise StorageError(
                f"{self._path} is not written further: its disk is nearly full",
                expected=f"at least {self._mib:.1f} MiB free",
                got=f"{self._reached_mib:.1f} MiB",
                hint="Free some space, then continue with --resume.",
            )
