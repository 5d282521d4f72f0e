"""Histograms and history of the live page."""

from __future__ import annotations

import numpy as np
import pytest

from sci_stream.model import StageTimes
from sci_stream.web.archive import KEPT_S, History
from sci_stream.web.message import BINS, counts_histogram
from tests.series_fixtures import Series


@pytest.mark.parametrize(
    ("dtype", "brightest", "depth", "top"),
    [
        (np.uint8, 200, 8, 255),
        (np.uint16, 3000, 12, 4095),
        (np.uint16, 3000, None, 4095),
        (np.uint16, 60000, 12, 65535),
    ],
)
def test_counts_histogram_covers_the_converter_range(dtype, brightest, depth, top) -> None:
    counts = np.zeros((30, 30), dtype)
    counts[0, 0] = brightest
    report = counts_histogram(counts, depth)
    assert (report["top_dn"], report["max_dn"]) == (top, brightest)
    assert sum(report["bins"]) == 100
    assert report["bins"][int(brightest * BINS / (top + 1))] == 1


def test_counts_histogram_of_floats_with_bad_pixels() -> None:
    counts = np.full((12, 12), 5.0, np.float32)
    counts[0, 0] = np.nan
    report = counts_histogram(counts, None)
    assert sum(report["bins"]) == 16
    assert report["top_dn"] == 5.0


def test_history_keeps_slowest_and_losses_of_each_second(series: Series) -> None:
    history = History()
    for at_s, took_ms in ((100.1, 20), (100.9, 50), (101.2, 30)):
        times = StageTimes(acquired_ns=1, accepted_ns=1 + took_ms * 1_000_000)
        history.add(series.reconstruction(0, times=times), at_s)
    status = {
        "series": "run-1",
        "ledger": {"dropped": {"queue_full": 2}, "camera_missed": 1, "in_flight": 4},
    }
    history.update(status, 101.5)
    history.update(
        {"series": "run-1", "ledger": {"dropped": {"queue_full": 5}, "camera_missed": 2}}, 102.5
    )
    history.update({"series": "run-2", "ledger": {"dropped": {"queue_full": 1}}}, 103.5)
    assert history.samples() == [
        [100, 2, 50.0, 34.0, 0, 0],
        [101, 1, 30.0, 34.0, 0, 4],
        [102, 0, None, None, 4, 0],
        [103, 0, None, None, 0, 0],
    ], "earlier losses, or those of another series, count for no second"
    assert history.samples(2) == history.samples()[-2:]


def test_history_is_bounded(series: Series) -> None:
    history = History()
    for at_s in range(KEPT_S + 50):
        history.add(series.reconstruction(0), float(at_s))
    assert len(history.samples()) == KEPT_S
    assert history.samples()[0][0] == 50


def test_hour_and_day_have_a_sample_for_several_seconds() -> None:
    history = History()
    for second in range(600):
        history.update(
            {"series": "run-1", "ledger": {"in_flight": 1, "dropped": {"queue_full": second}}},
            second,
        )
    hour, day = history.samples(span_s=3600), history.samples(span_s=86_400)
    assert [sample[0] for sample in hour] == list(range(0, 600, 12))
    assert [sample[0] for sample in day] == [0, 288, 576]
    assert [sum(sample[4] for sample in samples) for samples in (hour, day)] == [599, 599]
