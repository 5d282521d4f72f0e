"""Analyses of other packages: in every recording, on the page and in the metrics."""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sci_stream.delivery.frame_faults import FRAME_FAULT, UNIT
from sci_stream.devices.analyses import GROUP, Analyses
from sci_stream.errors import ConfigError
from sci_stream.imaging.tone import ToneSettings
from sci_stream.model import Array
from sci_stream.nodes.sink.status import sink_metrics
from sci_stream.recording.reader import Recording
from sci_stream.reports import SolveReport
from sci_stream.web.message import jpeg_picture, render_snapshot
from tests.conftest import RigMaker
from tests.e2e.kit import ROOT
from tests.page_messages import decode_jpeg, split_message
from tests.series_fixtures import Series

pytestmark = pytest.mark.rig(seconds=5)


class Writing:
    """Writes into the video, by force if it has to, and into its own picture later."""

    units: Mapping[str, str] = {"written": ""}

    def __call__(self, video: Array, _report: SolveReport, /) -> tuple[dict[str, float], None]:
        with contextlib.suppress(ValueError):
            video.flags.writeable = True
        video *= 0
        return {"written": 1.0}, None


class Drawing:
    units: Mapping[str, str] = {}
    picture = np.zeros((16, 24, 3), np.uint8)

    def __call__(self, _video: Array, _report: SolveReport, /) -> tuple[dict[str, float], Array]:
        self.picture += 1
        return {}, self.picture


class Exiting:
    units: Mapping[str, str] = {}

    def __call__(self, _video: Array, _report: SolveReport, /) -> tuple[dict[str, float], None]:
        raise SystemExit(0)


