"""lab/research/gpu_day.py as far as it can be tested without a GPU."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "lab" / "research" / "gpu_day.py"


@pytest.fixture
def day() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_day", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_group(work: Path, group: str, **environment: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        str(SCRIPT),
        "run",
        group,
        "--commit",
        "c0ffee",
        "--work",
        str(work),
        "--rehearse",
    ]
    given = {**os.environ, "SCI_STREAM_DATA": "", **environment}
    return subprocess.Popen(
        command, env=given, stdout=subprocess.PIPE, text=True, start_new_session=True
    )


def archived(archive: Path) -> dict[str, str]:
    with tarfile.open(archive) as packed:
        files = ((member.name, packed.extractfile(member)) for member in packed)
        return {name: content.read().decode() for name, content in files if content is not None}


def test_groups_take_nine_minutes_at_most_and_the_first_five(day: ModuleType) -> None:
    seconds = {name: sum(step.limit_s for step in steps) for name, steps in day.GROUPS.items()}
    assert next(iter(seconds)) == "smoke"
    assert seconds["smoke"] <= 5 * 60
    assert max(seconds.values()) <= 9 * 60


def test_each_step_writes_a_file_of_its_own(day: ModuleType) -> None:
    names = [day._file(step.name) for steps in day.GROUPS.values() for step in steps]
    assert len(names) == len(set(names))


def test_terminated_group_leaves_an_archive_and_no_process(tmp_path: Path) -> None:
    """A process that went on would keep the machine of a caller that waits for the end of all
    processes.
    """
    process = run_group(tmp_path, "smoke")
    deadline_s = time.monotonic() + 120
    while not (tmp_path / "tests.log").exists():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 1
    files = archived(tmp_path / "smoke.tar.gz")
    assert json.loads(files["environment.json"])["commit"] == "c0ffee"
    steps = [json.loads(line) for line in files["steps.jsonl"].splitlines()]
    assert [(step["step"], step["status"]) for step in steps] == [
        ("environment", "done"),
        ("tests", "terminated"),
    ]
    for _ in range(200):  # a busy machine takes its time to end them
        if not (left := pids_that_mention(tmp_path)):
            break
        time.sleep(0.05)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def pids_that_mention(path: Path) -> list[int]:
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(path).encode() in file.read_bytes() and int(file.parent.name) != os.getpid():
                found.append(int(file.parent.name))
    return found


def test_step_that_takes_too_long_does_not_stop_the_others(
    day: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = [
        sys.executable,
        "-c",
        "import signal, time; signal.signal(signal.SIGINT, lambda *_: 0); time.sleep(60)",
    ]
    commands = {
        "endless": endless,
        "fails": [sys.executable, "-c", "raise SystemExit(3)"],
        "fine": ["true"],
    }
    monkeypatch.setattr(day.Day, "_command", lambda _self, step: commands[step.name])
    monkeypatch.setattr(day, "_ENDS_S", 0.5)
    steps = (
        day.Step("endless", ("part",), 1),
        day.Step("fails", ("part",), 60),
        day.Step("fine", ("part",), 60),
    )
    assert not day.Day(tmp_path, None, None, "", rehearse=False).run(
        (*steps, day.Step("data", ("part",), 60, "train"))
    )
    rows = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [row["status"] for row in rows] == ["too long", "failed (3)", "done", "skipped"]


def test_gaps_leave_out_those_between_snapshots(day: ModuleType) -> None:
    spans = [(0.0, 10.0), (5.0, 12.0), (14.0, 20.0), (5020.0, 5030.0), (5031.0, 5040.0)]
    gaps = day._gaps(spans, 2)
    assert gaps == {
        "busy_ms": pytest.approx(0.0185),
        "gaps_ms": pytest.approx(0.0015),
        "longest_gap_us": 2.0,
    }
    assert set(day._gaps([], 2).values()) == {None}


def test_report_gives_marks_from_what_was_measured(day: ModuleType, tmp_path: Path) -> None:
    def sizes(size: str, **figures: float) -> dict[str, object]:
        return {"sizes": [{"size": size, "skipped": "", "fault": "", **figures}]}

    files = {
        "speed_512x512x22": sizes("512x512x22", of_matrix_rate=0.6, iteration_ms=2.0),
        "speed_512x512x22_bayer": sizes("512x512x22:bayer", snapshots_per_s=24.0),
        "large_3840x1644x48": sizes("3840x1644x48", memory_mib=20_000.0),
        "quality_float32": {"sets": [{"psnr_db": 25.0}]},
        "quality_half": {"sets": [{"psnr_db": 24.98}]},
    }
    steps = [
        {"step": "speed", "status": "done", "seconds": 12},
        {"step": "train", "status": "failed (1)", "seconds": 30},
    ]
    texts = {f"{name}.json": json.dumps(content) for name, content in files.items()}
    texts["steps.jsonl"] = "\n".join(map(json.dumps, steps))
    with tarfile.open(tmp_path / "speed.tar.gz", "w:gz") as packed:
        for name, text in texts.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            packed.addfile(member, io.BytesIO(text.encode()))
    day.write_report(tmp_path / "report.md", [tmp_path / "speed.tar.gz"])
    lines = (tmp_path / "report.md").read_text().splitlines()
    verdicts = {
        line.split("|")[1].strip(): line.split("|")[4].strip()
        for line in lines
        if line.count("|") == 5
    }
    assert verdicts["FFDNet at 512×512×22, of the matrix rate"] == "met"
    assert verdicts["the same, second mark"] == "MISSED"
    assert verdicts["FFDNet, 512×512×22 Bayer, warm, snapshots/s"] == "MISSED"
    assert verdicts["memory at 3840×1644×48, MiB"] == "met"
    assert verdicts["quality lost in 16 bits, dB"] == "met"
    assert verdicts["launches of a warm snapshot"] == "not measured"
    assert "| train | failed (1) | 30 |" in lines


@pytest.mark.slow
@pytest.mark.parametrize("group", ["smoke", "fused", "speed", "large", "network"])
def test_rehearsal_on_a_cpu_ends_with_an_archive(
    group: str, tmp_path: Path, day: ModuleType
) -> None:
    process = run_group(tmp_path, group)
    said, _ = process.communicate(timeout=1800)
    assert process.returncode == 0, said
    day.write_report(tmp_path / "report.md", [tmp_path / f"{group}.tar.gz"])
    assert all(
        f"| {step.name} | done |" in (tmp_path / "report.md").read_text()
        for step in day.GROUPS[group]
    )
