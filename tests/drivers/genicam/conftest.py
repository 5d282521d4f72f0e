"""Node maps of real cameras, read once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.drivers.genicam.node_maps import ARCHIVE, real_cameras


@pytest.fixture(scope="session")
def real_maps(data_dir: Path) -> dict[str, Any]:
    """Return the node maps of the archive by the names of their files; skip without it."""
    if not (data_dir / ARCHIVE).is_file():
        pytest.skip(f"no {ARCHIVE} in SCI_STREAM_DATA")
    return dict(real_cameras(data_dir))
