"""A network of a user as the solver of a rig, live, and of a replay of its recording."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sci_stream.errors import ConfigError
from sci_stream.recording.series import RecordedSeries
from tests.conftest import RigMaker
from tests.e2e.kit import assert_accounted_for, sci_stream

pytestmark = pytest.mark.rig(20)

NETWORK = """\
import torch


class Mean(torch.nn.Module):
    def forward(self, y, Phi, Phi_s):
        return (y / Phi_s).unsqueeze(1) + 0.1 * (Phi - 0.5)
"""


@pytest.mark.parametrize("bayer", ["", "RGGB"])
def test_network_of_a_file_solves_live_and_in_replay(
    tmp_path: Path, rig_in_process: RigMaker, bayer: str
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(NETWORK)
    solver = {"solver": "mine.py:Mean", "iterations": None}
    rig = rig_in_process({"camera": {"options": {"bayer": bayer}}, "reconstruct": solver})
    rig.reconstruct(6)
    assert assert_accounted_for(rig.finish())["reconstructed"] == 6
    (recorded,) = rig.segments()
    with RecordedSeries(recorded) as series:
        live = series.frame_of("video", 5)
        (settings,) = series.solvers.values()
        assert settings["denoiser"] == f"{file}:Mean"
        assert len(str(settings["code_sha256"])) == 64
        assert set(series.rows["iterations"]) == {1}
    # A recording runs no code: its user names it.
    refused = sci_stream("replay", recorded, cwd=tmp_path)
    assert refused.status == ConfigError.exit_status
    assert "If you trust it: --solver" in refused.output
    named = sci_stream("replay", recorded, "--solver", f"{file}:Mean", cwd=tmp_path)
    assert named.status == 0, named.output
    with RecordedSeries(recorded.with_name(f"{recorded.stem}_replay.h5")) as series:
        np.testing.assert_allclose(series.frame_of("video", 5), live, atol=2e-3)
