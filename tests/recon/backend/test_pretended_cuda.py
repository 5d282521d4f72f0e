"""The pretended GPU refuses mixed devices, counts waits and delays copies, as a real one."""

from __future__ import annotations

import pytest
import torch

from sci_stream.recon.backend.cuda_graph import record_cuda_graph
from sci_stream.recon.backend.transfers import Transfers
from tests.recon.backend.pretended_cuda import CUDA, PretendedCuda


def test_mixed_devices_and_waits_are_seen(gpu: PretendedCuda) -> None:
    there = torch.ones(3, device=CUDA)
    here = torch.ones(3)
    with pytest.raises(RuntimeError, match="same device"):
        there + here
    with pytest.raises(TypeError, match="numpy"):
        there.numpy()
    assert not gpu.waits
    assert float(there.sum()) == 3.0
    assert gpu.waits


def test_copies_between_devices_are_waits_or_asynchronous(gpu: PretendedCuda) -> None:
    host = torch.ones(3).pin_memory()
    there = host.to(CUDA, non_blocking=True)
    torch.empty(3, pin_memory=True).copy_(there, non_blocking=True)
    assert (gpu.up.total(), gpu.down.total(), gpu.waits) == (1, 1, [])
    host.to(CUDA)
    torch.tensor([1.0], device=CUDA)
    there.copy_(host)
    torch.empty(3).copy_(there)
    there.cpu()
    assert (gpu.up.total(), gpu.down.total(), len(gpu.waits)) == (4, 3, 5)


def test_copy_to_the_host_comes_late(gpu: PretendedCuda) -> None:
    """It shows a value that was written after the copy began."""
    there = torch.ones(3, device=CUDA)
    arrival = Transfers(CUDA).download(there)
    there.fill_(2.0)
    assert arrival.arrays()[0].tolist() == [2.0, 2.0, 2.0]
    assert not gpu.waits


def test_recording_repeats_operations_at_their_addresses(gpu: PretendedCuda) -> None:
    x, total = torch.ones(3, device=CUDA), torch.zeros(3, device=CUDA)
    factor = 2.0

    def work() -> None:
        doubled = x * factor
        doubled[1:].add_(1.0)
        total.copy_(doubled)

    replay = record_cuda_graph(CUDA)(work)
    factor = 5.0
    x.fill_(4.0)
    gpu.reset()
    replay()
    assert (gpu.launches, gpu.waits) == (1, [])
    assert total.tolist() == [8.0, 9.0, 9.0]


def test_recording_that_waits_is_refused(gpu: PretendedCuda) -> None:
    x = torch.ones(3, device=CUDA)
    with pytest.raises(RuntimeError, match="synchronizing CUDA operation"):
        record_cuda_graph(CUDA)(lambda: x.mul_(float(x.sum())))
    assert gpu.recordings == 0
    assert float(x.mean()) > 0.0, "waits are allowed again"


def test_replay_that_reads_freed_memory_raises(gpu: PretendedCuda) -> None:
    out = torch.zeros(3, device=CUDA)
    outside = [torch.ones(3, device=CUDA)]
    replay = record_cuda_graph(CUDA)(lambda: out.add_(outside[0]))
    replay()
    outside.clear()
    with pytest.raises(RuntimeError, match="freed memory"):
        replay()
    assert gpu.recordings == 1
