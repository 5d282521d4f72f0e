"""The wheel, installed in an environment of its own, runs the demo wherever it is started."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.e2e.kit import PATIENCE_S, ROOT, environment


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Build the wheel and return the commands of an environment that holds it; dependencies are
    those of the tests.
    """
    pytest.importorskip("hatchling", reason="hatchling is not installed: pip install hatchling")
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        str(ROOT),
    ]
    subprocess.run([*build, "--wheel-dir", str(tmp_path)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    place = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(place / "bin" / "python"),
        "install",
        "--quiet",
        "--no-deps",
    ]
    subprocess.run([*install, str(wheel)], check=True)
    (packages,) = (place / "lib").glob("python*/site-packages")
    # A path file of a path file is not read: this checkout, installed for the tests, is not in the
    # environment.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return place / "bin"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_wheel_runs_demo_in_folder_with_modules_of_same_names(
    installed: Path, tmp_path: Path
) -> None:
    lab = tmp_path / "lab"
    for module in ("numpy.py", "drivers/__init__.py", "sci_stream_drivers/__init__.py"):
        path = lab / module
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("raise SystemExit('imported from the working directory')\n")
    clean = {
        name: value
        for name, value in environment(TMPDIR=str(tmp_path)).items()
        if name != "PYTHONPATH"
    }
    where = [installed / "python", "-P", "-c", "import sci_stream; print(sci_stream.__file__)"]
    found = subprocess.run(where, cwd=lab, env=clean, capture_output=True, text=True, check=True)
    assert Path(found.stdout.strip()).is_relative_to(installed.parent), "it is the installed wheel"
    demo = [installed / "sci-stream", "demo", "--snapshots", "3", "--no-browser", "--size", "64"]
    done = subprocess.run(
        [*demo, "--summary", "out.json"], cwd=lab, env=clean, capture_output=True, text=True,
        timeout=5 * PATIENCE_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "working directory" not in done.stdout + done.stderr
    assert json.loads((lab / "out.json").read_text())["ledger"]["closed"]
    assert list((lab / "recordings").iterdir())
