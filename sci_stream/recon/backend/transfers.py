"""Asynchronous copies between host and device, and clocks that do not block computation.

A GPU has copy engines of its own. They work in parallel with computation if copies use page-locked
memory and streams other than the computing one: the next snapshot is copied in and the last video
out while one is solved. torch recycles page-locked buffers once they are unreferenced and their
copy is complete. On a CPU nothing is copied.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor


class Arrival:
    """Tensors that are being copied to the host."""

    def __init__(self, tensors: tuple[Tensor, ...], event: torch.cuda.Event | None = None) -> None:
        self._tensors = tensors
        self._event = event

    @property
    def ready(self) -> bool:
        """Whether they have arrived."""
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    def arrays(self) -> tuple[np.ndarray[Any, Any], ...]:
        """Wait for the copy; the caller owns the arrays."""
        if self._event is not None:
            self._event.synchronize()
        return tuple(tensor.numpy() for tensor in self._tensors)


class Transfers:
    """Copy arrays to a device and results back, with a stream for each direction."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        on_gpu = device.type == "cuda"
        self._up = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]
        self._down = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]

    def upload(self, array: np.ndarray[Any, Any]) -> Tensor:
        """Return an array on the device. Later computations wait for the copy; the host does not.

        On a CPU the tensor shares the array's memory.
        """
        host = torch.from_numpy(array)
        if self._up is None:
            return host
        with torch.cuda.stream(self._up):
            tensor = host.pin_memory().to(self._device, non_blocking=True)
        computing = torch.cuda.current_stream(self._device)
        computing.wait_stream(self._up)
        # Otherwise torch may recycle the memory as soon as the copying stream is done, while the
        # solve still reads it.
        tensor.record_stream(computing)
        return tensor

    def download(self, *tensors: Tensor) -> Arrival:
        """Start copying tensors to the host after all work issued so far.

        On a CPU they are returned as they are; the caller must not modify them afterwards.
        """
        if self._down is None:
            return Arrival(tensors)
        self._down.wait_stream(torch.cuda.current_stream(self._device))
        hosts = []
        with torch.cuda.stream(self._down):
            for tensor in tensors:
                host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                hosts.append(host.copy_(tensor, non_blocking=True))
                tensor.record_stream(self._down)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._down)
        return Arrival(tuple(hosts), event)


class Stopwatch:
    """Measure the time between two points of a device's work without waiting at either."""

    def __init__(self, device: torch.device) -> None:
        self._events: list[torch.cuda.Event] | None = [] if device.type == "cuda" else None
        self._device = device
        self._read_s: list[float] = []

    def lap(self) -> None:
        """Take the time: now on a CPU, on a GPU when its queue reaches this point."""
        if self._events is None:
            self._read_s.append(time.perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        self._events.append(event)

    def seconds(self) -> float:
        """Return the time between the last two laps; waits for the device to reach them."""
        if self._events is None:
            return self._read_s[-1] - self._read_s[-2]
        self._events[-1].synchronize()
        return float(self._events[-2].elapsed_time(self._events[-1])) / 1e3
