"""The summary file: its folder is created again, and its content is logged if it cannot
be written.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sci_stream.config import load_rig
from sci_stream.delivery.ledger import Ledger
from sci_stream.errors import StorageError
from sci_stream.nodes.runtime.process import PARENT_VARIABLE, StopRequest
from sci_stream.nodes.sink.ledger_file import LedgerFile, SavedLedger
from sci_stream.nodes.sink.node import SinkNode, write_summary
from tests.e2e.kit import write_rig


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


@pytest.mark.parametrize("closed", [True, False])
def test_restarted_sink_keeps_the_account_of_a_closed_series(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    monkeypatch.setenv(PARENT_VARIABLE, "1")
    rig = load_rig(write_rig(tmp_path, {"policy": {"spool": str(tmp_path)}}))
    LedgerFile.of(rig).write(SavedLedger("run-1", recording=True, ledger=Ledger().state()))
    account = {
        "series": "run-1",
        "ended": "finished",
        "ledger": {"closed": closed},
        "frame_faults": {},
        "recording": {},
    }
    write_summary(tmp_path / "summary.json", {**account, "earlier": []})
    sink = SinkNode(rig, StopRequest(), summary=tmp_path / "summary.json")
    sink._close()
    assert (sink._accounts["run-1"] == account) is closed
