"""lab/research/gpu_day.sh as far as it can be tested without a GPU."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from sci_stream_lab.training.checkpoint import save_checkpoint

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "lab" / "research" / "gpu_day.sh"


@pytest.fixture
def parts() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_day", ROOT / "lab" / "research" / "gpu_day.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_script_is_valid_and_explains_itself() -> None:
    subprocess.run(["sh", "-n", str(SCRIPT)], check=True)
    text = subprocess.run(["sh", str(SCRIPT), "--help"], check=True, capture_output=True, text=True).stdout
    assert "--rehearse" in text
    wrong = subprocess.run(["sh", str(SCRIPT), "--nonsense"], check=False, capture_output=True, text=True)
    assert wrong.returncode == 2
    assert "unknown option --nonsense" in wrong.stderr


def test_nothing_of_a_piece_outlives_the_script(tmp_path: Path) -> None:
    """A process that slept on would keep the machine of a caller that waits for the end of all processes."""
    command = ["sh", str(SCRIPT), "--rehearse", "--out", str(tmp_path), "absent", "unknown"]
    script = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert script.wait(60) == 1
    for _ in range(1200):  # a busy machine takes its time to end them
        if not pids_of_group(script.pid):
            break
        time.sleep(0.05)
    left = pids_of_group(script.pid)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def pids_of_group(group: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, pgrp = stat.read_text().rpartition(")")[2].split()[:3]
            if int(pgrp) == group and state != "Z":
                found.append(int(stat.parent.name))
    return found


def test_pieces_take_under_nine_minutes_each_and_forty_in_all(tmp_path: Path) -> None:
    text = SCRIPT.read_text()
    (pieces,) = [line.split(":-")[1].rstrip("}").split() for line in text.splitlines() if line.startswith("pieces=${")]
    limit = text[text.index("limit() {") : text.index("\npiece() {")]
    program = f"{limit}\nfor piece in {' '.join(pieces)}; do limit $piece; done"
    seconds = [int(line) for line in subprocess.check_output(["sh", "-c", program], text=True).split()]
    assert len(seconds) == len(pieces)
    assert max(seconds) <= 9 * 60
    assert sum(seconds) <= 40 * 60
    named = [f"train_video_{n}" for n in range(1, 5)]
    program = f"{limit}\nfor piece in {' '.join(named)}; do limit $piece; done"
    seconds = [int(line) for line in subprocess.check_output(["sh", "-c", program], text=True).split()]
    assert max(seconds) <= 9 * 60
    assert sum(seconds) <= 40 * 60


def test_video_run_is_planned_at_the_pace_of_its_last_session(parts: ModuleType, tmp_path: Path) -> None:
    machine = {"device": "NVIDIA H100", "torch": "2.9.0"}
    sessions = [{**machine, "steps": 9000, "minutes": 8.0}, {**machine, "steps": 4000, "minutes": 8.0}]
    entries = {"settings": {}, "data_id": "", "n_images": 0, "steps": None, "elapsed_s": 960.0, "begun_with": ""}
    save_checkpoint(tmp_path, {**entries, "learner": {}, "sessions": sessions})
    parts.write_video_steps(tmp_path, tmp_path / "video_steps")
    assert 13_000 + 7000 <= int((tmp_path / "video_steps").read_text()) < 13_000 + 8000


def test_report_gives_marks_from_what_was_measured(parts: ModuleType, tmp_path: Path) -> None:
    def row(size: str, **figures: float) -> dict[str, object]:
        return {"size": size, "skipped": "", "fault": "", **figures}

    sizes = [
        row("512x512x22", of_matrix_rate=0.6, iteration_ms=2.0),
        row("512x512x22:bayer", snapshots_per_s=24.0),
    ]
    (tmp_path / "speed.json").write_text(json.dumps({"sizes": sizes}))
    (tmp_path / "large.json").write_text(json.dumps({"sizes": [row("3840x1644x48", memory_mib=20_000.0)]}))
    for precision, quality in (("float32", 25.0), ("half", 24.98)):
        (tmp_path / f"quality_{precision}.json").write_text(json.dumps({"sets": [{"psnr_db": quality}]}))
    (tmp_path / "pieces.txt").write_text("speed 0 12\ntrain 1 30\n")
    parts.write_report(tmp_path, tmp_path / "report.md")
    lines = (tmp_path / "report.md").read_text().splitlines()
    verdicts = {line.split("|")[1].strip(): line.split("|")[4].strip() for line in lines if line.count("|") == 5}
    assert verdicts["FFDNet at 512×512×22, of the matrix rate"] == "met"
    assert verdicts["the same, second mark"] == "MISSED"
    assert verdicts["FFDNet, 512×512×22 Bayer, warm, snapshots/s"] == "MISSED"
    assert verdicts["memory at 3840×1644×48, MiB"] == "met"
    assert verdicts["quality lost in 16 bits, dB"] == "met"
    assert verdicts["launches of a warm snapshot"] == "not measured"
    assert "| train | failed (1) | 30 |" in lines


@pytest.mark.slow
def test_rehearsal_on_a_cpu_ends_with_a_report(tmp_path: Path) -> None:
    """Without data: what needs them is skipped with a message."""
    environment = {**os.environ, "PYTHON": sys.executable, "SCI_STREAM_DATA": ""}
    command = ["sh", str(SCRIPT), "--rehearse", "--out", str(tmp_path)]
    run = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=1800)
    assert run.returncode == 0, run.stdout + run.stderr
    report = (tmp_path / "report.md").read_text()
    assert "| speed | 32x32x4 |" in report
    again = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=600)
    assert "speed: done before" in again.stdout
