"""Jobs of a batch: read from a manifest, each of which can be run anywhere, any number of times."""

from __future__ import annotations

import dataclasses
import errno
import glob
import os
import secrets
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from sci_stream.errors import FileFormatError, SciStreamError
from sci_stream.file_guard import read_small, reading
from sci_stream.recording.segments import existing_segments, is_segment_of
from sci_stream.tools.replay.jobs import JobResult, JobState, ReplayJob, run_jobs
from sci_stream.tools.replay.replay import replay

# A hundred thousand paths; a recording named by mistake must not be read as a list.
_MAX_MANIFEST_BYTES = 16 << 20


def read_manifest(path: Path) -> list[Path]:
    """Return the recordings that a text file names: one path or pattern (``*``, ``**``) per line,
    ``#`` for comments.

    Relative paths are relative to the manifest.

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
            absolute = str(path.parent / Path(pattern).expanduser())
            matches = sorted(glob.glob(absolute, recursive=True))  # noqa: PTH207 - absolute patterns too
        if not matches:
            raise FileFormatError(f"Line {number} of {path} matches no file", got=pattern)
        recordings |= dict.fromkeys(map(Path, matches))
    if not recordings:
        raise FileFormatError(f"The manifest {path} is empty", expected="one recording per line")
    return list(recordings)


def run_job_atomically(job: ReplayJob, worker: str = "") -> JobResult:
    """Run a job such that its output appears complete or not at all, however often and wherever it
    is run.

    The replay is written to a hidden folder and renamed. A killed run leaves that folder, and the
    next run starts from the first snapshot: it gives the same result to the last bit.
    """
    began_s = time.monotonic()
    folder = job.out.with_name(f".{job.out.name}.{secrets.token_hex(4)}.part")
    try:
        if job.out.exists():
            (result,) = run_jobs(
                [dataclasses.replace(job, plan=dataclasses.replace(job.plan, resume=True))]
            )
            return dataclasses.replace(result, worker=worker)
        folder.mkdir()
        partial = folder / job.out.name
        done = replay(job.source, dataclasses.replace(job.plan, out=partial, resume=False))
        for segment in reversed(existing_segments(partial)):  # the first one completes the output
            target = job.out.with_name(segment.name)
            if target.exists() and not is_segment_of(target, segment):
                raise FileExistsError(errno.EEXIST, f"{target.name} exists")
            os.replace(segment, target)  # noqa: PTH105 - the paths are named by their roles
    except SciStreamError as error:
        return JobResult.of(job, JobState.FAILED, began_s, error=str(error), worker=worker)
    except OSError as error:
        text = f"{job.out} cannot be written: {error.strerror}"
        return JobResult.of(job, JobState.FAILED, began_s, error=text, worker=worker)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return JobResult.of(job, JobState.DONE, began_s, snapshots=done.done, worker=worker)


def remove_left_behind(jobs: Iterable[ReplayJob]) -> None:
    """Remove the hidden folders that killed runs left. Only when none is running."""
    for job in jobs:
        for folder in job.out.parent.glob(f".{glob.escape(job.out.name)}.*.part"):
            shutil.rmtree(folder, ignore_errors=True)
