"""The worked changes of CONTRIBUTING.md hold: each is made in a copy, and its tests pass."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.rig(seconds=40)

ROOT = Path(__file__).parents[1]
COPIED = ("sci_stream", "drivers", "testing", "tests", "docs", "pyproject.toml")
CHANGES = re.findall(
    r"^### (.+?)$.*?^```diff\n(.*?)^```",
    (ROOT / "CONTRIBUTING.md").read_text("utf-8"),
    re.MULTILINE | re.DOTALL,
)
NEW_FILE = "+++ "


def apply(change: str, tree: Path) -> list[str]:
    """Make a change in a tree; return the names of its files."""
    names = []
    for part in change.split(NEW_FILE)[1:]:
        name, _, body = part.partition("\n")
        names.append(name)
        lines = body.splitlines()
        path = tree / name
        if all(line.startswith("+") for line in lines):
            assert not path.exists()
            path.write_text("".join(f"{line[1:]}\n" for line in lines), "utf-8")
        else:
            text = path.read_text("utf-8")
            path.write_text("".join(f"{line}\n" for line in changed(text, lines)), "utf-8")
    return names


def changed(text: str, change: list[str]) -> list[str]:
    """Return the lines of a text with new lines beside the lines that are there."""
    lines = text.splitlines()
    place = 0
    waiting: list[str] = []
    for line in change:
        if line.startswith("+"):
            waiting.append(line[1:])
            continue
        here = lines.index(line[1:], place)
        lines[place:place] = waiting if place else []
        here += len(waiting) if place else 0
        if not place:
            lines[here:here] = waiting
            here += len(waiting)
        waiting = []
        place = here + 1
    lines[place:place] = waiting
    return lines


def run(tree: Path, *arguments: str) -> str:
    folders = (tree, tree / "drivers", tree / "testing")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=tree,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in COPIED:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "images", ".*")
            shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def make_change(title: str, tree: Path, *, files: int) -> None:
    change = dict(CHANGES)[title]
    assert len(apply(change, tree)) == files


def test_denoiser_takes_two_files_and_passes_its_suite(tree: Path) -> None:
    make_change("A denoiser", tree, files=2)
    said = run(
        tree, "-m", "pytest", "-n", "0", "-v", "tests/recon/denoisers/test_denoiser_contract.py"
    )
    assert re.search(r"test_noise_is_reduced\[box\] PASSED", said)


def test_reported_number_takes_two_files_and_a_table(tree: Path) -> None:
    make_change("A number that a solve reports", tree, files=2)
    run(tree, "-m", "tests.test_quantities")
    assert "`light`" in (tree / "docs" / "quantities.md").read_text("utf-8")
    run(tree, "-m", "pytest", "-n", "0", "-q", "tests/test_quantities.py", "tests/wire")
    program = (
        "from sci_stream.quantities import page_texts; from sci_stream.reports import SolveReport; "
        "print([text['label'] for text in page_texts(SolveReport)])"
    )
    assert "'light'" in run(tree, "-c", program)


def test_camera_option_takes_two_files(tree: Path) -> None:
    make_change("An option of a camera", tree, files=2)
    tests = ("tests/drivers/test_simulated_options.py", "tests/drivers/test_simulated_sensor.py")
    run(tree, "-m", "pytest", "-n", "0", "-q", *tests)
    program = (
        "import numpy as np\n"
        "from sci_stream_drivers.simulated.options import SimulatedOptions\n"
        "from sci_stream_drivers.simulated.sensor import Sensor\n"
        "dark = np.zeros((2, 2), np.float32)\n"
        "for current in (0.0, 9.0):\n"
        "    options = SimulatedOptions(dark_current_dn=current, noise=False)\n"
        "    print(Sensor(options, np.ones((1, 2, 2), np.float32)).convert(dark, 0).max())\n"
    )
    before, after = map(int, run(tree, "-c", program).split())
    assert after - before == 9
