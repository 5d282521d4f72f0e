"""The laboratory's denoisers and commands are found by the entry points of the
installed package.
"""

from __future__ import annotations

import pytest
import torch
from typer.testing import CliRunner

from sci_stream.cli import app
from sci_stream.recon.denoisers.registry import make_denoiser
from sci_stream.recon.settings import default_settings
from sci_stream_lab.paper.patch_groups import PatchGroupDenoiser
from sci_stream_testing.denoisers import DenoiserContract


class TestSlowDenoisers(DenoiserContract):
    @pytest.fixture(autouse=True, params=["wnnm", "vbm4d"])
    def _chosen(self, request: pytest.FixtureRequest) -> None:
        self.name: str = request.param

    def make(self, device: torch.device) -> PatchGroupDenoiser:
        denoiser = make_denoiser(self.name, device)
        assert isinstance(denoiser, PatchGroupDenoiser), (
            "it sees whole videos: nothing is put around it"
        )
        assert denoiser.name == self.name
        return denoiser


def test_slow_denoiser_brings_its_settings() -> None:
    settings = default_settings(torch.device("cpu"), "wnnm")
    assert (settings.iterations, settings.sigma_first, settings.sigma_last) == (
        48,
        50 / 255,
        6 / 255,
    )
    assert (settings.relaxation, settings.along_time, settings.linear_start) == (1.5, False, True)


@pytest.mark.parametrize("name", ["bench", "train", "weights"])
def test_laboratory_commands_are_installed(name: str) -> None:
    assert CliRunner().invoke(app, [name, "--help"]).exit_code == 0
