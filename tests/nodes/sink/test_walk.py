"""The way of a result through the sink is short: few modules see it between the socket and the recording."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from types import FrameType

from sci_stream.model import Reconstruction
from sci_stream.nodes import sink as sink_package
from tests.nodes.sink.test_hostile_peers import Sink
from tests.series_fixtures import Series


class Walk:
    """A profiler that collects the sink's modules on the call stack whenever a function is given a result."""

    def __init__(self) -> None:
        self.modules: set[str] = set()

    def __call__(self, frame: FrameType, event: str, _result: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        names = (*code.co_varnames[: code.co_argcount], *code.co_freevars)
        if not any(isinstance(frame.f_locals.get(name), Reconstruction) for name in names):
            return
        caller: FrameType | None = frame
        while caller is not None:
            package, _, module = str(caller.f_globals.get("__name__")).rpartition(".")
            if package == sink_package.__name__:
                self.modules.add(module)
            caller = caller.f_back


def test_result_passes_at_most_five_modules_of_the_sink(tmp_path: Path, series: Series) -> None:
    walk = Walk()
    threading.setprofile(walk)  # for the threads that start from now on: the sink's, and its recorder's
    try:
        with contextlib.closing(Sink(tmp_path)) as sink:
            sink.begin(series)
            sink.record(series, 0)
            sink.end(series, 1)
    finally:
        threading.setprofile(None)
    assert {"node", "series_session", "series_recording"} <= walk.modules, "it was followed to the file"
    assert len(walk.modules) <= 5, walk.modules
