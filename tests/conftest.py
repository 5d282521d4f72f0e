"""Fixtures for all tests; others are in `tests/series_fixtures.py`."""

from __future__ import annotations

import atexit
import contextlib
import gc
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tests.rig_in_process import RigInProcess

RigMaker = Callable[..., "RigInProcess"]

pytest_plugins = ["tests.series_fixtures"]

# As in `sci_stream.__main__`: the search for garbage among all objects of torch takes half of a
# worker's start.
gc.set_threshold(50_000)
atexit.register(gc.freeze)

# Deterministic, and without a deadline: a shared machine is slow at times, which is not a failure.
settings.register_profile("default", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("default")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start files of long rigs first, so that no process is left with one of them at the end."""

    def seconds(item: pytest.Item) -> float:
        mark = item.get_closest_marker("rig")
        return 0.0 if mark is None else float(mark.kwargs.get("seconds", 0.0))

    items.sort(key=seconds, reverse=True)


@pytest.fixture(autouse=True)
def without_handlers_of_commands() -> Iterator[None]:
    """Remove the log handlers of commands that ran in this process: they write to a closed standard
    error.
    """
    yield
    root = logging.getLogger()
    root.handlers[:] = [
        handler for handler in root.handlers if type(handler) is not logging.StreamHandler
    ]


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Return the folder of published data named by SCI_STREAM_DATA; skip where it is absent."""
    default = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("SCI_STREAM_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"published data not found: {folder} (set SCI_STREAM_DATA)")
    return folder


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Compute on one thread: more wait for each other on busy cores, and older releases of torch
    round differently.
    """
    import torch  # noqa: PLC0415 - the tests that run without torch read this file too

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def rig_in_process(tmp_path: Path) -> Iterator[RigMaker]:
    """Return a function that starts a `RigInProcess` in the folder of the test, and stop each at
    its end.
    """
    from tests.rig_in_process import RigInProcess  # noqa: PLC0415 - torch, as above

    with contextlib.ExitStack() as started:
        yield lambda changes=None, **options: started.enter_context(
            RigInProcess(tmp_path, changes, **options)
        )
