"""Fixtures for all tests; others are in `tests/series_fixtures.py`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = ["tests.series_fixtures"]

# Deterministic, and without a deadline: a shared machine is slow at times, which is not a failure.
settings.register_profile("default", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("default")


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
    """Compute on one thread: more wait for each other on busy cores, and older releases of torch round differently."""
    import torch  # noqa: PLC0415 - the tests that run without torch read this file too

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
