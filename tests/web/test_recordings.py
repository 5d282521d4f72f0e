"""Recordings on the live page: pictures, playback, and replays with more iterations."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sci_stream.config import PreviewSection
from sci_stream.recording.reader import Recording
from sci_stream.recording.writer import RecordingWriter
from sci_stream.tools.replay.replay import replay_recording
from sci_stream.web.preview import WebPreview
from tests import plain_http
from tests.page_messages import decode_jpeg, split_message
from tests.series_fixtures import Series, make_series

pytestmark = pytest.mark.rig(seconds=15)

RIG = '[reconstruct]\ndenoiser = "tv"\niterations = 2\n'
WAIT_S = 120.0


@pytest.fixture(scope="module")
def recorded() -> Series:
    series = make_series()
    return Series(replace(series.info, rig_toml=RIG, chunks={"beads": ""}), series.calibration)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, recorded: Series) -> Path:
    folder = tmp_path_factory.mktemp("recordings")
    with RecordingWriter(
        folder / "run.h5", recorded.info, recorded.calibration, picture=True, error=True
    ) as writer:
        for seq in range(3):
            drawn = np.full((*recorded.calibration.shape, 3), 50 * seq, np.uint8)
            writer.write_reconstruction(
                recorded.reconstruction(seq, picture=drawn, chunks={"beads": 4 + seq})
            )
        writer.close({"acquired": 3, "closed": True})
    return folder


@pytest.fixture(scope="module")
def preview(folder: Path, recorded: Series) -> Iterator[WebPreview]:
    preview = WebPreview(PreviewSection(port=0), folder)
    preview.start()
    preview.series_started(recorded.info, recorded.calibration)
    yield preview
    preview.close()


def test_recorded_snapshot_is_shown_with_its_values(preview: WebPreview, recorded: Series) -> None:
    answer = plain_http.get(f"{preview.url}recordings/run.h5/2")
    header, parts = split_message(answer.content)
    assert (header["series"], header["seq"], header["recorded"]) == (
        "run.h5",
        2,
        {"index": 2, "total": 3},
    )
    assert len(parts) == recorded.info.n_frames + 2
    assert abs(float(decode_jpeg(parts[-1]).mean()) - 100) < 1, "the picture of an analysis"
    assert header["chunks"] == {"beads": 6.0}
    region = {
        "series": "run.h5",
        "seq": 2,
        "frame": 1,
        "x": 4,
        "y": 2,
        "width": 3,
        "height": 2,
        "pixels": 1,
    }
    values = plain_http.get(f"{preview.url}values", params=region).json()["pixels"]
    assert np.allclose(values["video"], recorded.video(2)[1, 2:4, 4:7], atol=1e-4)
    assert values["counts"] == recorded.counts(2)[2:4, 4:7].tolist()
    beyond = plain_http.get(f"{preview.url}recordings/run.h5/3")
    assert (beyond.status_code, "expected 0 to 2" in beyond.text) == (400, True)


def test_recording_has_a_thumbnail_also_without_video(
    preview: WebPreview, folder: Path, recorded: Series
) -> None:
    with RecordingWriter(folder / "raw.h5", recorded.info, recorded.calibration) as writer:
        writer.write_raw(recorded.snapshot(0))
    for name in ("run.h5", "raw.h5"):
        thumbnail = plain_http.get(f"{preview.url}recordings/{name}/thumbnail")
        assert thumbnail.headers["content-type"] == "image/jpeg"
        assert decode_jpeg(thumbnail.content).shape == (16, 24, 3)


def test_refined_snapshot_is_that_of_a_replay(
    preview: WebPreview, recorded: Series, tmp_path: Path
) -> None:
    drawn = np.full((*recorded.calibration.shape, 3), 50, np.uint8)
    preview.display.keep(recorded.reconstruction(1, picture=drawn, chunks={"beads": 5}))
    answer = plain_http.get(
        f"{preview.url}refined", params={"series": "run-1", "seq": 1, "iterations": 9}
    )
    assert answer.status_code == 200, answer.text
    header, _ = split_message(answer.content)
    assert (header["series"], header["seq"], header["iterations"]) == ("run-1 refined", 1, 9)
    assert (header["chunks"], header["drawn"]) == ({"beads": 5.0}, True)
    with RecordingWriter(
        tmp_path / "one.h5", recorded.info, recorded.calibration, first_seq=1
    ) as writer:
        writer.write_reconstruction(recorded.reconstruction(1))
        writer.close({"acquired": 1, "closed": True})
    done = replay_recording(tmp_path / "one.h5", iterations=9)
    with Recording(done.path) as replayed:
        refined = preview.display.find_shown("run-1 refined", 1).video
        # Equal but for the rounding to float16: sums depend on where memory lies.
        np.testing.assert_allclose(refined, replayed.video(1), rtol=2e-3, atol=2e-3)
    other = plain_http.get(f"{preview.url}refined", params={"series": "run.h5", "seq": 2})
    assert (other.status_code, "cannot be refined" in other.text) == (400, True)


def test_recording_is_replayed_beside_the_rig(preview: WebPreview, folder: Path) -> None:
    asked = {"recording": "run.h5", "iterations": 4}
    assert (
        plain_http.post(f"{preview.url}control/replay", json=asked).json()["text"]
        == "run_replay4.h5"
    )
    again = plain_http.post(f"{preview.url}control/replay", json={**asked, "iterations": 5})
    assert (again.status_code, "is being replayed" in again.text) == (503, True)
    deadline = time.monotonic() + WAIT_S
    while (listing := plain_http.get(f"{preview.url}recordings").json())["replay"]["running"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert listing["replay"] == {
        "source": "run.h5",
        "out": "run_replay4.h5",
        "running": False,
        "error": "",
    }
    entry = next(entry for entry in listing["recordings"] if entry["name"] == "run_replay4.h5")
    assert (entry["state"], entry["parent"], entry["ledger"]["reconstructed"]) == (
        "clean",
        "run.h5",
        3,
    )
    with Recording(folder / "run_replay4.h5") as replayed:
        assert set(replayed.rows["iterations"]) == {4}
        assert [
            int(replayed.frame("picture", seq).max()) for seq in replayed.seqs_with("picture")
        ] == [0, 50, 100]
        assert replayed.seqs_with("error") == [0, 1, 2]
    exists = plain_http.post(f"{preview.url}control/replay", json=asked)
    assert (exists.status_code, "run_replay4.h5 exists" in exists.text) == (400, True)


def test_stopped_replay_names_no_error_and_leaves_none_running(preview: WebPreview) -> None:
    asked = {"recording": "run.h5", "iterations": 200}
    assert plain_http.post(f"{preview.url}control/replay", json=asked).json()["ok"]
    assert plain_http.post(f"{preview.url}control/replay", json={}).json()["ok"]
    state = plain_http.get(f"{preview.url}recordings").json()["replay"]
    assert (state["running"], state["error"]) == (False, "")
