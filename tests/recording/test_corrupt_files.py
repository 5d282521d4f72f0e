"""Recordings killed in the middle of a flush contain no snapshot that counts as done but is
incomplete.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import h5py
import numpy as np
import pytest

from sci_stream.recording.layout import RowState
from sci_stream.recording.reader import Recording
from sci_stream.recording.segments import existing_segments
from sci_stream.recording.writer import RecordingWriter

FIRST, SECOND = (0, 2, 3), (1, 4, 5, 6, 70, 600)
"""Snapshots of two batches. The second has a late one and continues where the datasets, and then a
block, end."""


def deliver(writer: RecordingWriter, series, seqs: Iterable[int], *, raw_first: bool) -> None:
    """Write snapshots as nodes deliver them: raw counts first or with the video; every third is not
    reconstructed.
    """
    for seq in seqs:
        if raw_first:
            writer.write_raw(series.snapshot(seq))
        if seq % 3 == 2:
            writer.write_outcome(seq, "dropped", "queue_full")
        else:
            counts = None if raw_first else series.counts(seq)
            writer.write_reconstruction(series.reconstruction(seq, counts=counts))


def contents_while(
    doing: Callable[[], None], path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[bytes]:
    """Return the contents of a file at each change during a flush, as a kill could leave them."""
    contents = [path.read_bytes()]

    def look() -> None:
        if (content := path.read_bytes()) != contents[-1]:
            contents.append(content)

    def looked_at(method: Callable[..., None]) -> Callable[..., None]:
        def watched(*arguments: object) -> None:
            look()
            method(*arguments)
            look()

        return watched

    with monkeypatch.context() as patch:
        for name in ("flush", "resize"):
            patch.setattr(h5py.Dataset, name, looked_at(getattr(h5py.Dataset, name)))
        doing()
    return contents


@pytest.mark.parametrize(
    ("raw", "video", "raw_first"),
    [
        pytest.param(True, True, True, id="record"),
        pytest.param(True, True, False, id="live", marks=pytest.mark.slow),
        pytest.param(True, False, False, id="live, no video", marks=pytest.mark.slow),
        pytest.param(False, True, False, id="live, no raw", marks=pytest.mark.slow),
        pytest.param(False, False, False, id="rows alone", marks=pytest.mark.slow),
    ],
)
def test_torn_flush_loses_nothing_after_redelivery(
    tmp_path: Path,
    series,
    monkeypatch: pytest.MonkeyPatch,
    *,
    raw: bool,
    video: bool,
    raw_first: bool,
) -> None:
    live = RecordingWriter(
        tmp_path / "live.h5", series.info, series.calibration, raw=raw, video=video
    )
    deliver(live, series, FIRST, raw_first=raw_first)
    live.flush()
    deliver(live, series, SECOND, raw_first=raw_first)
    contents = contents_while(live.flush, live.path, monkeypatch)
    live.close()
    assert len(contents) > 60, "each column grows and is written by itself"

    found = set[bytes]()
    for cut, content in enumerate(contents):
        path = tmp_path / f"cut-{cut}.h5"
        path.write_bytes(content)
        with Recording(path) as torn:
            assert set(torn.settled_seqs) >= set(FIRST)
            for seq in torn.settled_seqs:
                assert_whole(torn, seq, has_video=video)
            result = b"".join(torn.rows[name].tobytes() for name in ("state", "outcome"))
        if result in found:
            continue
        # A new writer: unconfirmed snapshots are redelivered, and confirmed ones may be.
        found.add(result)
        with RecordingWriter(path, series.info, series.calibration, raw=raw, video=video) as after:
            deliver(after, series, sorted({*FIRST, *SECOND}), raw_first=raw_first)
        assert_all_there_once(path, series, raw=raw, video=video)
    assert len(found) > 1


def test_outcome_without_stored_video_is_ignored(tmp_path: Path, series) -> None:
    path = tmp_path / "run.h5"
    with RecordingWriter(path, series.info, series.calibration) as writer:
        writer.write_reconstruction(series.reconstruction(0))
        writer.write_reconstruction(series.reconstruction(1))
    with h5py.File(
        path, "r+"
    ) as file:  # as a kill left it while outcomes were written before states
        file["rows/state"][1] = RowState.RAW
        file["rows/start"][1] = 0
        del file["rows_crc32"]  # of then, too
    with Recording(path) as torn:
        assert (torn.settled_seqs, torn.video_seqs, torn.raw_seqs) == ([0], [0], [0, 1])
        assert torn.outcome(1) is None
    with RecordingWriter(path, series.info, series.calibration) as after:
        assert not after.write_reconstruction(series.reconstruction(0))
        assert after.write_reconstruction(series.reconstruction(1))
    with Recording(after.path) as recording:
        assert (recording.video_seqs, recording.raw_seqs) == ([1], [])


def assert_whole(recording: Recording, seq: int, *, has_video: bool) -> None:
    """Assert that every snapshot with an outcome is complete."""
    outcome, reason = recording.outcome(seq) or ("", "")
    assert outcome == ("dropped" if seq % 3 == 2 else "reconstructed")
    assert reason == ("queue_full" if outcome == "dropped" else "")
    if outcome == "reconstructed":
        report, node, redelivered = recording.report(seq)
        assert (report.iterations, report.psnr_db, node, redelivered) == (
            12,
            31.5,
            "reconstruct-0",
            1,
        )
        assert (seq in recording.video_seqs) == has_video


def assert_all_there_once(path: Path, series, *, raw: bool, video: bool) -> None:
    """Assert that across all segments each snapshot has one outcome and is stored once."""
    outcomes, raws, videos = Counter[int](), Counter[int](), Counter[int]()
    for segment in existing_segments(path):
        with Recording(segment) as recording:
            outcomes.update(recording.settled_seqs)
            raws.update(recording.raw_seqs)
            videos.update(recording.video_seqs)
            assert all(
                np.array_equal(recording.raw(seq), series.counts(seq)) for seq in recording.raw_seqs
            )
            assert all(
                np.array_equal(recording.video(seq), series.video(seq))
                for seq in recording.video_seqs
            )
    seqs = {*FIRST, *SECOND}
    reconstructed = {seq for seq in seqs if seq % 3 != 2}
    assert outcomes == Counter(seqs)
    assert videos == Counter(reconstructed if video else ())
    assert raws.keys() >= (reconstructed if raw else set())
    assert set(raws.values()) <= {1}
