"""The baseline of ``bench stream``: the same bytes over the same two hops with bare ZeroMQ.

Three processes with PUSH and PULL sockets: no headers, checks, acknowledgements or ledger. No
pipeline over sockets can be faster on the same machine, so the ratio to this baseline is comparable
between machines.
"""

from __future__ import annotations

import multiprocessing
import os
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from sci_stream.errors import SciStreamError
from sci_stream_lab.bench.environment import CpuTimeMeter

WINDOW = 8
"""Snapshots in flight in the throughput parts: enough to keep every stage busy."""
_MADE = 16
_SENT = struct.Struct("<q")
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class StreamPart:
    """Figures of one part: rates, processor time per snapshot by process, and latencies by stage
    and percentile.

    ``mb_per_s`` is the raw counts from end to end; ``lost`` counts snapshots that did not arrive.
    """

    part: str
    snapshot_mib: float
    snapshots: int
    mb_per_s: float
    snapshots_per_s: float
    cpu_ms: dict[str, float]
    latency_ms: dict[str, dict[str, float]]
    lost: int
    ledger_closed: bool = True

    @classmethod
    def measured(
        cls,
        part: str,
        nbytes: int,
        snapshots: int,
        seconds: float,
        used_s: Mapping[str, float],
        *,
        through: int,
        lost: int,
        latency_ms: dict[str, dict[str, float]] | None = None,
        ledger_closed: bool = True,
    ) -> StreamPart:
        """Return the figures of a part in which ``through`` of the snapshots arrived.

        ``seconds`` is its duration, ``used_s`` the processor time by process.
        """
        return cls(
            part=part,
            snapshot_mib=round(nbytes / 2**20, 3),
            snapshots=snapshots,
            mb_per_s=round(through * nbytes / seconds / 1e6, 1),
            snapshots_per_s=round(through / seconds, 1),
            cpu_ms={process: round(1e3 * used / snapshots, 3) for process, used in used_s.items()},
            latency_ms=latency_ms or {},
            lost=lost,
            ledger_closed=ledger_closed,
        )

    @property
    def total_cpu_ms(self) -> float:
        """Processor time per snapshot of all processes, ms."""
        return round(sum(self.cpu_ms.values()), 2)

    @property
    def p50_ms(self) -> str:
        """Median latency from end to end, ms; a dash if it was not measured."""
        return self._total("p50")

    @property
    def p99_ms(self) -> str:
        """99th percentile of it, ms."""
        return self._total("p99")

    def _total(self, rank: str) -> str:
        return str(self.latency_ms["total"][rank]) if "total" in self.latency_ms else "–"


def measure_zmq_baseline(
    folder: Path, name: str, nbytes: int, count: int, rate_hz: float, *, tcp: bool
) -> StreamPart:
    """Send blocks through a relay process to one that discards them.

    ``nbytes``, ``count`` and ``rate_hz`` are those of the blocks, rate 0 for full speed. Local
    sockets are in the folder, unless loopback ``tcp`` is used.

    Raises
    ------
    SciStreamError
        If the blocks do not arrive.
    """
    spawn = multiprocessing.get_context("spawn")
    reader, writer = spawn.Pipe(duplex=False)
    addresses = (
        ["tcp://127.0.0.1:*"] * 2
        if tcp
        else [f"ipc://{folder / hop}" for hop in ("bare-1", "bare-2")]
    )
    with zmq.Context() as context, context.socket(zmq.PUSH) as source:
        source.set_hwm(WINDOW // 4)
        source.linger, source.sndtimeo = 0, int(_PATIENCE_S * 1e3)
        source.bind(addresses[0])
        first = source.get_string(zmq.LAST_ENDPOINT)
        drain = spawn.Process(target=_drain, args=(addresses[1], count, writer), daemon=True)
        drain.start()
        relay = spawn.Process(target=_relay, args=(first, _receive(reader)), daemon=True)
        relay.start()
        try:
            meter = CpuTimeMeter(
                {"source": os.getpid(), "relay": relay.pid or 0, "drain": drain.pid or 0}
            )
            source.send_multipart([_SENT.pack(0), bytes(nbytes)])
            _receive(reader)
            meter.start()
            _send(source, nbytes, count, rate_hz)
            seconds, latencies_s = _receive(reader)
            used_s = meter.used_s()
        finally:
            for process in (relay, drain):
                process.kill()
                process.join(10.0)
    total_ms = {
        f"p{rank}": round(1e3 * float(np.percentile(latencies_s, rank)), 3) for rank in (50, 99)
    }
    return StreamPart.measured(
        name, nbytes, count, seconds, used_s, through=count, lost=0, latency_ms={"total": total_ms}
    )


def _receive(reader: Connection) -> Any:
    """Return the next value from the drain process."""
    if not reader.poll(_PATIENCE_S):
        raise SciStreamError(
            f"bare ZeroMQ took more than {_PATIENCE_S:g} s",
            hint="Check whether the machine is overloaded.",
        )
    return reader.recv()


def _send(source: zmq.Socket[bytes], nbytes: int, count: int, rate_hz: float) -> None:
    generator = np.random.default_rng(0)
    blocks = [generator.integers(0, 4096, nbytes // 2, dtype=np.uint16) for _ in range(_MADE)]
    start_s = time.monotonic()
    for number in range(count):
        if rate_hz:
            time.sleep(max(0.0, start_s + number / rate_hz - time.monotonic()))
        source.send_multipart(
            [_SENT.pack(time.monotonic_ns()), blocks[number % _MADE].data], copy=False
        )


def _relay(source: str, target: str) -> None:
    with (
        zmq.Context() as context,
        context.socket(zmq.PULL) as pull,
        context.socket(zmq.PUSH) as push,
    ):
        for socket in (pull, push):
            socket.set_hwm(WINDOW // 4)
        pull.connect(source)
        push.connect(target)
        while True:
            push.send_multipart(pull.recv_multipart(copy=False), copy=False)


def _drain(address: str, count: int, writer: Connection) -> None:
    with zmq.Context() as context, context.socket(zmq.PULL) as pull:
        pull.set_hwm(WINDOW // 4)
        pull.bind(address)
        writer.send(pull.get_string(zmq.LAST_ENDPOINT))
        pull.recv_multipart(copy=False)
        writer.send("ready")
        latencies_s, began_ns = [], 0
        for _ in range(count):
            sent, _block = pull.recv_multipart(copy=False)
            sent_ns = _SENT.unpack(sent.bytes)[0]
            began_ns = began_ns or sent_ns
            latencies_s.append((time.monotonic_ns() - sent_ns) / 1e9)
        writer.send(((time.monotonic_ns() - began_ns) / 1e9, latencies_s))
        writer.close()
        time.sleep(_PATIENCE_S)  # the parent kills this process
