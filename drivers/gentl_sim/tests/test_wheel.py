"""The wheel contains the Python that builds the producer, and the sources that it builds."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from sci_stream_gentl_sim.build import SOURCES

PROJECT = Path(__file__).parents[1]


def test_wheel_contains_every_source_of_the_producer(tmp_path: Path) -> None:
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        str(PROJECT),
    ]
    subprocess.run([*build, "--wheel-dir", str(tmp_path)], check=True)
    (wheel,) = tmp_path.glob("sci_stream_gentl_sim-*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info" not in name}
    sources = {f"sci_stream_gentl_sim/producer/{path.name}" for path in SOURCES.iterdir()}
    assert len(sources) > 20
    assert sources <= packed
    assert {Path(name).suffix for name in packed} == {".py", ".cpp", ".h"}
