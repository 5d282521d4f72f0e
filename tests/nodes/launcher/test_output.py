"""The output of nodes in the log of a run: complete for records, bounded for plug-ins."""

from __future__ import annotations

import io

from sci_stream.nodes.launcher.output import MAX_LINE, bounded_lines

RECORD = "12:00:00 WARNING reconstruct-0: the analysis beads failed"


def test_records_and_their_tracebacks_are_complete() -> None:
    text = f"{RECORD}\n    Traceback\n    ValueError\nplain words\n"
    assert list(bounded_lines(io.StringIO(text))) == text.splitlines()


def test_long_line_is_cut() -> None:
    (line,) = bounded_lines(io.StringIO("x" * 100_000 + "\n"))
    assert line.startswith("x" * MAX_LINE + "… (96000 more characters)")
    assert len(line) < MAX_LINE + 50


def test_output_without_end_takes_bounded_memory() -> None:
    assert [len(line) < MAX_LINE + 50 for line in bounded_lines(io.StringIO("x" * 10**7))] == [True]


def test_plugin_that_prints_on_is_cut_off_and_counted() -> None:
    lines = list(bounded_lines(io.StringIO("words of a plug-in\n" * 100_000 + f"{RECORD}\n")))
    assert sum(map(len, lines)) < 100_000
    assert lines[-1] == RECORD
    assert "lines of output are left out" in lines[-2]
