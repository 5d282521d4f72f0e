"""The supervisor restarts a killed acquire node if its series is unfinished."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from sci_stream.config import load_rig
from sci_stream.errors import LedgerError
from sci_stream.nodes.launcher import supervisor as supervisor_module
from sci_stream.nodes.launcher.supervisor import EXIT_NODE_FAILED, Supervisor
from sci_stream.nodes.runtime.process import StopRequest
from sci_stream.nodes.runtime.runtime_folder import RunFolder
from tests.e2e.kit import PATIENCE_S, wait_for, write_rig

pytestmark = pytest.mark.rig

STAND_IN = """
import os, pathlib, signal, sys, time
kind, starts = sys.argv[1], pathlib.Path({starts!r})
if kind == "acquire":
    with starts.open("a") as file:
        file.write("x")
    spool = pathlib.Path(os.environ["SCI_STREAM_SPOOL"])
    if len(starts.read_text()) == 1:
        for name in {leaves!r}:
            (spool / name).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    (spool / "test.spool").unlink(missing_ok=True)
else:
    time.sleep(60)
"""


def starts_of_acquire(folder: Path, *leaves: str, status: int = 0) -> tuple[int, str]:
    """Supervise nodes of which the acquire node is killed at first, leaving files; return its
    starts and the output.

    The nodes are substitutes, real processes: the moment at which the real one is killed could not
    be chosen.
    """
    path = write_rig(folder)
    program = folder / "stand_in.py"
    program.write_text(STAND_IN.format(starts=str(folder / "starts"), leaves=leaves))
    said: list[str] = []
    supervisor = Supervisor(
        load_rig(path, overrides={}),
        path,
        StopRequest(),
        said.append,
        program=(sys.executable, str(program)),
    )
    assert supervisor.run() == status
    return len((folder / "starts").read_text()), "\n".join(said)


def test_series_that_cannot_be_resumed_is_kept_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{RunFolder.__module__}.MEMORY", tmp_path)
    _, output = starts_of_acquire(
        tmp_path, "test-17.aside", "test.ledger", status=LedgerError.exit_status
    )
    (place,) = [line.split("kept in ")[1] for line in output.splitlines() if "kept in" in line]
    assert sorted(file.name for file in Path(place).iterdir()) == ["test-17.aside", "test.ledger"]


DRAINING = """
import os, pathlib, signal, sys, time
kind, folder = sys.argv[1], pathlib.Path({folder!r})
def wait_for(name):
    while not (folder / name).exists():
        time.sleep(0.02)
def drain(*_):
    (folder / "draining").touch()
    wait_for("started again")
    sys.exit(0)
if kind == "acquire":
    signal.signal(signal.SIGTERM, drain)
    (folder / "running").touch()
elif "--index" in sys.argv and sys.argv[-1] == "0":
    if (folder / "started").exists():
        (folder / "started again").touch()
    else:
        (folder / "started").touch()
        wait_for("draining")
        os.kill(os.getpid(), signal.SIGKILL)
time.sleep(60)
"""


def test_node_killed_while_the_series_ends_is_restarted(tmp_path: Path) -> None:
    path = write_rig(tmp_path, {"reconstruct": {"nodes": 2}})
    program = tmp_path / "draining.py"
    program.write_text(DRAINING.format(folder=str(tmp_path)))
    said: list[str] = []
    stop = StopRequest()
    rig = load_rig(path, overrides={})
    supervisor = Supervisor(rig, path, stop, said.append, program=(sys.executable, str(program)))
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    wait_for((tmp_path / "running").exists, "the acquire node runs")
    wait_for((tmp_path / "started").exists, "the node that is to be killed runs")
    stop.set()
    thread.join(PATIENCE_S)
    assert (tmp_path / "started again").exists()
    assert any("reconstruct-0 ended by SIGKILL: restarting" in line for line in said)


PROGRESSING = """
import os, pathlib, signal, sys, time
spool = pathlib.Path(os.environ["SCI_STREAM_SPOOL"]) / "test.spool"
def drain(*_):
    for _ in range(55):
        spool.touch()
        time.sleep(0.1)
    spool.unlink()
    sys.exit(0)
if sys.argv[1] == "acquire":
    signal.signal(signal.SIGTERM, drain)
    spool.touch()
    pathlib.Path({running!r}).touch()
