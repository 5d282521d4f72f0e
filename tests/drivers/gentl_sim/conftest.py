"""A camera on the bench, open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("harvesters", reason="harvesters is not installed: pip install sci-stream[genicam]")

from tests.drivers.gentl_sim.bench import Bench, camera


@pytest.fixture
def bench(gentl_producer: Path) -> Iterator[Bench]:
    with camera(gentl_producer) as opened:
        yield opened
