"""The producer of the genicam wheel, and cameras that are closed after each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sci_stream_drivers.harvesters import HarvestersCamera, HarvestersOptions
from tests.drivers.harvesters.kit import wheel_options, wheel_producer

MakeHarvestersCamera = Callable[..., HarvestersCamera]


@pytest.fixture
def producer() -> Path:
    return wheel_producer()


@pytest.fixture
def make(producer: Path) -> Iterator[MakeHarvestersCamera]:
    """Return a function that makes a camera of the wheel's producer with changed options."""
    made: list[HarvestersCamera] = []

    def camera(**changed: Any) -> HarvestersCamera:
        made.append(
            HarvestersCamera(HarvestersOptions.model_validate(wheel_options(producer, **changed)))
        )
        return made[-1]

    yield camera
    for each in made:
        each.close()