time.sleep(60)
"""


def test_series_ending_slowly_has_time_while_it_makes_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "_GRACE_S", 4.0)
    path = write_rig(tmp_path, {"drain": {"timeout_s": 0.1}})
    program, running = tmp_path / "progressing.py", tmp_path / "running"
    program.write_text(PROGRESSING.format(running=str(running)))
    stop = StopRequest()
    rig = load_rig(path, overrides={})
    supervisor = Supervisor(
        rig, path, stop, lambda _line: None, program=(sys.executable, str(program))
    )
    threading.Thread(
        target=lambda: (wait_for(running.exists, "the acquire node runs"), stop.set())
    ).start()
    assert supervisor.run() == 0


def test_folder_of_a_killed_run_is_named_or_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{RunFolder.__module__}.MEMORY", tmp_path)
    empty, undelivered, running = (RunFolder.in_memory() for _ in range(3))
    for killed in (empty, undelivered):
        os.close(killed._number)  # as the kernel does when the process is killed
    (undelivered.path / "test.spool").mkdir()
    (undelivered.path / "test.spool" / "7").write_bytes(bytes(3 << 20))
    starts, said = starts_of_acquire(tmp_path, "done")
    assert starts == 1
    assert not empty.path.exists()
    assert running.path.exists()
    assert f"left undelivered snapshots in {undelivered.path} (3 MiB of memory)" in said
    assert (undelivered.path / "test.spool").exists()


def test_deleted_run_folder_is_restored_for_restarted_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{RunFolder.__module__}.MEMORY", tmp_path)
    program = tmp_path / "deletes.py"
    program.write_text(DELETES.format(folder=str(tmp_path)))
    path = write_rig(tmp_path)
    supervisor = Supervisor(
        load_rig(path, overrides={}),
        path,
        StopRequest(),
        print,
        program=(sys.executable, str(program)),
    )
    assert supervisor.run() == 0
    assert (tmp_path / "restored").exists()


DELETES = """
import os, pathlib, shutil, sys, time
kind, folder = sys.argv[1], pathlib.Path({folder!r})
sockets = pathlib.Path(os.environ["SCI_STREAM_LOCAL_SOCKETS"])
if kind == "sink":
    if not (folder / "deleted").exists():
        shutil.rmtree(sockets)
        (folder / "deleted").touch()
        sys.exit(1)
    if sockets.is_dir():
        (folder / "restored").touch()
    time.sleep(60)
while not (folder / "restored").exists():
    time.sleep(0.05)
sys.exit(0) if kind == "acquire" else time.sleep(60)
"""


CRASHES = """
import os, signal, sys, time
if sys.argv[1] == "reconstruct":
    os.kill(os.getpid(), signal.{signal})
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("number", "most"), [("SIGSEGV", "_MAX_CRASHES"), ("SIGKILL", "_MAX_KILLS")]
)
def test_node_that_only_crashes_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: str, most: str
) -> None:
    # Backoff and start together take longer than a minute for the limit: it counts crashes in a
    # row.
    monkeypatch.setattr(f"{Supervisor.__module__}.{most}", 3)
    monkeypatch.setattr(f"{Supervisor.__module__}._BACKOFF_FIRST_S", 0.01)
    path = write_rig(tmp_path)
    program = tmp_path / "crashes.py"
    program.write_text(CRASHES.format(signal=number))
    said: list[str] = []
    supervisor = Supervisor(
        load_rig(path, overrides={}),
        path,
        StopRequest(),
        said.append,
        program=(sys.executable, str(program)),
    )
    assert supervisor.run() == EXIT_NODE_FAILED
    assert "reconstruct-0 crashed 4 times in a row: stopping" in said
    assert sum("restarting" in line for line in said) == 3


FAILS = """
import pathlib, signal, sys, time
kind, up = sys.argv[1], pathlib.Path({up!r})
if kind == "sink":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit({status}))
    up.touch()
    time.sleep(0.0 if {at_start} else 60.0)
    sys.exit({status})
while not up.exists():
    time.sleep(0.02)
time.sleep(60.0 if {at_start} or kind != "acquire" else 0.0)
"""


@pytest.mark.parametrize(
    ("status", "at_start"),
    [(2, True), (3, True), (3, False)],
    ids=["bad input", "missing", "missing at the end"],
)
def test_failed_node_ends_the_run_with_its_status(
    tmp_path: Path, status: int, at_start: bool
) -> None:
    path = write_rig(tmp_path)
    program = tmp_path / "fails.py"
    program.write_text(FAILS.format(up=str(tmp_path / "up"), status=status, at_start=at_start))
    said: list[str] = []
    supervisor = Supervisor(
        load_rig(path, overrides={}),
        path,
        StopRequest(),
        said.append,
        program=(sys.executable, str(program)),
    )
    assert supervisor.run() == status
    assert (f"sink cannot run (exit status {status}): stopping" in said) == at_start
    assert not [line for line in said if "restarting" in line], "another would fail in the same way"


@pytest.mark.parametrize(
    "leaves",
    [(), ("test.spool",), ("done", "test.spool")],
    ids=["nothing yet", "a series", "a series just closed"],
)
def test_killed_acquire_node_is_restarted_to_resume(
    tmp_path: Path, leaves: tuple[str, ...]
) -> None:
    starts, said = starts_of_acquire(tmp_path, *leaves)
    assert starts == 2
    assert f"acquire ended by {signal.SIGKILL.name}: restarting" in said


def test_killed_acquire_node_is_not_restarted_after_last_series(tmp_path: Path) -> None:
    starts, said = starts_of_acquire(tmp_path, "done")
    assert starts == 1, "it would acquire an unrequested series"
    assert "restarting" not in said
