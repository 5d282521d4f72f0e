"""Recordings on the live page: pictures, playback, and replays with more iterations."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from sci_stream.config import PreviewSection, ReconstructSection
from sci_stream.devices.solver import describe_solver, make_prior
from sci_stream.errors import EnvironmentFault, InputError
from sci_stream.recording.reader import Recording
from sci_stream.recording.writer import RecordingWriter
from sci_stream.tools.replay.replay import replay_recording
from sci_stream.web.downloads import OpenedFile
from sci_stream.web.preview import WebPreview
from sci_stream.web.recordings import Recordings
from sci_stream.web.replays import Replays
from sci_stream.web.slots import Slots
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
        "pid": listing["replay"]["pid"],
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


LONG_ROWS = 10_000_000
MAX_MIB = 100


def test_long_recording_is_shown_in_bounded_memory(tmp_path: Path, recorded: Series) -> None:
    with RecordingWriter(tmp_path / "long.h5", recorded.info, recorded.calibration) as writer:
        writer.write_reconstruction(recorded.reconstruction(0))
        writer.close()
    with h5py.File(tmp_path / "long.h5", "r+") as file:
        for column in file["rows"].values():
            column.resize(LONG_ROWS, 0)
    recordings = Recordings(tmp_path, lambda: "")
    tracemalloc.start()
    try:
        (entry,) = recordings.entries()
        shown, total = recordings.snapshot("long.h5", 0)
        thumbnail = recordings.thumbnail("long.h5")
        peak_mib = tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()
    assert (entry.state, total) == ("unfinished", 1)
    assert np.array_equal(shown.video, recorded.video(0))
    assert decode_jpeg(thumbnail).shape == (16, 24, 3)
    assert peak_mib < MAX_MIB


def test_link_is_neither_listed_nor_sent(
    preview: WebPreview, folder: Path, tmp_path: Path, recorded: Series
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of this user")
    for name, target in (("film.mp4", secret), ("again.h5", folder / "run.h5")):
        (folder / name).symlink_to(target)
        listing = plain_http.get(f"{preview.url}recordings").json()["recordings"]
        assert name not in [entry["name"] for entry in listing]
        for address in (name, f"{name}/0", f"{name}/thumbnail"):
            answer = plain_http.get(f"{preview.url}recordings/{address}")
            assert (answer.status_code, "There is no recording" in answer.text) == (400, True)
        (folder / name).unlink()


def test_link_that_takes_the_name_is_not_sent(tmp_path: Path) -> None:
    (tmp_path / "film.mp4").write_bytes(b"film")
    path = Recordings(tmp_path, lambda: "").path_of("film.mp4")
    path.unlink()
    path.symlink_to(Path(__file__))
    with pytest.raises(InputError, match="cannot be sent"):
        OpenedFile(path)


def test_large_snapshots_are_refused(
    tmp_path: Path, recorded: Series, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sci_stream.web.recordings._MAX_SNAPSHOT_BYTES", 100)
    with RecordingWriter(tmp_path / "run.h5", recorded.info, recorded.calibration) as writer:
        writer.write_reconstruction(recorded.reconstruction(0))
    recordings = Recordings(tmp_path, lambda: "")
    for show in (lambda: recordings.snapshot("run.h5", 0), lambda: recordings.thumbnail("run.h5")):
        with pytest.raises(InputError, match="too large for the page"):
            show()


def test_deleted_recording_leaves_no_open_file(preview: WebPreview, folder: Path) -> None:
    copy = folder / "copy.h5"
    shutil.copyfile(folder / "run.h5", copy)
    assert plain_http.get(f"{preview.url}recordings/copy.h5/0").status_code == 200
    copy.unlink()
    open_files = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert not [path for path in open_files if "copy.h5" in str(path)]
    assert plain_http.get(f"{preview.url}recordings/copy.h5/0").status_code == 400


def test_code_of_a_network_is_refined_only_from_the_rig_file(
    folder: Path, recorded: Series, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def net(y, Phi, Phi_s):\n    return (y / Phi_s)[:, None].expand_as(Phi)\n")
    name = f"{file}:net"
    section = ReconstructSection(solver=name)
    network, settings = make_prior(section, torch.device("cpu"))
    used = {"ab": describe_solver(section, network.name, settings)}
    info = replace(recorded.info, rig_toml=f'[reconstruct]\nsolver = "{name}"\n')
    shown = recorded.reconstruction(1)
    for trusted in ("tv", name):
        replays = Replays(Recordings(folder, lambda: ""), lambda: used, 0, trusted)
        replays.series_started(info, recorded.calibration)
        if trusted == name:
            assert replays.refine(shown, 2).report.iterations == 1
        else:
            with pytest.raises(EnvironmentFault, match="If you trust it: --solver"):
                replays.refine(shown, 2)
        replays.close()


def test_replay_without_room_fails_and_writes_nothing(folder: Path) -> None:
    replays = Replays(Recordings(folder, lambda: ""), dict, floor_bytes=1 << 60)
    replays.start("run.h5", 7)
    deadline = time.monotonic() + WAIT_S
    while replays.state()["running"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert "its disk is nearly full" in str(replays.state()["error"])
    assert not (folder / "run_replay7.h5").exists()
    replays.close()


_KILLED_SINK = """
import os, signal, sys
from pathlib import Path
from sci_stream.web.recordings import Recordings
from sci_stream.web.replays import Replays
folder = Path(sys.argv[1])
replays = Replays(Recordings(folder, lambda: ""), dict, 0)
replays.start("run.h5", 199)
print(replays.state()["pid"], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_replay_ends_with_a_killed_sink(folder: Path) -> None:
    sink = subprocess.run(
        [sys.executable, "-c", _KILLED_SINK, str(folder)],
        check=False,
        capture_output=True,
        text=True,
    )
    replay = Path("/proc") / sink.stdout.strip()
    deadline = time.monotonic() + WAIT_S
    while replay.exists() and "Z" not in (replay / "stat").read_text().split()[2]:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_requests_beyond_the_waiting_ones_are_refused() -> None:
    release = threading.Event()

    async def ask() -> list[object]:
        slots = Slots(1, max_waiting=3)
        asked = [asyncio.create_task(slots.run(release.wait)) for _ in range(4)]
        await asyncio.sleep(0)
        with pytest.raises(EnvironmentFault, match="too many requests"):
            await slots.run(release.wait)
        release.set()
        return await asyncio.gather(*asked)

    assert asyncio.run(ask()) == [True] * 4


def test_stopped_replay_names_no_error_and_leaves_none_running(preview: WebPreview) -> None:
    asked = {"recording": "run.h5", "iterations": 200}
    assert plain_http.post(f"{preview.url}control/replay", json=asked).json()["ok"]
    assert plain_http.post(f"{preview.url}control/replay", json={}).json()["ok"]
    state = plain_http.get(f"{preview.url}recordings").json()["replay"]
    assert (state["running"], state["error"]) == (False, "")


def _ask(page: str, body: dict[str, str]) -> object:
    content = json.dumps(body).encode()
    return plain_http.post(
        page, content=content, headers={"Content-Type": "application/json"}
    ).json()


def _note(folder: Path) -> str:
    entries = Recordings(folder, lambda: "").entries()
    return next(entry.note for entry in entries if entry.name == "run.h5")


def test_note_is_kept_beside_its_recording(preview: WebPreview, folder: Path) -> None:
    page = f"{preview.url}control/note"
    body = {"recording": "run.h5", "note": "drop of milk, 24 °C"}
    assert _ask(page, body) == {"ok": True}
    assert (folder / "run.h5.note.txt").read_text(encoding="utf-8") == "drop of milk, 24 °C"
    assert _note(folder) == "drop of milk, 24 °C"
    _ask(page, {**body, "note": ""})
    assert not (folder / "run.h5.note.txt").exists()


def test_note_of_a_link_is_not_shown(folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("secret", encoding="utf-8")
    link = folder / "run.h5.note.txt"
    link.symlink_to(secret)
    assert _note(folder) == ""
    Recordings(folder, lambda: "").write_note("run.h5", "mine")
    assert secret.read_text(encoding="utf-8") == "secret"
    link.unlink()
