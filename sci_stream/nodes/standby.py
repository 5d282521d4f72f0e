"""Between two series: the acquire node is there, its camera open, and waits to be told to begin."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import zmq

from sci_stream.config import Rig
from sci_stream.errors import InputError
from sci_stream.nodes.doors import open_doors
from sci_stream.nodes.obeying import Obedient
from sci_stream.nodes.runner import StopRequest, new_incarnation, versions
from sci_stream.nodes.watched import Watched
from sci_stream.parameters import Value, declared
from sci_stream.transport.dealer import Dealer
from sci_stream.transport.sockets import Wakeup
from sci_stream.wire import Control, Hello, Limits

_POLL_MS = 20


def stand_by(rig: Rig, until: StopRequest, actions: Mapping[str, Callable[[], str]]) -> None:
    """Report to the sink until asked for something.

    Parameters
    ----------
    until
        Ends the wait; one of the actions sets it, or whoever stops the rig.
    actions
        What operators may ask for meanwhile, by name.
    """
    wakeup = Wakeup()
    until.call_on_stop(wakeup.wake)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    doors = open_doors(rig, context)
    watched = Watched(rig, "acquire", "acquire")
    dealer = Dealer(
        context,
        rig.network.results,
        Hello(node="acquire", kind_of_node="acquire", incarnation=new_incarnation(), versions=versions()),
        heartbeat_s=rig.network.heartbeat_s,
        limits=Limits(max_payload_bytes=rig.network.max_message_mib << 20),
        dress=doors.reach("sink"),
    )
    obedient = Obedient("acquire", dealer.say, _nothing_to_set, actions)
    poller = zmq.Poller()
    for socket in (dealer.socket, dealer.monitor.socket, wakeup.fd):
        poller.register(socket, zmq.POLLIN)
    try:
        while not until:
            poller.poll(_POLL_MS)
            wakeup.clear()
            now_s = time.monotonic()
            messages, _ = dealer.receive(now_s)
            for message in messages:
                if isinstance(message, Control):
                    obedient.take(message, (), actions)
            dealer.tick(now_s)
            if watched.due(now_s):
                status: dict[str, int | float | str] = {"phase": "standby", "health": watched.url}
                dealer.status = {**status, **declared((), actions)}
                told = {**status, **dealer.clock.status()}
                watched.tell("no series is asked for", told, {}, progress=0, idle=True)
    finally:
        dealer.close()
        watched.close()
        doors.close()
        context.destroy(linger=500)
        wakeup.close()


def _nothing_to_set(_request: str, _changes: Mapping[str, Value]) -> None:
    raise InputError("Nothing can be set on the camera between two series")
