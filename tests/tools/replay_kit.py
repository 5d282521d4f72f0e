"""Small recordings to replay, and a denoiser that takes its time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import sci_stream
from sci_stream.cli import main
from sci_stream.model import Policy, SeriesInfo, Snapshot, SnapshotId
from sci_stream.optics.calibration import Calibration
from sci_stream.recording.series import RecordedSeries
from sci_stream.recording.writer import RecordingWriter

B, H, W, N = 3, 24, 32, 3
PATIENCE_S = 150.0

RIG = '[reconstruct]\ndenoiser = "tv"\niterations = 3\n'

# A denoiser that takes time, and that ends its process for frames that are brighter than 0.9 in the
# mean.
SLEEPING = """
import os, time

class Sleeping:
    def __init__(self, device):
        self.seconds = float(os.environ.get("TEST_SLEEP_S", "0"))

    def __call__(self, x, sigma):
        time.sleep(self.seconds)
        if x[:, 0, 0].max() > 3:
            os._exit(1)
        mean = x.mean((1, 2), keepdim=True)
        return mean + (x - mean) / (1 + sigma)
"""


def differences(first: Path, second: Path) -> dict[int, float]:
    """Return the largest difference of the video of each snapshot that both recordings have, 0–1
    scale.
    """
    with RecordedSeries(first) as a, RecordedSeries(second) as b:
        common = np.intersect1d(a.video.seqs, b.video.seqs).tolist()
        return {
            seq: float(
                np.abs(a.frame_of("video", seq).astype("f4") - b.frame_of("video", seq)).max()
            )
            for seq in common
        }


def record(path: Path, seed: int, *, deadly: bool = False, rig: str = RIG) -> Path:
    random = np.random.default_rng(seed)
    masks = (random.random((B, H, W)) < 0.5).astype(np.float32)
    masks[0, 0, 0] = 1
    calibration = Calibration(masks, full_scale_dn=500.0, bit_depth=12)
    info = SeriesInfo(
        path.stem,
        10**9,
        "rig",
        Policy.RECORD,
        "simulated",
        "1",
        H,
        W,
        "Mono12",
        12,
        B,
        calibration.hash,
        rig_toml=rig,
    )
    with RecordingWriter(path, info, calibration, video=False) as writer:
        for seq in range(N):
            x = random.random((B, 1, 1)) * np.linspace(0.2, 1, W)
            counts = 500 * (masks * x).sum(0)
            counts[0, 0] = 4095 if deadly else counts[0, 0]
            name = SnapshotId(path.stem, 0, seq)
            writer.write_raw(
                Snapshot(name, counts.astype(np.uint16), calibration.hash, B, 10**9 + seq)
            )
            writer.write_outcome(seq, "raw_only")
        writer.close({"acquired": N, "closed": True})
    return path


def video(path: Path) -> np.ndarray:
    with sci_stream.open(path) as recording:
        assert recording.parent is not None
        assert recording.finished
        return np.asarray(recording.video)


@pytest.fixture
def recordings(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "shelf"
    folder.mkdir()
    return [record(folder / f"run{seed:03d}.h5", seed) for seed in range(4)]


@pytest.fixture
def sleeping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Install the sleeping denoiser for this process and its children; return its name."""
    (tmp_path / "sleeping_denoiser.py").write_text(SLEEPING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    yield "sleeping_denoiser:Sleeping"
    sys.modules.pop("sleeping_denoiser", None)


def run(monkeypatch, capsys, *arguments: object) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["sci-stream", *map(str, arguments)])
    try:
        main()
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    said = capsys.readouterr()
    return status, said.out, said.err
