"""The device that tests of the backend pretend to have."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.recon.backend.pretended_cuda import PretendedCuda, pretended_cuda


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendedCuda]:
    """A GPU that counts launches, copies and waits; see `pretended_cuda`."""
    with pretended_cuda(monkeypatch) as device:
        yield device
