"""Lines for people, or for programs: keyed by series and seq, and nothing else on the stream."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from sci_stream.errors import ConfigError
from sci_stream.nodes.runtime import logs
from sci_stream.nodes.runtime.logs import JsonLines, as_line, log_for_series, set_up_logging
from tests.e2e.kit import sci_stream, write_rig


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)
    log_for_series("")


def test_a_line_for_programs_is_an_object_with_series_and_seq(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("sink", verbose=False, environment={"SCI_STREAM_LOG": "json"})
    log = logging.getLogger("sci_stream.x")
    log_for_series("s1")
    log.warning("two\nlines of %s", "ü")
    log.error("this one", extra={"series": "s2", "seq": 7})
    try:
        raise ValueError("why")
    except ValueError:
        log.exception("it failed")
    first, second, third = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (first["level"], first["node"], first["message"]) == ("warning", "sink", "two\nlines of ü")
    assert (first["series"], "seq" in first) == ("s1", False)
    assert (second["series"], second["seq"], second["logger"]) == ("s2", 7, "sci_stream.x")
    assert third["error"].endswith("ValueError: why")
    assert first["time"].endswith("+00:00")
    assert json.loads(as_line("run", "sink ended"))["message"] == "sink ended"
    assert as_line("run", '{"a": 1}') == '{"a": 1}', "what a node has put into an object stays as it is"


def test_lines_are_for_people_unless_asked(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("sink", verbose=False, environment={})
    logging.getLogger("sci_stream.x").warning("hello")
    assert capsys.readouterr().err.endswith("WARNING sink: hello\n")
    assert not logs.logs_json()
    assert as_line("run", "sink ended") == "sink ended"


def test_another_format_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"people or json.*'xml'"):
        set_up_logging("sink", verbose=False, environment={"SCI_STREAM_LOG": "xml"})


def test_what_cannot_be_written_does_not_end_a_node() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "m", None, None)
    record.series, record.seq = object(), 1
    assert json.loads(JsonLines("sink").format(record))["seq"] == 1


def test_a_node_says_only_objects_and_why_it_ended(tmp_path: Path) -> None:
    path = write_rig(tmp_path, {"calibration": {"file": "nowhere.h5"}})
    ended = sci_stream("acquire", path, cwd=tmp_path, SCI_STREAM_LOG="json")
    assert ended.status == 2
    (report,) = [json.loads(line) for line in ended.output.splitlines()]
    assert (report["level"], report["node"]) == ("error", "acquire")
    assert "nowhere.h5" in report["message"]
