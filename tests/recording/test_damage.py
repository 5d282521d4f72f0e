"""Damage by a disk or a copy is seen: no frame or row that has changed is returned as good."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner

from sci_stream.cli import app
from sci_stream.errors import FileFormatError
from sci_stream.recording.inspection import inspect_recording, verify_segment
from sci_stream.recording.layout import Compression
from sci_stream.recording.reader import Recording
from sci_stream.recording.repair import repair_recording
from sci_stream.recording.series import RecordedSeries
from sci_stream.recording.writer import RecordingWriter
from tests.series_fixtures import Series

PAGE = 512
EMPTY = np.zeros(0)


def written(path: Path, series: Series, snapshots: int = 3, **options: object) -> bytes:
    """Write a finished recording; return its bytes."""
    with RecordingWriter(path, series.info, series.calibration, **options) as writer:  # type: ignore[arg-type]
        for seq in range(snapshots):
            writer.write_reconstruction(series.reconstruction(seq))
        writer.close({"acquired": snapshots, "closed": True})
    return path.read_bytes()


def place_of(path: Path, name: str, row: int) -> int:
    """Return where the middle of a row's chunk is in the file, of a column where it begins."""
    with h5py.File(path) as file:
        ndim = file[name].ndim
        chunk = file[name].id.get_chunk_info_by_coord((row, *(0,) * (ndim - 1)))
    return int(chunk.byte_offset + (chunk.size // 2 if ndim > 1 else 0))


def flip(path: Path, at: int, bit: int = 1) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= bit
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["raw", "video", "error"])
@pytest.mark.parametrize("compression", list(Compression))
def test_flipped_bit_of_a_frame_is_refused(
    tmp_path: Path, series: Series, name: str, compression: Compression
) -> None:
    path = tmp_path / "run.h5"
    written(path, series, compression=compression, error=True)
    flip(path, place_of(path, name, 1))
    with RecordedSeries(path) as recording:
        assert np.array_equal(recording.frame_of("raw", 0), series.counts(0))
        with pytest.raises(FileFormatError, match=r"damaged|cannot be read"):
            recording.frame_of(name, 1)
        assert recording.finished, "only reading it shows the damage"
    problems = verify_segment(path, lambda _done, _total: None)
    assert [problem.split(":")[1] for problem in problems] == [f" {name} of snapshot 1"]


def test_part_of_a_damaged_frame_is_refused(tmp_path: Path, series: Series) -> None:
    path = tmp_path / "run.h5"
    written(path, series)
    flip(path, place_of(path, "video", 1))
    with RecordedSeries(path) as recording, pytest.raises(FileFormatError, match="damaged"):
        _ = recording.video[1, 2]


@pytest.mark.parametrize("column", ["state", "outcome", "iterations", "node", "raw_crc32"])
def test_flipped_bit_of_a_row_is_known_at_once(tmp_path: Path, series: Series, column: str) -> None:
    path = tmp_path / "run.h5"
    written(path, series)
    flip(path, place_of(path, f"rows/{column}", 0))
    with RecordedSeries(path) as recording:
        assert not recording.finished
        assert not recording.segments[0].clean
        with pytest.raises(FileFormatError, match=column):
            _ = recording.table
        assert np.array_equal(recording.frame_of("video", 2), series.video(2)), (
            "the frames are undamaged"
        )
    with Recording(path, by_row=True) as shown, pytest.raises(FileFormatError, match=column):
        shown.reconstruction(2)


@pytest.mark.parametrize("text", ["series_info", "rig_toml"])
def test_changed_letter_of_a_text_is_refused(tmp_path: Path, series: Series, text: str) -> None:
    path = tmp_path / "run.h5"
    written(path, series)
    with h5py.File(path) as file:
        at = file[text].id.get_offset()
    flip(path, at + 25)
    with pytest.raises(FileFormatError):
        RecordedSeries(path)


def test_changed_digit_of_the_ledger_makes_it_unknown(tmp_path: Path, series: Series) -> None:
    path = tmp_path / "run.h5"
    content = written(path, series)
    flip(path, content.index(b'"acquired": 3') + len('"acquired": '))
    with RecordedSeries(path) as recording:
        assert recording.ledger is None
        assert recording.segments[0].damage == ["the ledger cannot be read"]


def test_cut_copy_says_how_many_bytes_it_lacks(tmp_path: Path, series: Series) -> None:
    path = tmp_path / "run.h5"
    content = written(path, series)
    path.write_bytes(content[:-100])
    recording = inspect_recording(path)
    assert recording.figures["state"] == "damaged"
    assert recording.figures["segments"][0]["missing"] == 100
    printed = CliRunner().invoke(app, ["inspect", str(path)])
    assert "run.h5: 100 bytes are missing at its end" in printed.stdout
    assert isinstance(printed.exception, FileFormatError)
    with pytest.raises(FileFormatError, match="100 bytes are missing"):
        repair_recording(path)


def test_copy_cut_within_its_rows_says_how_many_it_lacks(tmp_path: Path, series: Series) -> None:
    path = tmp_path / "run.h5"
    content = written(path, series)
    path.write_bytes(content[:-8000])
    for read in (inspect_recording, repair_recording, Recording):
        with pytest.raises(FileFormatError, match="8000 bytes are missing"):
            read(path)


def test_inspect_verifies_all_and_lists_the_damage(tmp_path: Path, series: Series) -> None:
    path = tmp_path / "run.h5"
    written(path, series)
    sound = CliRunner().invoke(app, ["inspect", "--verify", str(path)])
    assert "complete, every frame verified" in sound.stdout
    flip(path, place_of(path, "raw", 2))
    assert "complete" in CliRunner().invoke(app, ["inspect", str(path)]).stdout
    printed = CliRunner().invoke(app, ["inspect", "--verify", str(path)])
    assert "DAMAGED: run.h5: raw of snapshot 2" in printed.stdout
    assert isinstance(printed.exception, FileFormatError)


def test_repaired_recording_has_its_checksums(tmp_path: Path, series: Series) -> None:
    path = tmp_path / "run.h5"
    with RecordingWriter(path, series.info, series.calibration) as writer:
        writer.write_reconstruction(series.reconstruction(0))
    assert repair_recording(path) is not None
    assert verify_segment(path, lambda _done, _total: None) == []
    flip(path, place_of(path, "raw", 0))
    with Recording(path) as recording, pytest.raises(FileFormatError, match="damaged"):
        recording.raw(0)


def test_rows_of_many_blocks_keep_their_checksums(tmp_path: Path, series: Series) -> None:
    path = tmp_path / "run.h5"
    with RecordingWriter(path, series.info, series.calibration, video=False) as writer:
        for seq in [*range(0, 12_000, 400), 3]:  # the last one in a block that has left the memory
            writer.write_raw(series.snapshot(seq))
            writer.flush()
        writer.close({"acquired": 3, "closed": True})
    with Recording(path) as recording:
        assert recording.damage == []
    flip(path, place_of(path, "rows/epoch", 512))
    with Recording(path) as recording:
        assert recording.damage == ["epoch: another checksum of 1 blocks of 512 rows"]
        assert recording.outcome(0) is None, "a row of another block"
        with pytest.raises(FileFormatError, match="epoch"):
            recording.outcome(800)


# --- a campaign


def flip_bit(content: bytearray, rng: random.Random) -> None:
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)


