"""Replay many recordings: a list of jobs, each of which can be run anywhere, any number of times."""

from __future__ import annotations

import dataclasses
import glob
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from sci_stream.errors import FileFormatError, InputError, SciStreamError, StorageError
from sci_stream.file_guard import read_small, reading
from sci_stream.recording.segments import first_segment
from sci_stream.tools.replay.replay import Progress, ReplayPlan, default_output, replay

# A hundred thousand paths; a recording named by mistake must not be read as a list.
_MAX_MANIFEST_BYTES = 16 << 20


class JobState(StrEnum):
    """Outcome of a job."""

    DONE = "done"
    """The recording was replayed."""
    PRESENT = "present"
    """A complete replay with the same options was there already."""
    STOPPED = "stopped"
    """Stopped on request; to be resumed."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ReplayJob:
    """One recording to replay; ``plan.out`` is set."""

    source: Path
    plan: ReplayPlan

    @property
    def out(self) -> Path:
        """The new recording."""
        return self.plan.out or default_output(self.source)


@dataclass(frozen=True, slots=True)
class JobResult:
    """Result of a job: ``snapshots`` are in ``out`` after ``seconds``; ``error`` and ``cause`` explain a failure."""

    source: str
    out: str
    state: JobState
    snapshots: int = 0
    seconds: float = 0.0
    worker: str = ""
    error: str = ""
    cause: SciStreamError | None = None

    def to_json(self) -> dict[str, str | int | float]:
        """Return plain values."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "cause"}
        return {**plain, "state": self.state.value, "seconds": round(self.seconds, 3)}


def read_manifest(path: Path) -> list[Path]:
    """Return the recordings that a text file names: one path or pattern (``*``, ``**``) per line, ``#`` for comments.

    Relative paths are relative to the manifest. Of a recording in segments, only the first is returned.

    Raises
    ------
    FileFormatError
        If the manifest cannot be read, is empty, or a line matches no file.
    """
    with reading(path, "a manifest", hint="It is a text file with one recording per line."):
        lines = read_small(path, "a manifest", _MAX_MANIFEST_BYTES).decode().splitlines()
    recordings: dict[Path, None] = {}
    for number, line in enumerate(lines, 1):
        pattern = line.split("#")[0].strip()
        if not pattern:
            continue
        with reading(path, "a manifest"):  # a pattern may hold NUL or an unknown user's home
            matches = sorted(glob.glob(str(path.parent / Path(pattern).expanduser()), recursive=True))  # noqa: PTH207 - absolute patterns too
        if not matches:
            raise FileFormatError(f"Line {number} of {path} matches no file", got=pattern)
        recordings |= dict.fromkeys(first_segment(Path(match)) for match in matches)
    if not recordings:
        raise FileFormatError(f"The manifest {path} is empty", expected="one recording per line")
    return list(recordings)


def plan_jobs(sources: Iterable[Path], out: Path | None, plan: ReplayPlan) -> list[ReplayJob]:
    """Return the jobs of some recordings; ``out`` is a folder, None to write each replay beside its recording.

    Raises
    ------
    InputError
        If two replays would have the same name.
    StorageError
        If the folder cannot be created.
    """
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"The folder {out} cannot be created", got=error.strerror) from error
    jobs: dict[Path, ReplayJob] = {}
    for source in dict.fromkeys(sources):
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
) -> Iterator[JobResult]:
    """Run jobs one after the other in this process; yield each result. A failed recording does not end the others."""
    for job in jobs:
        began_s = time.monotonic()
        try:
            done = replay(job.source, job.plan, progress=progress, stop=stop)
        except SciStreamError as error:
            yield _result(job, JobState.FAILED, began_s, error=str(error), cause=error)
            continue
        state = JobState.STOPPED if not done.complete else JobState.DONE
        if done.complete and done.before == done.total:
            state = JobState.PRESENT
        yield _result(job, state, began_s, snapshots=done.done)
        if stop():
            return


def run_job_atomically(job: ReplayJob, worker: str = "") -> JobResult:
    """Run a job such that its output appears complete or not at all, however often and wherever it is run.

    The replay is written to a hidden folder and renamed. A killed run leaves that folder, and the next run starts from
    the first snapshot: it gives the same result to the last bit.
    """
    began_s = time.monotonic()
    folder = job.out.with_name(f".{job.out.name}.{secrets.token_hex(4)}.part")
    try:
        if job.out.exists():
            (result,) = run_jobs([dataclasses.replace(job, plan=dataclasses.replace(job.plan, resume=True))])
            return dataclasses.replace(result, worker=worker)
        folder.mkdir()
        partial = folder / job.out.name
        done = replay(job.source, dataclasses.replace(job.plan, out=partial, resume=False))
        os.replace(partial, job.out)  # noqa: PTH105 - the paths are named by their roles
    except SciStreamError as error:
        return _result(job, JobState.FAILED, began_s, error=str(error), worker=worker)
    except OSError as error:
        text = f"{job.out} cannot be written: {error.strerror}"
        return _result(job, JobState.FAILED, began_s, error=text, worker=worker)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return _result(job, JobState.DONE, began_s, snapshots=done.done, worker=worker)


def remove_left_behind(jobs: Iterable[ReplayJob]) -> None:
    """Remove the hidden folders that killed runs left. Only when none is running."""
    for job in jobs:
        for folder in job.out.parent.glob(f".{glob.escape(job.out.name)}.*.part"):
            shutil.rmtree(folder, ignore_errors=True)


def _result(job: ReplayJob, state: JobState, began_s: float, **rest: Any) -> JobResult:
    return JobResult(str(job.source), str(job.out), state, seconds=time.monotonic() - began_s, **rest)
