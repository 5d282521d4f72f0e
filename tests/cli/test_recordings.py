"""The commands for recordings: output, and one error message with an exit status."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from sci_stream.cli import main
from sci_stream.recording.writer import RecordingWriter


@pytest.fixture
def command(monkeypatch, capsys):
    """Run a command in this process; return its status, standard output and standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["sci-stream", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "200")
        try:
            main()
            status = 0
        except SystemExit as end:
            status = int(end.code or 0)
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


@pytest.fixture
def recorded(tmp_path: Path, series) -> Path:
    with RecordingWriter(tmp_path / "run.h5", series.info, series.calibration) as writer:
        for seq in (0, 1, 4):
            writer.write_reconstruction(series.reconstruction(seq))
        ledger = {
            "acquired": 5,
            "reconstructed": 3,
            "raw_only": 0,
            "dropped": {"queue_full": 2},
            "closed": True,
        }
        writer.close(ledger)
    return tmp_path / "run.h5"


def test_inspect_of_a_folder_lists_its_recordings(command, recorded: Path) -> None:
    (recorded.parent / "broken.h5").write_bytes(b"no HDF5")
    status, words, _ = command("inspect", recorded.parent)
    assert status == 0
    assert "unreadable" in words
    _, text, _ = command("inspect", recorded.parent, "--json")
    row = next(row for row in json.loads(text) if row["file"] == "run.h5")
    assert (row["state"], row["reconstructed"], row["dropped"]) == ("complete", 3, 2)


def test_inspect_prints_text_and_json(command, recorded: Path) -> None:
    status, words, _ = command("inspect", recorded)
    assert status == 0
    assert "5 acquired = 3 reconstructed + 0 raw only + 2 dropped (queue_full): closes" in words
    status, text, _ = command("inspect", recorded, "--json")
    assert (status, json.loads(text)["stored"]["video"]) == (0, 3)


def test_export_reports_written_and_missing_snapshots(
    command, recorded: Path, tmp_path: Path
) -> None:
    status, _, said = command("export", recorded, tmp_path / "pictures", "--as", "png")
    assert status == 0
    assert "3 snapshots, 9 frames, png; 2 in between are missing from the recording" in said
    status, _, said = command("export", recorded, tmp_path / "pictures", "--as", "png")
    assert status == 3
    assert (
        "pictures exists. Choose another name, or replace it: --force, in Python replace=True."
        in said
    )
    status, _, said = command(
        "export", recorded, tmp_path / "other", "--as", "png", "--coded", "--error"
    )
    assert (status, "expected --coded or --error; got both" in said) == (2, True)
    status, _, said = command("export", recorded, tmp_path / "pictures", "--as", "jpeg2000")
    assert status == 2
    assert (
        "--as jpeg2000 is not known; expected one of mp4, mkv, ffv1, gif, tiff, zarr, npy, npz, "
        "hdf5, html, png, sheet." in said
    )


def test_repair_of_clean_recording_reports_nothing_to_do(command, recorded: Path) -> None:
    status, _, said = command("repair", recorded)
    assert status == 0
    assert "nothing to repair" in said


@pytest.mark.parametrize("name", ["inspect", "export", "repair"])
@pytest.mark.parametrize("content", [b"no HDF5 at all", b""])
def test_file_that_is_no_recording_is_one_error(
    command, tmp_path: Path, name: str, content: bytes
) -> None:
    path = tmp_path / "foreign.h5"
    path.write_bytes(content)
    more = [tmp_path / "out.mp4"] if name == "export" else []
    status, out, said = command(name, path, *more)
    assert (status, out) == (2, "")
    assert said.count("error:") == 1
    assert "foreign.h5 cannot be opened as a recording" in said


@pytest.mark.parametrize("name", ["inspect", "export", "repair"])
def test_missing_file_is_named(command, tmp_path: Path, name: str) -> None:
    path = tmp_path / "nothing.h5"
    more = [tmp_path / "out.mp4"] if name == "export" else []
    status, _, said = command(name, path, *more)
    assert status == 2
    assert "There is no recording file" in said
    assert "nothing.h5" in said
