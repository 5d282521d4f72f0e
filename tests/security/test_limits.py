"""docs/security.md and docs/wire.md promise the limits of the code, number by number."""

from __future__ import annotations

from pathlib import Path

import pytest

from sci_stream.config import PreviewSection
from sci_stream.health import server as health
from sci_stream.nodes.acquire import in_flight
from sci_stream.nodes.runtime import logs, process
from sci_stream.nodes.sink import operator_commands
from sci_stream.transport import (
    client_connection,
    connections,
    pubsub,
    results_server,
    router,
    sink_client,
)
from sci_stream.transport.http import LimitedConnection, access, server
from sci_stream.web import app, downloads, preview, slots
from sci_stream.wire.header import MAX_FRAMES, MAX_HEADER_BYTES

DOCS = Path(__file__).parents[2] / "docs"
MAX_VIEWERS = PreviewSection.model_fields["max_viewers"]
CONTROL = f"{router._CONTROL_PER_S:g} a second per node, burst {router._CONTROL_BURST}"
JOINS = f"other names {router._JOINS_PER_S:g} a second, burst {router._JOINS_BURST}"
VISITS = f"{preview._VISITS_PER_S:g} a second per address, burst {preview._VISITS_BURST}"
HEALTH = f"{health._VISITS_PER_S:g} a second per address, burst {health._VISITS_BURST}"
PAGE = (
    f"{LimitedConnection.max_connections} connections; {LimitedConnection.request_s:g} s for a "
    "complete request"
)
SCRAPES = f"{health.HealthConnection.max_connections} connections, the oldest of which makes room"
SUBJECTS = {
    "security.md": (
        f"the sender's queue of {client_connection._QUEUE}, the camera",
        CONTROL,
        f"{results_server.MAX_STATUS_BYTES >> 10} KiB; a longer one is refused",
        f"{router._CALIBRATIONS_PER_S:g} a second per node, burst {router._CALIBRATIONS_BURST}",
        f"at most {router.MAX_PEERS} connected, with {['', 'one', 'two'][router._PLACES]} places "
        "kept for each name",
        JOINS,
        f"{operator_commands.MAX_WAITING} pending",
        f"{connections._MAX_CONNECTIONS}, or a quarter of the process's file descriptors beyond "
        f"{connections._RESERVED_DESCRIPTORS} if that is less; {connections._MAX_UNKNOWN} that "
        "were not accepted yet, "
        f"each for {connections._PATIENCE_S:g} s",
        f"at most {process._MAX_DESCRIPTORS:,}",
        f"{VISITS}; {PAGE}; {['', 'one', 'two'][downloads._AT_ONCE]} stills or clips, and "
        f"{['', 'one', 'two'][downloads._AT_ONCE]} other answers at once, at most "
        f"{slots._MAX_WAITING} waiting for each",
        f"`[preview] max_viewers` ({MAX_VIEWERS.default}; at most {MAX_VIEWERS.metadata[-1].le}); "
        f"{app._ACKS_PER_S:g} "
        f"messages and {app._BYTES_PER_S / 1024:g} KiB a second from each; "
        f"{server._UNREAD_MS / 1000:g} s without reading",
        f"{HEALTH}; {SCRAPES}; {health.HealthConnection.request_s:g} s for request and answer",
        f"one in {1 / access._GUESSES_PER_S:g} s per address, burst {access._GUESSES_BURST}",
        f"{pubsub._LONGEST_SUBSCRIPTION >> 10} KiB each",
        f"burst {logs._LINES_BURST} from one place in the code, then one in "
        f"{1 / logs._LINES_PER_S:g} s",
    ),
    "wire.md": (
        f"at most\n{MAX_FRAMES}; a header at most {MAX_HEADER_BYTES >> 10} KiB",
        f"At most {in_flight._MAX_REPORTS} such messages wait for their",
        f"nothing was accepted for {sink_client._PATIENCE_S:g} s",
        f"silent for {['', '', '', 'three'][connections.MISSED_HEARTBEATS]} of them",
    ),
}


@pytest.mark.parametrize("document", SUBJECTS)
def test_documented_limits_are_those_of_the_code(document: str) -> None:
    text = (DOCS / document).read_text()
    assert [subject for subject in SUBJECTS[document] if subject not in text] == []
