"""Recorded work, replayed from fixed memory, equals the work itself."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

from sci_stream.errors import CaptureError
from sci_stream.optics.forward import forward, gram_diag, inverse_gram
from sci_stream.ports import Recordable
from sci_stream.recon.algorithms.gap import CorrelatedResidual, Problem, cold_start, gap
from sci_stream.recon.algorithms.noise_level import on_device
from sci_stream.recon.algorithms.schedule import sigma_levels
from sci_stream.recon.backend.cuda_graph import (
    Graphs,
    Replay,
    overwrite,
    record_cuda_graph,
)
from sci_stream.recon.backend.half_precision import Precision
from sci_stream.recon.denoisers.ffdnet import FfdnetDenoiser
from sci_stream.recon.denoisers.registry import IdentityDenoiser
from sci_stream.recon.denoisers.tv import TvDenoiser
from sci_stream.recon.denoisers.variants import shipped_weights
from sci_stream.recon.denoisers.weights import load_ffdnet
from tests.recon.backend.pretended_cuda import CUDA, PretendedCuda

CPU = torch.device("cpu")
PHI = torch.rand(2, 4, 18, 15, generator=torch.Generator().manual_seed(9))


def by_hand(work: Callable[[], None]) -> Replay:
    """Repeat work in place of its operations, where operations are not the subject."""
    work()  # as a graph's warm-up does
    return work


def lite(device: torch.device = CPU, precision: Precision = Precision.FLOAT32) -> FfdnetDenoiser:
    return FfdnetDenoiser(load_ffdnet(shipped_weights("ffdnet-lite")), device, precision)


def measured(seed: int) -> torch.Tensor:
    return forward(PHI, torch.rand(PHI.shape, generator=torch.Generator().manual_seed(seed)))


def spread_evenly(residual: torch.Tensor, _measured: torch.Tensor) -> torch.Tensor:
    """Put the same share of a residual into each of four frames."""
    return (0.1 * residual).unsqueeze(-3).expand(PHI.shape).clone()


def on_gpu(value: Any) -> Any:
    """Return tensors on the pretended GPU, and all else as it is."""
    return tree_map(lambda leaf: leaf.to(CUDA) if isinstance(leaf, torch.Tensor) else leaf, value)


def solver(
    denoise: Recordable, phi: torch.Tensor, **how: Any
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return a solve that depends on y and the first σ."""
    r_inv = inverse_gram(gram_diag(phi))

    def prior(x: torch.Tensor, sigma: torch.Tensor, *relative: torch.Tensor) -> torch.Tensor:
        return denoise(x.flatten(0, 1), sigma, *relative).view(x.shape)

    def solve(y: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        problem = Problem(y, phi, r_inv, (prior,), **how)
        *_, last = gap(cold_start(y, phi, r_inv), problem, sigma_levels(first, first / 4, 5))
        found: torch.Tensor = last
        return found

    return solve


@pytest.mark.parametrize(
    "make", [lambda _device: TvDenoiser(), lambda _device: IdentityDenoiser(), lite]
)
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"relaxation": 1.5},
        {"relaxation": 0.0},
        {"noise_ratio": torch.full((2, 18, 15), 0.001)},
        {"correlated": CorrelatedResidual(spread_evenly, torch.full((2, 18, 15), 0.3), 3)},
    ],
)
def test_recorded_solve_equals_the_plain_one(
    make: Callable[[torch.device], Recordable], how: dict[str, Any], gpu: PretendedCuda
) -> None:
    """One recording serves all snapshots and all levels."""
    graphs = Graphs(record_cuda_graph(CUDA))
    solve = solver(make(CUDA), on_gpu(PHI), **on_gpu(how))
    plain = solver(make(CPU), PHI, **how)
    for seed, first in enumerate((0.2, 0.1, 0.3)):
        arguments = measured(seed), torch.tensor(first)
        video = graphs.call("solve", solve, *on_gpu(arguments))
        torch.testing.assert_close(video.cpu(), plain(*arguments))
    assert (len(graphs), gpu.recordings) == (1, 1)
    assert not graphs.fault


def test_recorded_solve_takes_a_noise_map(gpu: PretendedCuda) -> None:
    graphs, relative = Graphs(record_cuda_graph(CUDA)), torch.linspace(0.5, 2.0, 15)
    solve = solver(lite(CUDA), on_gpu(PHI), relative=on_gpu(relative.expand(2, 18, 15)))
    arguments = on_gpu((measured(1), torch.tensor(0.2)))
    video = graphs.call("solve", solve, *arguments).cpu()
    torch.testing.assert_close(video, solve(*arguments).cpu())
    assert not torch.allclose(video, solver(lite(CUDA), on_gpu(PHI))(*arguments).cpu())
    assert gpu.recordings == 1


def test_recordings_share_memory_and_give_new_tensors() -> None:
    graphs = Graphs(by_hand)
    one = graphs.call("one", lambda x: x + 1, torch.ones(3))
    other = graphs.call("other", lambda x: x + 2, torch.ones(3))
    assert len(graphs._memory) == 2, "an input and an output"
    assert (one.tolist(), other.tolist()) == ([2.0] * 3, [3.0] * 3)
    assert graphs.call("one", lambda x: x + 1, torch.zeros(3)).tolist() == [1.0] * 3


