"""The output of a node in the log of its run, bounded: plug-ins may print anything."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import IO

from sci_stream.delivery.rate_limit import TokenBucket

MAX_LINE = 4000
"""Characters of a line that are shown: a traceback has less, the JSON of a record too."""
# A plug-in that prints with every snapshot must not fill the disk of the log: 1 MiB an hour. The
# burst holds its first words and the tracebacks of a start that fails.
_CHARACTERS_PER_S = 300.0
_CHARACTERS_BURST = 64_000
# Records are limited where they are made; this bounds those that a plug-in forges.
_RECORD_CHARACTERS_PER_S = 10_000.0
_RECORD_CHARACTERS_BURST = 1_000_000
_RECORD = re.compile(r"\d\d:\d\d:\d\d [A-Z]{4,8} |\{\"time\"")


def bounded_lines(output: IO[str]) -> Iterator[str]:
    """Yield the lines of a node's output, cut to `MAX_LINE`; other text than log records within a
    rate, and then the number of lines that were left out.
    """
    records = TokenBucket(_RECORD_CHARACTERS_PER_S, _RECORD_CHARACTERS_BURST)
    others = TokenBucket(_CHARACTERS_PER_S, _CHARACTERS_BURST)
    is_record = False
    left_out = 0
    for line in _cut_lines(output):
        # Further lines of a record, such as a traceback, are indented.
        is_record = _RECORD.match(line) is not None or (is_record and line.startswith("    "))
        bucket = records if is_record else others
        if not bucket.take(time.monotonic(), len(line) + 1):
            left_out += 1
            continue
        if left_out:
            yield f"({left_out} lines of output are left out: a plug-in prints too much)"
            left_out = 0
        yield line
    if left_out:
        yield f"({left_out} lines of output are left out: a plug-in prints too much)"


def _cut_lines(output: IO[str]) -> Iterator[str]:
    """Yield lines without their ends, never more than a line's limit in memory."""
    while text := output.readline(MAX_LINE):
        if text.endswith("\n"):
            yield text[:-1]
            continue
        more = 0
        while rest := output.readline(MAX_LINE):
            more += len(rest.rstrip("\n"))
            if rest.endswith("\n"):
                break
        yield f"{text}… ({more} more characters)" if more else text
