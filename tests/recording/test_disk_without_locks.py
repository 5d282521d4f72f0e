"""Recordings and the folder of a run work on a disk without file locks, as with NFS without lockd.

The system's `flock` is replaced in another process by one that fails.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FLOCK = """
#include <errno.h>
#include <stdlib.h>
int flock(int file, int operation) { errno = atoi(getenv("FLOCK_ERRNO")); return -1; }
"""
PROGRAM = """
from pathlib import Path

from sci_stream.errors import StorageError
from sci_stream.nodes.runtime.runtime_folder import RunFolder, run_folders
from sci_stream.recording.hdf5 import require_recording_disk
from sci_stream.recording.repair import repair_recording
from sci_stream.recording.series import RecordedSeries
from sci_stream.recording.writer import RecordingWriter
from tests.series_fixtures import make_series

print("has locks:", require_recording_disk(Path.cwd()))
series = make_series()
writer = RecordingWriter(Path("run.h5"), series.info, series.calibration)
writer.write_raw(series.snapshot(0))
writer.flush()
with RecordedSeries(Path("run.h5")) as recorded:
    print("snapshots:", len(recorded.require_raw()))
try:
    repair_recording(Path("run.h5"))
except StorageError as error:
    print("repair:", error.got)
with RunFolder(Path.cwd()) as folder:
    print("left behind:", list(run_folders(Path.cwd(), running=False)))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs gcc")
    path = tmp_path_factory.mktemp("flock") / "flock.so"
    command = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=FLOCK, text=True, check=True)
    return path


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_recording_without_locks_is_written_and_read(
    tmp_path: Path, library: Path, code: int
) -> None:
    environment = os.environ | {
        "LD_PRELOAD": str(library),
        "FLOCK_ERRNO": str(code),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "has locks: False",
        "snapshots: 1",
        "repair: the disk has no file locks, by which a writer shows",
        "left behind: []",
    ]
