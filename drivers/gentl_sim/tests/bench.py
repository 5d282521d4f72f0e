"""The simulated GenTL camera with Harvesters only; independent of the driver of this project."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from harvesters.core import Harvester

PATIENCE_S = 30.0
"""How long anything may take on a busy machine."""

PACKINGS = ("8", "10", "12", "16", "10p", "12p", "10Packed", "12Packed")
FAMILIES = ("Mono", "BayerGR", "BayerRG", "BayerGB", "BayerBG")
FORMATS = tuple(family + packing for family in FAMILIES for packing in PACKINGS)
SENSOR_BITS = 12


def ramp(index: int, height: int, width: int, x: int = 0, y: int = 0) -> npt.NDArray[np.uint16]:
    """Return the test pattern of README.md, (H, W), 12 bit."""
    rows, columns = np.arange(y, y + height)[:, None], np.arange(x, x + width)[None, :]
    return ((columns + 3 * rows + 17 * index) % 4096).astype(np.uint16)


def encode(counts: npt.NDArray[np.uint16], packing: str) -> npt.NDArray[np.uint8]:
    """Encode (H, W) 12-bit counts in the PFNC format that ends in ``packing``, (H,
    bytes per line).
    """
    bits = int("".join(filter(str.isdigit, packing)))
    samples = (
        counts >> (SENSOR_BITS - bits) if bits <= SENSOR_BITS else counts << (bits - SENSOR_BITS)
    )
    height, width = samples.shape
    if packing == "8":
        return samples.astype(np.uint8)
    if packing.isdigit():
        return samples.astype("<u2").view(np.uint8)
    if packing.endswith("p"):  # one bit stream, lowest bit first
        stream = (samples[..., None] >> np.arange(bits)) & 1
        return np.packbits(
            stream.reshape(height, width * bits).astype(np.uint8), axis=1, bitorder="little"
        )
    low, pairs = bits - 8, samples.reshape(height, width // 2, 2)
    rest = pairs & ((1 << low) - 1)
    three = np.stack(
        [pairs[..., 0] >> low, rest[..., 0] | rest[..., 1] << 4, pairs[..., 1] >> low], axis=-1
    )
    return three.reshape(height, -1).astype(np.uint8)


@dataclass(frozen=True)
class Got:
    """Content of one buffer."""

    frame_id: int
    timestamp_ns: int
    data: npt.NDArray[np.uint8]
    width: int
    height: int


class Bench:
    """One open camera."""

    def __init__(self, acquirer: Any) -> None:
        self.acquirer = acquirer
        self.incomplete = 0

    @property
    def node_map(self) -> Any:
        return self.acquirer.remote_device.node_map

    def set(self, **features: Any) -> None:
        """Set features in this order; None executes a command."""
        for name, value in features.items():
            node = self.node_map.get_node(name)
            if value is None:
                node.execute()
            else:
                node.value = value

    def get(self, name: str) -> Any:
        return self.node_map.get_node(name).value

    def trigger(self, **features: Any) -> None:
        """Enable triggers, with additional ``features``."""
        self.set(TriggerSelector="FrameStart", **features, TriggerMode="On")

    def start(self, buffers: int = 16) -> None:
        self.acquirer.num_buffers = buffers
        self.acquirer.start(run_as_thread=False)

    def stop(self) -> None:
        self.acquirer.stop()

    def next(self, timeout_s: float = PATIENCE_S) -> Got | None:
        """Return the next complete frame and release its buffer; None if it is incomplete or
        missing.
        """
        buffer = self.acquirer.try_fetch(timeout=timeout_s, is_raw=True)
        if buffer is None:
            return None
        try:
            data = np.frombuffer(buffer.raw_buffer, np.uint8)[: buffer.size_filled].copy()
            return Got(
                int(buffer.frame_id),
                int(buffer.timestamp_ns),
                data,
                int(buffer.width),
                int(buffer.height),
            )
        finally:
            buffer.parent.queue_buffer(buffer)

    def take(self, count: int) -> list[Got]:
        """Return a number of consecutive frames."""
        taken = [self.next() for _ in range(count)]
        assert None not in taken
        return [got for got in taken if got is not None]

    def stream_count(self, name: str) -> int:
        return int(self.acquirer.data_streams[0].node_map.get_node(name).value)


@contextlib.contextmanager
def harvester(producer: Path) -> Iterator[Any]:
    """Open the producer and list its cameras."""
    opened = Harvester()
    try:
        opened.add_file(str(producer))
        opened.update()
        yield opened
    finally:
        opened.reset()


@contextlib.contextmanager
def camera(producer: Path, serial: str = "SIM0001") -> Iterator[Bench]:
    """Open one camera in its initial state."""
    handler = signal.getsignal(signal.SIGINT)
    with harvester(producer) as opened:
        acquirer = opened.create({"serial_number": serial})
        signal.signal(signal.SIGINT, handler)  # creating an acquirer replaces the handler of pytest
        try:
            yield Bench(acquirer)
        finally:
            acquirer.destroy()
