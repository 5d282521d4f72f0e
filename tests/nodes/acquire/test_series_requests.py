"""Requests to end a series and to start the next one."""

from __future__ import annotations

from pathlib import Path

import pytest

from sci_stream.errors import InputError
from sci_stream.nodes.acquire.series_loop import SeriesRequests
from sci_stream.nodes.runtime.process import StopRequest


@pytest.fixture
def stop() -> StopRequest:
    return StopRequest()


@pytest.fixture
def requests(stop: StopRequest) -> SeriesRequests:
    return SeriesRequests(stop)


def test_series_that_ends_by_itself_is_the_last(requests: SeriesRequests) -> None:
    assert not requests.renew()


def test_next_series_follows_at_once(requests: SeriesRequests) -> None:
    ended = requests.current
    requests.next_series()
    requests.next_series()
    assert ended
    assert requests.renew()
    assert not requests.held
    assert not requests.current, "the new one is not requested to end"
    assert not requests.renew(), "two requests count as one"


def test_stopped_series_is_followed_on_request(requests: SeriesRequests) -> None:
    requests.stop_series()
    assert requests.renew()
    assert requests.held
    waiting = requests.current
    assert not waiting
    requests.actions["start_series"]()
    assert not requests.held
    assert not waiting, "the node that waits begins the series"
    assert not requests.renew()


def test_request_during_the_end_starts_next_series_at_once(requests: SeriesRequests) -> None:
    requests.stop_series()
    requests.next_series()
    assert requests.renew()
    assert not requests.held


@pytest.mark.parametrize("ask", ["next_series", "stop_series"])
def test_stopped_rig_starts_no_series(
    requests: SeriesRequests, stop: StopRequest, ask: str
) -> None:
    getattr(requests, ask)()
    stop.set()
    assert requests.current
    assert not requests.renew()
    with pytest.raises(InputError, match="is stopping"):
        getattr(requests, ask)()


def test_stop_ends_the_wait(requests: SeriesRequests, stop: StopRequest) -> None:
    requests.stop_series()
    assert requests.renew()
    stop.set(gentle=True)
    assert requests.current
    assert requests.current.gentle
    assert not requests.renew()


def test_stop_while_loading_ends_the_first_series(stop: StopRequest) -> None:
    stop.set(gentle=True)
    requests = SeriesRequests(stop)
    assert requests.current
    assert requests.current.gentle


def test_next_series_waits_also_after_a_crash(stop: StopRequest, tmp_path: Path) -> None:
    path = tmp_path / "rig.spool"
    SeriesRequests(stop, path).stop_series()
    restarted = SeriesRequests(stop, path)
    assert restarted.held
    restarted.next_series()
    assert not restarted.current, "the node that waits begins its series"
    assert not SeriesRequests(stop, path).held


def test_next_run_of_a_held_rig_does_not_wait(stop: StopRequest, tmp_path: Path) -> None:
    requests = SeriesRequests(stop, tmp_path / "rig.spool")
    requests.stop_series()
    assert requests.renew()
    stop.set()
    assert not requests.renew()
    assert not SeriesRequests(StopRequest(), tmp_path / "rig.spool").held
