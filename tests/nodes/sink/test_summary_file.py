"""The summary file: its folder is created again, and its content is logged if it cannot be written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sci_stream.errors import StorageError
from sci_stream.nodes.sink.node import write_summary


def test_summary_folder_that_was_removed_is_created_again(tmp_path: Path) -> None:
    path = tmp_path / "removed" / "summary.json"
    write_summary(path, {"series": "run-1"})
    write_summary(path, {"series": "run-2"})
    assert json.loads(path.read_text()) == {"series": "run-2"}
    assert list(path.parent.iterdir()) == [path]


def test_unwritable_summary_is_storage_error_with_content_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "summary.json"
    path.mkdir()
    with pytest.raises(StorageError, match=r"summary\.json cannot be written"):
        write_summary(path, {"series": "run-1"})
    assert '{"series": "run-1"}' in caplog.text
    assert list(tmp_path.iterdir()) == [path]


def test_summary_does_not_follow_a_symbolic_link(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("precious")
    (tmp_path / ".summary.json.new").symlink_to(other)
    write_summary(tmp_path / "summary.json", {"series": "run-1"})
    assert other.read_text() == "precious"
    assert "run-1" in (tmp_path / "summary.json").read_text()