def change_byte(content: bytearray, rng: random.Random) -> None:
    content[rng.randrange(len(content))] ^= rng.randrange(1, 256)


def clear_page(content: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(content) // PAGE) * PAGE
    content[at : at + PAGE] = bytes(PAGE)


def swap_pages(content: bytearray, rng: random.Random) -> None:
    one, other = (page * PAGE for page in rng.sample(range(len(content) // PAGE), 2))
    there = content[other : other + PAGE]
    content[other : other + PAGE] = content[one : one + PAGE]
    content[one : one + PAGE] = there


def cut(content: bytearray, rng: random.Random) -> None:
    del content[rng.randrange(len(content)) :]


DAMAGE: list[Callable[[bytearray, random.Random], None]] = [
    flip_bit,
    change_byte,
    clear_page,
    swap_pages,
    cut,
]


def content_of(path: Path) -> dict[str, bytes]:
    """Return all that a reader gets of a recording; refused parts are marked."""
    with RecordedSeries(path) as recording:
        content = content_by_row(path) | {"ledger": repr(recording.ledger).encode()}
        for name in ("raw", "video"):
            for seq in recording.stack(name).seqs.tolist():
                try:
                    content[f"{name} {seq}"] = recording.frame_of(name, seq).tobytes()
                except FileFormatError:
                    content[f"{name} {seq}"] = b"refused"
        for segment in recording.segments:
            try:
                segment.require_rows()
            except FileFormatError:
                return content
        for name, values in recording.rows.items():
            content[name] = values.tobytes()
    return content


def content_by_row(path: Path) -> dict[str, bytes]:
    """Return all that the page gets of some snapshots; refused ones are marked."""
    content = {}
    with Recording(path, by_row=True) as recording:
        for index in range(0, recording.count("video"), 7):
            name = f"page {recording.seq_at('video', index)}"
            try:
                shown = recording.reconstruction(recording.seq_at("video", index))
                content[name] = shown.video.tobytes() + repr(replace(shown, video=EMPTY)).encode()
            except FileFormatError:
                content[name] = b"refused"
    return content


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("compression", list(Compression))
@pytest.mark.parametrize(
    ("rounds", "snapshots"), [(15, 20), pytest.param(500, 60, marks=pytest.mark.slow)]
)
def test_random_damage_is_found_and_never_returned(
    tmp_path: Path,
    series: Series,
    *,
    compression: Compression,
    rounds: int,
    snapshots: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, copy = tmp_path / "run.h5", tmp_path / "copy.h5"
    whole = written(path, series, snapshots, compression=compression)
    expected = content_of(path)
    rng = random.Random(7)
    table = Counter[str]()
    for number in range(rounds):
        damage = DAMAGE[number % len(DAMAGE)]
        content = bytearray(whole)
        damage(content, rng)
        copy.write_bytes(content)
        problems = verify_segment(copy, lambda _done, _total: None)
        try:
            given = content_of(copy)
            with RecordedSeries(copy) as recording:
                is_marked = not recording.finished
        except FileFormatError:
            given, is_marked = {}, True
        wrong = [
            name
            for name, value in given.items()
            if value not in {expected.get(name), b"refused", b"None"}
        ]
        assert not wrong, f"round {number} of {damage.__name__}: {wrong} returned as good"
        if given == expected and not problems:
            table[f"{damage.__name__}: in a place without content"] += 1
        else:
            table[f"{damage.__name__}: found"] += bool(problems) or is_marked
            table[f"{damage.__name__}: of"] += 1
    with capsys.disabled():
        print("", *(f"{name} {count}" for name, count in sorted(table.items())), sep="\n")
    for damage in DAMAGE:
        assert table[f"{damage.__name__}: found"] == table[f"{damage.__name__}: of"]
