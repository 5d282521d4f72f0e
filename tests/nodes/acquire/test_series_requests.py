"""What becomes of a series on request: another at once, another when asked for, or none."""

from __future__ import annotations

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


def test_a_series_that_ends_by_itself_is_the_last(requests: SeriesRequests) -> None:
    assert not requests.renew()


def test_the_next_series_follows_at_once(requests: SeriesRequests) -> None:
    ended = requests.current
    requests.next_series()
    requests.next_series()
    assert ended
    assert requests.renew()
    assert not requests.held
    assert not requests.current, "the new one is not asked to end"
    assert not requests.renew(), "asked for twice is one"


def test_a_series_that_is_stopped_is_followed_when_another_is_asked_for(requests: SeriesRequests) -> None:
    requests.stop_series()
    assert requests.renew()
    assert requests.held
    waiting = requests.current
    assert not waiting
    requests.while_held["start_series"]()
    assert waiting, "the wait is over"
    assert requests.renew()
    assert not requests.held


def test_asked_for_while_the_stopped_series_still_ends_the_next_follows_at_once(requests: SeriesRequests) -> None:
    requests.stop_series()
    requests.next_series()
    assert requests.renew()
    assert not requests.held


@pytest.mark.parametrize("ask", ["next_series", "stop_series"])
def test_a_rig_that_is_stopped_begins_no_series(requests: SeriesRequests, stop: StopRequest, ask: str) -> None:
    getattr(requests, ask)()
    stop.set()
    assert requests.current
    assert not requests.renew()
    with pytest.raises(InputError, match="is stopping"):
        getattr(requests, ask)()


def test_a_stop_ends_the_wait(requests: SeriesRequests, stop: StopRequest) -> None:
    requests.stop_series()
    assert requests.renew()
    stop.set(gentle=True)
    assert requests.current
    assert requests.current.gentle
    assert not requests.renew()


def test_a_stop_that_came_while_the_node_was_still_loading_ends_its_first_series(stop: StopRequest) -> None:
    stop.set(gentle=True)
    requests = SeriesRequests(stop)
    assert requests.current
    assert requests.current.gentle
