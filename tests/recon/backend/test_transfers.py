"""Copies that run in parallel with computation, and clocks that do not block it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sci_stream.recon.backend.transfers import RunAheadClock, Stopwatch, Transfers, solve_clock

DEVICES = [
    torch.device("cpu"),
    pytest.param(
        torch.device("cuda"),
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")],
    ),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.bool_])
def test_upload_and_download_round_trip(device: torch.device, dtype: type[np.generic]) -> None:
    transfers = Transfers(device)
    arrays = [(np.random.default_rng(n).random((31, 17)) * 2).astype(dtype) for n in range(5)]
    with torch.inference_mode():
        uploads = [transfers.upload(array) for array in arrays]
        arrivals = [transfers.download(tensor, tensor[0].clone()) for tensor in uploads]
    for array, arrival in zip(arrays, arrivals, strict=True):
        whole, row = arrival.arrays()
        assert arrival.ready
        np.testing.assert_array_equal(whole, array)
        np.testing.assert_array_equal(row, array[0])


@pytest.mark.parametrize("device", DEVICES)
def test_download_waits_for_its_computation(device: torch.device) -> None:
    transfers = Transfers(device)
    with torch.inference_mode():
        x = transfers.upload(np.full((256, 256), 0.5, np.float32))
        for _ in range(50):
            x = (x @ x) / 64
        (result,) = transfers.download(x).arrays()
    np.testing.assert_allclose(result, np.full((256, 256), result[0, 0]))
    assert result[0, 0] > 0


@pytest.mark.parametrize("device", DEVICES)
def test_stopwatch_measures_between_laps(device: torch.device) -> None:
    watch = Stopwatch(device)
    for _ in range(3):
        watch.lap()
    assert 0 <= watch.seconds() < 10
    assert solve_clock(device)() <= solve_clock(device)()


class Queue:
    """A device that works through a queue while its host runs ahead: seconds on the host's clock."""

    def __init__(self, iteration_s: float) -> None:
        self.iteration_s = iteration_s
        self.host_s = 100.0
        self.busy_until_s = 100.0
        self.idle_s = 0.0

    def ask(self, preparing_s: float) -> None:
        """Let the host prepare an iteration, which the device executes in its turn."""
        self.host_s += preparing_s
        self.idle_s += max(0.0, self.host_s - self.busy_until_s)
        self.busy_until_s = max(self.busy_until_s, self.host_s) + self.iteration_s

    def mark(self) -> Mark:
        return Mark(self)


class Mark:
    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.reached_s = 0.0

    def record(self) -> None:
        self.reached_s = max(self._queue.busy_until_s, self._queue.host_s)

    def synchronize(self) -> None:
        self._queue.host_s = max(self._queue.host_s, self.reached_s)

    def elapsed_time(self, end_event: Mark) -> float:
        return 1e3 * (end_event.reached_s - self.reached_s)


def test_run_ahead_clock_predicts_completion_with_busy_device() -> None:
    device = Queue(iteration_s=1.0)
    clock = RunAheadClock(device.mark, lambda: device.host_s)
    began = clock()
    found = []
    for k in range(8):
        device.ask(preparing_s=0.1)
        if k == 2:
            device.idle_s = 0.0  # the clock waits for the first iterations: their duration is unknown
        found.append(clock() - began)
    ends = [1.1, 2.2, 3.2, 4.2, 5.2, 6.2, 7.2, 8.2]
    assert found == pytest.approx(ends, abs=0.15)
    assert device.idle_s == pytest.approx(0.0)
    # The host is one iteration ahead and no more.
    assert device.busy_until_s - device.host_s == pytest.approx(1.0, abs=0.15)
