"""Log output as text or JSON, with series and seq."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sci_stream.errors import ConfigError
from sci_stream.nodes.runtime import logs
from sci_stream.nodes.runtime.logs import JsonLines, as_line, log_for_series, set_up_logging
from tests.e2e.kit import environment, sci_stream, write_rig


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)
    log_for_series("")


def test_json_line_has_series_and_seq(capsys: pytest.CaptureFixture[str]) -> None:
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
    assert (first["level"], first["node"], first["message"]) == (
        "warning",
        "sink",
        "two\nlines of ü",
    )
    assert (first["series"], "seq" in first) == ("s1", False)
    assert (second["series"], second["seq"], second["logger"]) == ("s2", 7, "sci_stream.x")
    assert third["error"].endswith("ValueError: why")
    assert first["time"].endswith("+00:00")
    assert json.loads(as_line("run", "sink ended"))["message"] == "sink ended"
    assert as_line("run", '{"a": 1}') == '{"a": 1}', (
        "an object that a node logged is passed unchanged"
    )


def test_default_format_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("sink", verbose=False, environment={})
    logging.getLogger("sci_stream.x").warning("hello")
    assert capsys.readouterr().err.endswith("WARNING sink: hello\n")
    assert not logs.logs_json()
    assert as_line("run", "sink ended") == "sink ended"


def test_message_cannot_forge_a_line_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("sink", verbose=False, environment={})
    logging.getLogger("sci_stream.x").warning("failed\n12:00:00 ERROR   sink: \x1b[2Jforged\r\x9b")
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("WARNING sink: failed")
    assert second == "    12:00:00 ERROR   sink: ?[2Jforged??"


def test_unknown_format_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"people or json.*'xml'"):
        set_up_logging("sink", verbose=False, environment={"SCI_STREAM_LOG": "xml"})


def test_unencodable_text_does_not_end_a_node() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "m", None, None)
    record.series, record.seq = object(), 1
    assert json.loads(JsonLines("sink").format(record))["seq"] == 1


def test_json_node_writes_objects_only_with_its_error(tmp_path: Path) -> None:
    path = write_rig(tmp_path, {"calibration": {"file": "nowhere.h5"}})
    ended = sci_stream("acquire", path, cwd=tmp_path, SCI_STREAM_LOG="json")
    assert ended.status == 2
    (report,) = [json.loads(line) for line in ended.output.splitlines()]
    assert (report["level"], report["node"]) == ("error", "acquire")
    assert "nowhere.h5" in report["message"]


def test_repeated_lines_are_limited_and_counted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr(logs.time, "monotonic", lambda: now_s)
    set_up_logging("sink", verbose=False, environment={})
    log = logging.getLogger("another.library")

    def fail(n: int) -> None:
        try:
            raise ValueError(n)
        except ValueError:
            log.exception("a viewer failed: %d", n)

    for n in range(1000):
        fail(n)
    log.warning("something else")
    flooded = capsys.readouterr().err
    assert flooded.count("a viewer failed") == 20
    assert "something else" in flooded
    now_s += 10.0
    fail(1000)
    assert "a viewer failed: 1000 (and 980 more like this before)" in capsys.readouterr().err


_UNREAD = """
import logging, sys, time
from sci_stream.nodes.runtime import logs
logs._LINES_PER_S = logs._LINES_BURST = 1e9
logs.set_up_logging("sink", verbose=False)
for n in range(3000):
    logging.warning("line %d %s", n, "x" * 200)
print("done", flush=True)
sys.stdin.readline()
logging.warning("read again")
print("ended", flush=True)
"""


def test_unread_output_does_not_block_a_process() -> None:
    read_end, write_end = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", _UNREAD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=write_end,
        env=environment(),
        text=True,
    )
    os.close(write_end)
    assert process.stdout is not None
    assert process.stdin is not None
    with os.fdopen(read_end) as unread, process:
        assert process.stdout.readline() == "done\n"
        text = os.read(unread.fileno(), 1 << 20).decode()
        assert "line 0 " in text
        assert "line 2999 " not in text
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "ended\n"
        assert "texts lost: the output was not read)" in unread.read()
    assert process.returncode == 0
