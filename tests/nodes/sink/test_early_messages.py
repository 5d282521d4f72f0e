"""Messages before the start of their series wait in order, in bounded memory."""

from __future__ import annotations

import numpy as np

from sci_stream.nodes.sink.node import EarlyMessages
from sci_stream.wire.codec import payload_bytes
from sci_stream.wire.messages import Dropped
from tests.series_fixtures import Series


def dropped(seq: int) -> Dropped:
    return Dropped("run-1", 0, seq, "queue_full")


def test_early_messages_are_taken_once_and_in_order() -> None:
    early = EarlyMessages(10, 1 << 20)
    sent = [(b"acquire", dropped(seq)) for seq in range(4)]
    for identity, message in sent:
        early.put(identity, message)
    assert early.take() == sent
    assert early.take() == []


def test_early_messages_beyond_their_number_lose_the_oldest() -> None:
    early = EarlyMessages(3, 1 << 20)
    for seq in range(5):
        early.put(b"acquire", dropped(seq))
    assert [message for _, message in early.take()] == [dropped(seq) for seq in (2, 3, 4)]


def test_early_messages_beyond_their_bytes_lose_the_oldest(series: Series) -> None:
    one = payload_bytes(series.reconstruction(0))
    early = EarlyMessages(100, 2 * one)
    for seq in range(3):
        early.put(b"reconstruct-0", series.reconstruction(seq))
    assert [message.id.seq for _, message in early.take()] == [1, 2]  # type: ignore[union-attr] # reconstructions
    early.put(b"reconstruct-0", series.reconstruction(3, video=np.zeros((3, 64, 64), np.float16)))
    assert early.take() == [], "one message that is larger than the limit does not stay"


def test_early_messages_count_bytes_anew_after_they_are_taken(series: Series) -> None:
    early = EarlyMessages(100, 2 * payload_bytes(series.reconstruction(0)))
    for round_ in range(3):
        for seq in range(2):
            early.put(b"reconstruct-0", series.reconstruction(2 * round_ + seq))
        assert len(early.take()) == 2
