"""The acquire node's two ends: the socket that reconstruct nodes come to, and the one to the sink."""

from __future__ import annotations

from typing import NamedTuple

import zmq

from sci_stream.config import Rig
from sci_stream.delivery.dispatch import DispatchQueue
from sci_stream.nodes.doors import NodeDoors
from sci_stream.nodes.runner import versions
from sci_stream.transport.dispatcher import Dispatcher
from sci_stream.transport.sink_link import SinkLink
from sci_stream.wire import Hello, Limits


class Ends(NamedTuple):
    """Both, open; closing them is the owner's."""

    dispatcher: Dispatcher
    link: SinkLink


def open_ends(rig: Rig, context: zmq.Context[zmq.Socket[bytes]], doors: NodeDoors, incarnation: str) -> Ends:
    """Open both ends as a rig says; ``incarnation`` tells this process from an earlier one of the node."""
    limits = Limits(max_payload_bytes=rig.network.max_message_mib << 20)
    dispatcher = Dispatcher(
        context,
        rig.network.listening("dispatch"),
        DispatchQueue(rig.policy.queue_snapshots, rig.reconstruct.block_snapshots),
        node="acquire",
        incarnation=incarnation,
        heartbeat_s=rig.network.heartbeat_s,
        limits=limits,
        dress=doors.serve,
    )
    link = SinkLink(
        context,
        rig.network.results,
        Hello(node="acquire", kind_of_node="acquire", incarnation=incarnation, versions=versions()),
        heartbeat_s=rig.network.heartbeat_s,
        limits=limits,
        dress=doors.reach("sink"),
    )
    return Ends(dispatcher, link)
