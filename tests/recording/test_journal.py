"""The journal keeps every complete line after a crash."""

from __future__ import annotations

import errno
import json
import resource
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sci_stream.errors import StorageError
from sci_stream.recording.journal import Journal
from tests.journals import read_journal


def test_events_round_trip_in_order(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / "j.jsonl")) as journal:
        journal.append("outcome", {"seq": 3, "reason": "overrun"})
        journal.append("series_ended", {"ledger": {"acquired": 4}})
    first, second = read_journal(tmp_path / "j.jsonl")
    assert (first["event"], first["seq"], first["reason"]) == ("outcome", 3, "overrun")
    assert second["ledger"] == {"acquired": 4}
    assert first["time_ns"] <= second["time_ns"]


def test_nothing_is_written_before_sync(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / "j.jsonl")) as journal:
        journal.append("outcome")
        assert read_journal(tmp_path / "j.jsonl") == []
        journal.sync()
        assert len(read_journal(tmp_path / "j.jsonl")) == 1


@given(cut=st.integers(1, 200))
def test_truncated_journal_loses_only_truncated_lines(tmp_path_factory, cut: int) -> None:
    path = tmp_path_factory.mktemp("j") / "j.jsonl"
    with closing(Journal(path)) as journal:
        for seq in range(20):
            journal.append("outcome", {"seq": seq})
    path.write_bytes(path.read_bytes()[:-cut])
    whole = len(read_journal(path))
    with closing(Journal(path)) as journal:
        journal.append("resumed")
    events = read_journal(path)
    assert [event["seq"] for event in events[:-1]] == list(range(whole))
    assert events[-1]["event"] == "resumed"


def test_batch_that_a_full_disk_cut_is_written_whole_later(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / "j.jsonl")) as journal:
        journal.append("first")
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
        with pytest.raises(StorageError, match="10 of"):
            journal.sync()
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    (line,) = (tmp_path / "j.jsonl").read_text().splitlines()
    assert json.loads(line)["event"] == "first"


def test_lost_disk_is_an_error_of_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Journal(tmp_path / "j.jsonl")) as journal, monkeypatch.context() as lost:
        journal.append("first")
        lost.setattr(
            journal, "_file", SimpleNamespace(seek=Mock(side_effect=OSError(errno.ESTALE, "stale")))
        )
        with pytest.raises(StorageError, match="stale"):
            journal.sync()


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="nowhere"):
        Journal(tmp_path / "nowhere" / "j.jsonl")


def test_journal_does_not_follow_a_symbolic_link(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("precious")
    (tmp_path / "run.journal.jsonl").symlink_to(other)
    with pytest.raises(StorageError, match="cannot be opened"):
        Journal(tmp_path / "run.journal.jsonl")
    assert other.read_text() == "precious"
