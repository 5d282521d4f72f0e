"""A campaign of faults of the host: disks that fail or are full for a while, clocks that are set,
killed nodes, two at once. It takes ten minutes and ends with a table.
"""

from __future__ import annotations

import errno
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sci_stream.errors import StorageError
from sci_stream.recording.inspection import verify_segment
from sci_stream.recording.series import RecordedSeries
from tests.e2e.kit import COMMAND, RunningRig, assert_accounted_for, merged
from tests.journals import read_journal

pytestmark = [pytest.mark.rig, pytest.mark.slow, pytest.mark.timeout(1800)]

ROUNDS = 15
DAY_S = 86400
# The recorder tries again every 5 s.
FAULT_S, REST_S = 3.0, 8.0

# Writes below a folder fail with the number in a file, and the host's clock is ahead by the seconds
# in another: without rights to set either, and for this rig alone.
PRELOADED = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static long number_in(const char *variable) {
  static __thread int reading;
  const char *name = getenv(variable);
  long number = 0;
  if (!name || reading) return 0;
  reading = 1;
  FILE *file = fopen(name, "r");
  if (file) { if (fscanf(file, "%ld", &number) != 1) number = 0; fclose(file); }
  reading = 0;
  return number;
}
static int fails(int descriptor) {
  char link[64], path[512];
  const char *folder = getenv("FAULTY_FOLDER");
  if (!folder) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t size = readlink(link, path, sizeof path - 1);
  if (size <= 0 || strncmp(path, folder, strlen(folder))) return 0;
  int code = (int)number_in("FAULTY_WRITES");
  if (code) errno = code;
  return code;
}
ssize_t write(int to, const void *data, size_t size) {
  return fails(to) ? -1 : syscall(SYS_write, to, data, size);
}
ssize_t pwrite64(int to, const void *data, size_t size, off64_t at) {
  return fails(to) ? -1 : syscall(SYS_pwrite64, to, data, size, at);
}
ssize_t pwrite(int to, const void *data, size_t size, off_t at) {
  return fails(to) ? -1 : syscall(SYS_pwrite64, to, data, size, at);
}
int clock_gettime(clockid_t clock, struct timespec *now) {
  int result = (int)syscall(SYS_clock_gettime, clock, now);
  if (clock == CLOCK_REALTIME && !result) now->tv_sec += number_in("FAULTY_CLOCK");
  return result;
}
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("faults")
    source, built = folder / "faults.c", folder / "faults.so"
    source.write_text(PRELOADED)
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(built), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return built


class FaultyHost:
    """A running rig, and the faults of its host."""

    def __init__(self, folder: Path, library: Path, changes: dict[str, Any]) -> None:
        self._writes, self._clock = folder / "writes", folder / "clock"
        self._writes.write_text("0")
        self._clock.write_text("0")
        recordings = folder / "recordings"
        recordings.mkdir()
        variables = {
            "LD_PRELOAD": library,
            "FAULTY_FOLDER": recordings,
            "FAULTY_WRITES": self._writes,
            "FAULTY_CLOCK": self._clock,
        }
        program = ["env", *(f"{name}={value}" for name, value in variables.items()), *COMMAND]
        self.rig = RunningRig(folder, changes, program=program)

    def failing_disk(self, rng: random.Random) -> str:
        code = rng.choice([errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS])
        self._writes.write_text(str(code))
        time.sleep(FAULT_S)
        self._writes.write_text("0")
        return errno.errorcode[code]

    def stepped_clock(self, rng: random.Random) -> str:
        step_s = rng.choice([-DAY_S, -3600, 3600, DAY_S])
        self._clock.write_text(str(step_s))
        victims = rng.choice([["acquire"], ["sink"], ["acquire", "sink"]])
        for victim in victims:
            self._kill(victim)
        return f"clock {step_s:+d} s, killed {' and '.join(victims)}"

    def killed_node(self, rng: random.Random) -> str:
        victim = rng.choice(["acquire", "sink", "reconstruct-0"])
        self._kill(victim)
        return f"killed {victim}"

    def _kill(self, node: str) -> None:
        while node not in self.rig.nodes():
            time.sleep(0.1)
        self.rig.kill(node)


MODES: dict[str, dict[str, Any]] = {
    "record": {"policy": {"mode": "record"}},
    "live": {"policy": {"mode": "live"}},
    "triggered": {
        "policy": {"mode": "live"},
        "record": {
            "mode": "triggered",
            "before_s": 0.3,
            "after_s": 0.3,
            "trigger": ["motion > 0.01, hold-off 1 s, at most 1000"],
        },
        "camera": {"options": {"scene": "fast"}},
    },
}


def events_of(rig: RunningRig) -> int:
    """Return how many events the journal has."""
    (journal,) = Path(rig.rig.record.folder).glob("*.jsonl")
    return sum(entry["event"] == "event" for entry in read_journal(journal))


def test_any_faults_of_the_host_are_reported_and_survived(
    tmp_path: Path, library: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(56)
    table = Counter[str]()
    lines = []
    for number in range(ROUNDS):
        mode = list(MODES)[number % len(MODES)]
        changes = merged({"reconstruct": {"solver": "identity"}, "record": {}}, MODES[mode])
        folder = tmp_path / str(number)
        folder.mkdir()
        host = FaultyHost(folder, library, changes)
        with host.rig as rig:
            rig.wait_for_count("acquired", 20)
            faults = []
            for _ in range(rng.choice([1, 2])):
                fault = rng.choice([host.failing_disk, host.stepped_clock, host.killed_node])
                faults.append(fault(rng))
            before = events_of(rig)
            time.sleep(REST_S)
            acquired = next(rig.reports())["ledger.acquired"]
            rig.wait_for_count("acquired", acquired + 10)
            rig.process.send_signal(signal.SIGINT)
            status = rig.wait()
            after = events_of(rig)
            ledger = assert_accounted_for(rig.summary())
            lost = ledger["dropped"].get("not_recorded", 0) + ledger["dropped"].get("ring_full", 0)
            assert status == (StorageError.exit_status if lost else 0), rig.output
            assert "Traceback" not in rig.output, rig.output
            if mode == "triggered":
                assert after > before, "events go on"
            checked = recorded_once(rig, ledger)
        lines.append(f"{mode:<10}{'; '.join(faults):<60} lost {lost}, verified {checked}")
        table[f"{mode}: rounds"] += 1
        table[f"{mode}: snapshots verified"] += checked
        table[f"{mode}: snapshots lost and reported"] += lost
    with capsys.disabled():
        print("", *lines, *(f"{name} {count}" for name, count in sorted(table.items())), sep="\n")


def recorded_once(rig: RunningRig, ledger: dict[str, Any]) -> int:
    """See that each snapshot that the ledger has is recorded once, undamaged; return how many."""
    segments = rig.segments()
    for path in segments:
        assert verify_segment(path, lambda _done, _total: None) == []
    with RecordedSeries(min(segments, key=lambda path: len(path.stem))) as recording:
        stored = [seq for segment in recording.segments for seq in segment.video_seqs]
        assert len(stored) == len(set(stored)) == ledger["reconstructed"]
    return len(stored)
