"""Fixtures of the bridges."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

import pytest
import torch

from sci_stream.security.keys import make_key_pair
from tests.conftest import one_thread, rig_in_process
from tests.ports import free_endpoint
from tests.series_fixtures import series
from tests.tools.replay_kit import recordings, sleeping

__all__ = ["one_thread", "recordings", "rig_in_process", "series", "sleeping", "taps"]


def _declare_operators_of_torchvision() -> None:
    """Let deepinv import torchvision where PyPI's, built for CUDA, stands beside torch's CPU build.

    Its operators for boxes are then missing; no denoiser uses them.
    """
    if torch.version.cuda is not None or importlib.util.find_spec("torchvision") is None:
        return
    if "+" not in importlib.metadata.version("torchvision"):
        for name in ("nms", "qnms"):
            torch.library.define(
                f"torchvision::{name}", "(Tensor dets, Tensor scores, float threshold) -> Tensor"
            )


_declare_operators_of_torchvision()


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """Return the key of a host."""
    make_key_pair(tmp_path / "key")
    return tmp_path / "key"


@pytest.fixture
def taps() -> str:
    """Return an endpoint that is free."""
    return free_endpoint()
