"""Messages with something broken in them, at every socket of a running rig: none dies, none grows, each is counted.

The corpus of `tests/hostile.py` is what people thought of; here chance breaks good messages.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from sci_stream.errors import WireError
from sci_stream.files.keys import read_key_pair
from sci_stream.transport.curve import Dress, plain, present
from sci_stream.transport.sockets import make_socket
from sci_stream.wire import decode
from tests.e2e.kit import RunningRig, assert_accounted_for
from tests.e2e.test_encrypted import keys
from tests.hostile import good_frames
from tests.wire_samples import samples

_MEANT = {"series_start", "calibration", "done"}
"""Kinds that a node rightly acts on when they come through whole: who may send at all is a matter of keys."""


def mutated(seed: int) -> Iterator[list[bytes]]:
    """Yield good messages with one to three things changed in them."""
    draw = random.Random(seed)
    good = [good_frames(kind) for kind in sorted(samples()) if kind not in _MEANT]
    while True:
        frames = list(draw.choice(good))
        for _ in range(draw.randint(1, 3)):
            frames = _changed(frames, draw)
        yield frames


def _changed(frames: list[bytes], draw: random.Random) -> list[bytes]:
    which = draw.randrange(len(frames))
    part = frames[which]
    at = draw.randrange(len(part) + 1)
    match draw.randrange(7):
        case 0 if part:  # bits
            flipped = bytearray(part)
            flipped[draw.randrange(len(part))] ^= 1 << draw.randrange(8)
            part = bytes(flipped)
        case 1:  # cut
            part = part[:at]
        case 2:  # noise
            part = part[:at] + draw.randbytes(draw.randint(1, 64)) + part[at:]
        case 3:  # part of another message
            part = part[:at] + good_frames(draw.choice(sorted(samples())))[1][at:]
        case 4:  # one frame more
            return [*frames[: which + 1], part, *frames[which + 1 :]]
        case 5 if len(frames) > 1:  # one frame less
            return [*frames[:which], *frames[which + 1 :]]
        case _:  # in another order
            frames = list(frames)
            draw.shuffle(frames)
            return frames
    return [*frames[:which], part, *frames[which + 1 :]]


def reason_of(frames: list[bytes]) -> str | None:
    """Return why a message is refused; None if it is a good one all the same."""
    try:
        decode(frames)
    except WireError as error:
        return error.reason
    return None


def besiege(rig: RunningRig, endpoint: str, n: int, seed: int, dress: Dress) -> Counter[str]:
    """Send mutated messages to an address; return how many have to be refused there, by reason."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = make_socket(
        context, zmq.DEALER, max_message_bytes=1 << 20, heartbeat_s=5.0, send_queue=100, receive_queue=1000
    )
    dress(socket)
    socket.connect(endpoint)
    expected: Counter[str] = Counter()
    source = mutated(seed)
    try:
        while expected.total() < n:
            frames = next(source)
            reason = reason_of(frames)
            if reason is None:
                continue
            expected[reason] += 1
            socket.poll(60_000, zmq.POLLOUT)
            socket.send_multipart(frames)
            while socket.poll(0):
                socket.recv_multipart()
    finally:
        socket.close(linger=10_000)
        context.term()
    return expected


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
@pytest.mark.parametrize("n", [300, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_a_rig_besieged_with_broken_messages_runs_on(tmp_path: Path, encrypted: bool, n: int) -> None:
    changes: dict[str, Any] = {"network": {"heartbeat_s": 5.0}, "reconstruct": {"iterations": 1}}
    dress = plain
    if encrypted:
        changes["security"] = security = keys(tmp_path)
        # Who has no key does not get as far as this; here is one who has.
        dress = present(read_key_pair(tmp_path / "key"), str(security["sink_key"]))
    with RunningRig(tmp_path, changes) as rig:
        wait_for_start(rig)
        before = {name: (process.pid, process.memory_info().rss) for name, process in rig.nodes().items()}
        refused = besiege(rig, rig.rig.network.results, n, 1, dress)
        besiege(rig, rig.rig.network.dispatch, n, 2, dress)
        after = {name: (process.pid, process.memory_info().rss) for name, process in rig.nodes().items()}
        rig.process.terminate()
        summary = rig.finish(timeout_s=120.0)
    assert {name: pid for name, (pid, _) in after.items()} == {name: pid for name, (pid, _) in before.items()}
    for name in after:
        assert after[name][1] < before[name][1] + (32 << 20), f"{name} grew"
    ledger = assert_accounted_for(summary)
    assert ledger["reconstructed"] == ledger["acquired"]
    counted = Counter(summary["wire_errors"])
    counted.pop("unexpected_kind", None)
    assert counted == refused
    assert summary["restarts"] == 0
    assert rig.output.count("message to the dispatch address refused") == n


def wait_for_start(rig: RunningRig) -> None:
    """Wait, without the taps, which an encrypted rig shows to nobody else, until video is recorded."""
    from tests.e2e.kit import wait_for  # noqa: PLC0415

    wait_for(lambda: len(rig.nodes()) == 3 and rig.segments(), "the series begins")
