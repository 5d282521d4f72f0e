"""Build the producer once, and open its camera on a bench."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sci_stream_gentl_sim.build import build

pytest.importorskip(
    "harvesters", reason="harvesters is not installed: pip install 'sci-stream[genicam]'"
)

from drivers.gentl_sim.tests.bench import Bench, camera

BUILT = Path(__file__).parents[3] / "build" / "gentl"
SIM_VARIABLE = "SCI_STREAM_GENTL_SIM"
"""Names the producer where it was built before; else the tests build it."""


@pytest.fixture(scope="session")
def gentl_producer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the producer's .cti.

    Its cameras are this test run's own: no other run on this machine finds them in use. With
    SCI_GENTL_SIM_SANITIZE set it is built with sanitizers (drivers/gentl_sim/README.md says how to
    run them).
    """
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SCI_GENTL_SIM_LOCKS", str(tmp_path_factory.mktemp("locks")))
        environment.delenv("SCI_GENTL_SIM_FRAMES", raising=False)
        environment.delenv("SCI_GENTL_SIM_DEVICES", raising=False)
        if os.environ.get(SIM_VARIABLE):
            yield Path(os.environ[SIM_VARIABLE])
            return
        BUILT.mkdir(parents=True, exist_ok=True)
        with (BUILT / ".lock").open("w") as lock:
            # The compiler takes all of a core for seconds: once for all test processes.
            fcntl.flock(lock, fcntl.LOCK_EX)
            producer = build(BUILT, sanitize=bool(os.environ.get("SCI_GENTL_SIM_SANITIZE")))
        yield producer


@pytest.fixture
def own_gentl_producer(gentl_producer: Path, tmp_path: Path) -> Path:
    """Return a copy of the producer, which the loader takes for another library: its cameras begin
    as new.

    The state of a simulated camera, such as how often it was unplugged, lasts as long as its
    producer is loaded, which is until the end of the test run.
    """
    return Path(shutil.copy(gentl_producer, tmp_path / "own.cti"))


@pytest.fixture
def bench(gentl_producer: Path) -> Iterator[Bench]:
    """Return a camera that Harvesters alone opened."""
    with camera(gentl_producer) as opened:
        yield opened