class Broken:
    units: Mapping[str, str] = {"broken": ""}

    def __call__(self, _video: Array, _report: SolveReport, /) -> tuple[dict[str, float], None]:
        raise ValueError("as every time")


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the example's analysis, and one that fails,
    as the entry points of a package would.
    """
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    places = {
        "count": "analysis_plugin:CountMovingObjects",
        "broken": f"{__name__}:Broken",
        "writing": f"{__name__}:Writing",
        "drawing": f"{__name__}:Drawing",
        "exiting": f"{__name__}:Exiting",
        "absent": "no_module:none",
    }
    others: Callable[..., Any] = importlib.metadata.entry_points

    def entry_points(*, group: str, **of: str) -> Any:
        entries = importlib.metadata.EntryPoints(
            importlib.metadata.EntryPoint(*item, GROUP) for item in places.items()
        )
        return entries.select(**of) if group == GROUP else others(group=group, **of)

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)


def test_analysis_that_writes_into_the_video_is_left_out(
    series: Series, caplog: pytest.LogCaptureFixture
) -> None:
    video = series.video(0)
    figures, _ = Analyses(["writing"])(video, series.reconstruction(0).report)
    assert figures == {}
    assert np.array_equal(video, series.video(0))
    assert "the analysis writing failed" in caplog.text


def test_picture_is_a_copy_of_that_of_the_analysis(series: Series) -> None:
    analyses = Analyses(["drawing"])
    report = series.reconstruction(0).report
    pictures = [analyses(series.video(0), report)[1] for _ in range(2)]
    assert [picture.max() for picture in pictures if picture is not None] == [1, 2]


def test_analysis_that_exits_does_not_end_the_node(series: Series) -> None:
    figures, picture = Analyses(["exiting"])(series.video(0), series.reconstruction(0).report)
    assert (figures, picture) == ({}, None)


def test_two_moving_squares_are_counted_and_drawn(series: Series) -> None:
    video = np.full((4, 48, 64), 0.2, np.float32)
    for frame in range(4):
        for row in (8, 30):
            video[frame, row : row + 8, 10 + 4 * frame : 18 + 4 * frame] = 0.9
    figures, picture = Analyses(["broken", "count"])(video, series.reconstruction(0).report)
    assert figures["moving_objects"] == 2
    assert "broken" not in figures
    assert picture is not None
    assert (picture[12, 20].tolist(), picture[24, 50].tolist()) == ([255] * 3, [0] * 3)
    assert Analyses([])(video, series.reconstruction(0).report) == ({}, None)


def test_picture_of_an_analysis_is_the_last_part_of_the_message(series: Series) -> None:
    drawn = np.zeros((16, 24), np.uint8)
    drawn[:, 12:] = 255
    shown = series.reconstruction(0, chunks={"a": 1.5}, picture=np.stack([drawn] * 3, axis=-1))
    rendered = render_snapshot(shown, 0, 0, tone=ToneSettings())
    header, parts = split_message(jpeg_picture(*rendered).message)
    assert (header["drawn"], header["coded"], header["chunks"]) == (True, True, {"a": 1.5})
    assert np.abs(decode_jpeg(parts[-1]).reshape(16, 24, -1)[..., 0].astype(int) - drawn).max() < 40


def test_picture_of_another_size_fails_its_analysis(
    monkeypatch: pytest.MonkeyPatch, series: Series
) -> None:
    analyses = Analyses(["count"])
    monkeypatch.setattr(
        type(analyses._analyses["count"]),
        "__call__",
        lambda *_: ({"moving_objects": 1}, np.zeros((2, 2), np.uint8)),
    )
    assert analyses(np.zeros((4, 48, 64), np.float32), series.reconstruction(0).report)[1] is None


def test_figures_are_recorded_with_a_picture_and_in_metrics(
    rig_in_process: RigMaker, tmp_path: Path
) -> None:
    rig = rig_in_process({"reconstruct": {"analyses": ["count", "broken"]}}, snapshots=2)
    rig.reconstruct(2)
    rig.finish()
    (file,) = (tmp_path / "recordings").glob("*.h5")
    with Recording(file) as recording:
        units = {"moving_objects": "", "moving_share": "1", "broken": "", FRAME_FAULT: UNIT}
        assert recording.info.chunks == units
        shares = recording.rows["chunk_moving_share"]
        assert len(shares) == 2
        assert np.all((shares >= 0) & (shares <= 1))
        assert shares[-1] > 0, "the scene moves"
        assert np.isnan(recording.rows["chunk_broken"]).all()
        assert recording.seqs_with("picture") == [0, 1]
        for seq in (0, 1):
            figures, drawn = Analyses(["count"])(recording.video(seq), recording.report(seq)[0])
            assert figures["moving_share"] == pytest.approx(shares[seq])
            assert drawn is not None
            assert np.array_equal(recording.frame("picture", seq), drawn)
    status = rig.sink._last_status
    assert status is not None
    assert status.to_json()["chunks"]["moving_share"] == pytest.approx(shares[-1])
    figures = sink_metrics(
        type("Status", (), {"wire_errors": {}, "nodes": (), "alarms": (), "series": status})()  # type: ignore[arg-type]
    )
    assert figures["chunk"]["moving_share"] == pytest.approx(shares[-1])  # type: ignore[index]


def test_analysis_that_is_not_there_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"expected one of absent, broken, count, .*; got 'count_all'"
    ):
        Analyses(["count_all"])
    with pytest.raises(
        ConfigError, match=r"Cannot import the analysis 'absent' \(no_module:none\)"
    ):
        Analyses(["absent"])


def test_figure_sets_a_parameter_and_the_summary_says_so(
    rig_in_process: RigMaker, caplog: pytest.LogCaptureFixture
) -> None:
    rig = rig_in_process(
        {
            "reconstruct": {
                "analyses": ["count"],
                "reactions": [
                    "chunk_moving_share > 0, at most 1: reconstruct iterations = 3",
                    "chunk_moving_share > 0, at most 1: acquire dance",
                ],
            }
        }
    )
    rig.reconstruct(2)
    rig.wait_for(lambda: rig.sink._operators.recent, "the parameter is set")
    (change,) = rig.sink._operators.recent
    assert (change.node, change.name, change.new) == ("reconstruct-0", "iterations", 3)
    assert change.who == "reaction to chunk_moving_share > 0, at most 1"
    summary = rig.finish()
    assert [change["new"] for change in summary["changes"]] == [3]
    assert "'chunk_moving_share > 0, at most 1: acquire dance' had no effect" in caplog.text
