"""The replay camera: published files played through a whole rig;
`test_run.py` plays a recording.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import scipy.io

from sci_stream.recording.reader import Recording
from tests.conftest import RigMaker
from tests.e2e.kit import ROOT, assert_accounted_for, camera_of, sci_stream
from tests.ports import free_ports

pytestmark = pytest.mark.rig


def test_replay_camera_plays_published_file_with_truth(
    tmp_path: Path, rig_in_process: RigMaker
) -> None:
    path = tmp_path / "moving_cacti.mat"
    scipy.io.savemat(path, moving_squares(shots=3))
    rig = rig_in_process({"camera": camera_of("replay", path=path.name)})
    rig.nodes["acquire"].join()
    summary = rig.finish()
    ledger = assert_accounted_for(summary)
    assert ledger["acquired"] == ledger["reconstructed"] == 3
    assert summary["shape"] == [4, 64, 64]
    assert summary["psnr_db"]["min"] > 18.0
    with rig.recordings() as (recording,):
        assert recording.video_seqs == [0, 1, 2]


def moving_squares(shots: int) -> dict[str, np.ndarray]:
    """Return ``meas``, ``mask`` and ``orig`` of moving bright squares, in the published layout."""
    B, size = 4, 64
    rng = np.random.default_rng(0)
    mask = (rng.random((size, size, B)) < 0.5).astype(np.float64)
    orig = np.full((size, size, B * shots), 40.0)
    for frame in range(B * shots):
        orig[20:40, 5 + frame : 25 + frame, frame] = 220.0
    meas = np.stack([(mask * orig[:, :, B * k : B * (k + 1)]).sum(2) for k in range(shots)], axis=2)
    return {"meas": meas, "mask": mask, "orig": orig}


# --- published data


def published_rig(folder: Path, data_dir: Path) -> tuple[Path, dict[str, str]]:
    """Copy the shipped rig for published files next to one of them; return it and free ports."""
    path = folder / "replay-published.toml"
    shutil.copy(ROOT / "deploy" / "rigs" / path.name, path)
    (folder / "traffic48_cacti.mat").symlink_to(
        (data_dir / "benchmark" / "traffic48_cacti.mat").resolve()
    )
    dispatch, results, taps = free_ports(3)
    return path, {
        "SCI_STREAM_RIG__NETWORK__DISPATCH": f"tcp://127.0.0.1:{dispatch}",
        "SCI_STREAM_RIG__NETWORK__RESULTS": f"tcp://127.0.0.1:{results}",
        "SCI_STREAM_RIG__NETWORK__TAPS": f"tcp://127.0.0.1:{taps}",
        "SCI_STREAM_RIG__PREVIEW__PORT": "0",
        "SCI_STREAM_RIG__HEALTH__ENABLED": "false",
        "SCI_STREAM_RIG__RECORD__MIN_FREE_MIB": "0",
        "SCI_STREAM_RIG__CAMERA__OPTIONS__SNAPSHOT_RATE_HZ": "0",
    }


def run_published(
    folder: Path, data_dir: Path, timeout_s: float, shots: int, **variables: str
) -> float:
    """Run it on the first shots; return the mean PSNR."""
    path, own = published_rig(folder, data_dir)
    own["SCI_STREAM_RIG__CAMERA__OPTIONS__STOP"] = str(shots)
    ended = sci_stream(
        "run", path, "--summary", "out.json", cwd=folder, timeout_s=timeout_s, **own, **variables
    )
    assert ended.status == 0, ended.output
    summary = json.loads((folder / "out.json").read_text())
    assert assert_accounted_for(summary)["reconstructed"] == shots
    (recorded,) = (folder / "recordings").glob("*.h5")
    with Recording(recorded) as recording:
        assert recording.video_seqs == list(range(shots))
    return float(summary["psnr_db"]["mean"])


def test_first_shots_of_traffic_with_tv_reach_expected_psnr(
    data_dir: Path, rig_in_process: RigMaker
) -> None:
    published = data_dir / "benchmark" / "traffic48_cacti.mat"
    camera = camera_of("replay", path=str(published), snapshot_rate_hz=0.0)
    changes = {"camera": camera, "reconstruct": {"iterations": None}}
    rig = rig_in_process(changes, snapshots=2)
    rig.nodes["acquire"].join()
    summary = rig.finish()
    assert assert_accounted_for(summary)["reconstructed"] == 2
    assert 21.4 <= summary["psnr_db"]["mean"] <= 22.9


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_traffic_with_published_ffdnet_exceeds_23_5_db(tmp_path: Path, data_dir: Path) -> None:
    weights = data_dir / "weights" / "kair_ffdnet_gray.pth"
    variables = {
        "SCI_STREAM_RIG__RECONSTRUCT__WEIGHTS": str(weights),
        "OMP_NUM_THREADS": str(os.cpu_count()),  # all cores, because it is slow
    }
    assert run_published(tmp_path, data_dir, 840.0, 6, **variables) >= 23.5
