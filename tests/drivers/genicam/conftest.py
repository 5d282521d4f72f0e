"""Node maps of real cameras, read once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drivers.genicam.node_maps import ARCHIVE, RealCameras


@pytest.fixture(scope="session")
def real_maps(data_dir: Path) -> RealCameras:
    """Return the node maps of the archive by the names of their files; skip without it."""
    if not (data_dir / ARCHIVE).is_file():
        pytest.skip(f"no {ARCHIVE} in SCI_STREAM_DATA")
    return RealCameras(data_dir)
