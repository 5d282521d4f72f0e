"""Comparison of solvers on one measurement: figures, page and figure for a paper."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from typer.testing import CliRunner

import sci_stream_lab
from sci_stream.errors import InputError, StorageError
from sci_stream_lab.bench.quality.solvers import SolverComparison
from sci_stream_lab.cli.compare import compare_app

B, SIDE = 4, 32
NETWORK = "def net(y, Phi, Phi_s):\n    return (y / Phi_s)[:, None].expand_as(Phi)\n"


def scene() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return snapshots, masks and truth of two shots of moving waves."""
    rng = np.random.default_rng(0)
    masks = (rng.random((B, SIDE, SIDE)) < 0.5).astype(np.float32)
    rows, columns = np.mgrid[:SIDE, :SIDE]
    frames = [0.5 + 0.3 * np.sin((columns - b) / 5) * np.cos(rows / 7) for b in range(2 * B)]
    truth = np.stack(frames).astype(np.float32)
    y = (masks * truth.reshape(2, B, SIDE, SIDE)).sum(1)
    return y, masks, truth


@pytest.fixture(scope="module")
def compared() -> SolverComparison:
    y, masks, truth = scene()

    def still(y, Phi, Phi_s):
        return (y / Phi_s)[:, None].expand_as(Phi)

    options = {"white": 1.0, "device": "cpu", "check_masks": False}
    return sci_stream_lab.compare(y, masks, ["tv", still], truth=truth, **options)


def test_figures_of_each_solver_are_those_of_its_video(compared: SolverComparison) -> None:
    truth = scene()[2]
    tv, still = compared.results
    assert (tv.name, still.name) == ("tv", "still")
    for one in compared.results:
        assert one.video.shape == truth.shape
        error = np.square(one.video - truth).reshape(len(truth), -1).mean(1)
        assert one.psnr_db == pytest.approx(float(np.mean(-10 * np.log10(error))), abs=1e-3)
    assert tv.psnr_db > still.psnr_db
    assert tv.ssim > still.ssim
    assert still.residual < 1e-3


def test_first_snapshots_are_compared_alone() -> None:
    y, masks, truth = scene()
    one = sci_stream_lab.compare(y, masks, ["identity"], truth=truth, first=1, device="cpu")
    assert len(one.results[0].video) == len(one.truth) == B


def test_page_and_figures_are_written_side_by_side(
    compared: SolverComparison, tmp_path: Path
) -> None:
    written = compared.save(tmp_path / "c.html")
    assert [path.name for path in written] == ["c.html", "c.png", "c.pdf"]
    page = written[0].read_text()
    for one in compared.results:
        assert one.caption in page
    assert "http" not in page
    assert written[1].read_bytes().startswith(b"\x89PNG")
    assert written[2].read_bytes().startswith(b"%PDF")
    with pytest.raises(StorageError, match="exists"):
        compared.save(tmp_path / "c.png")
    with pytest.raises(InputError, match="unknown suffix"):
        compared.save(tmp_path / "c.mp4")


def test_command_compares_solvers_of_a_measurement(tmp_path: Path) -> None:
    y, masks, truth = scene()
    arrays = {"meas": y.transpose(1, 2, 0), "mask": masks.transpose(1, 2, 0)}
    arrays["orig"] = 255 * truth.transpose(1, 2, 0)
    arrays["meas"] = 255 * arrays["meas"]
    scipy.io.savemat(tmp_path / "y.mat", arrays)
    (tmp_path / "mine.py").write_text(NETWORK)
    solvers = f"identity,{tmp_path / 'mine.py'}:net"
    said = CliRunner().invoke(
        compare_app, [str(tmp_path / "y.mat"), "--solver", solvers, "--device", "cpu", "--json"]
    )
    assert said.exit_code == 0, said.output
    figures = json.loads(said.stdout)
    assert [one["solver"] for one in figures["solvers"]] == ["identity", "mine.py:net"]
    assert all(one["psnr_db"] > 10 for one in figures["solvers"])


def test_command_with_nothing_to_compare_says_so(tmp_path: Path) -> None:
    said = CliRunner().invoke(compare_app, [str(tmp_path / "y.mat")])
    assert isinstance(said.exception, InputError)