def test_denoiser_that_reads_its_level_cannot_be_recorded(gpu: PretendedCuda) -> None:
    denoise = lite(CUDA, Precision.HALF)
    assert denoise.recordable
    denoise.half_from_sigma = 0.1
    assert not denoise.recordable
    graphs = Graphs(record_cuda_graph(CUDA))
    solve, arguments = solver(denoise, on_gpu(PHI)), on_gpu((measured(0), torch.tensor(0.2)))
    video = graphs.call("solve", solve, *arguments)
    torch.testing.assert_close(video.cpu(), solve(*arguments).cpu())
    assert "called a synchronizing CUDA operation" in graphs.fault
    assert gpu.recordings == 0


def test_recorded_function_reads_the_copies_of_its_arguments() -> None:
    graphs, calls = Graphs(by_hand), []

    def halved(x: torch.Tensor, y: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
        calls.append(1)
        return x / 2, None if y is None else y + 1

    for value in (1.0, 3.0):
        half, more = graphs.call("key", halved, torch.full((2,), value), torch.full((3,), value))
        assert half.tolist() == [value / 2] * 2
        assert more is not None
        assert more.tolist() == [value + 1] * 3
    assert graphs.call("key", halved, torch.ones(2), None)[1] is None
    assert len(graphs) == 2, "one for each set of shapes"
    graphs.give_up("memory ran out")
    assert graphs.call("key", halved, torch.ones(2), None)[0].tolist() == [0.5, 0.5]


def test_recording_out_of_memory_falls_back_to_steps() -> None:
    made: list[weakref.ref[torch.Tensor]] = []

    def doubled(x: torch.Tensor) -> torch.Tensor:
        found = x * 2
        made.append(weakref.ref(found))
        if len(made) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        assert made[0]() is None
        return found

    graphs = Graphs(by_hand)
    assert graphs.call("key", doubled, torch.ones(2)).tolist() == [2.0, 2.0]
    assert graphs.fault == "solves are not recorded: CUDA out of memory"


def test_failed_capture_ends_the_use_of_the_device() -> None:
    """torch's allocator may be broken then, so the engine must not continue stepwise."""

    def fails(_work: Callable[[], None]) -> Replay:
        raise CaptureError("Capturing a CUDA graph failed")

    with pytest.raises(CaptureError):
        Graphs(fails).call("key", torch.neg, torch.ones(2))


def test_overwrite_copies_tensors_of_an_object_in_place() -> None:
    class Holder:
        def __init__(self, value: float) -> None:
            self.own, self.number = torch.full((2,), value), value
            self.parts = (torch.full((1,), value), "text")

        @functools.cached_property
        def late(self) -> torch.Tensor:
            return self.own + 1

    held, fresh = Holder(1.0), Holder(2.0)
    addresses = [tensor.data_ptr() for tensor in (held.own, held.parts[0], held.late)]
    overwrite(held, fresh)
    assert [tensor.data_ptr() for tensor in (held.own, held.parts[0], held.late)] == addresses
    assert (held.own.tolist(), held.parts[0].tolist(), held.late.tolist()) == (
        [2.0, 2.0],
        [2.0],
        [3.0, 3.0],
    )


def test_unrecordable_work_is_done_stepwise_with_reason() -> None:
    def refuse(_work: Callable[[], None]) -> Replay:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    graphs = Graphs(refuse)
    assert graphs.call("key", torch.neg, torch.ones(2)).tolist() == [-1.0, -1.0]
    assert (
        graphs.fault == "solves are not recorded: operation not permitted when stream is capturing"
    )
    assert len(graphs) == 0


def test_noise_level_is_read_on_the_device() -> None:
    tensor = torch.tensor(0.5, dtype=torch.float64)
    assert torch.equal(on_device(tensor, torch.zeros(2)), torch.tensor(0.5))
    assert torch.equal(
        on_device(0.25, torch.zeros(2, dtype=torch.float64)),
        torch.tensor(0.25, dtype=torch.float64),
    )
    each = on_device(
        torch.rand(2, 1, 1), torch.empty(2, 4, 4, device="meta")
    )  # from the CPU, where a level is read
    assert (each.device.type, each.shape) == ("meta", (2, 1, 1))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("precision", list(Precision))
def test_cuda_graph_replays_the_solve(precision: Precision) -> None:
    cuda = torch.device("cuda")
    with torch.inference_mode():
        for denoise in (TvDenoiser(), lite(cuda, precision)):
            graphs, solve = (
                Graphs(record_cuda_graph(cuda)),
                solver(denoise, PHI.to(cuda), relaxation=1.5),
            )
            for seed in range(3):
                y, sigma = measured(seed).to(cuda), torch.tensor(0.2 / (1 + seed), device=cuda)
                torch.testing.assert_close(
                    graphs.call("solve", solve, y, sigma), solve(y, sigma), rtol=1e-3, atol=1e-3
                )
            assert graphs.fault == ""
            assert len(graphs) == 1
