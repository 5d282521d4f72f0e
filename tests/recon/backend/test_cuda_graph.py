"""Recorded iterations, replayed from fixed memory, equal plain ones.

Without a GPU the recorder stands in for the graph: it does the recorded work again, on the same fixed tensors.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from sci_stream.errors import CaptureError
from sci_stream.optics.forward import forward, gram_diag, inverse_gram
from sci_stream.ports import RecordableDenoiser
from sci_stream.recon.algorithms.admm import admm, admm_step
from sci_stream.recon.algorithms.gap import (
    CorrelatedResidual,
    Denoise,
    PosteriorMean,
    Problem,
    Step,
    cold_start,
    gap,
    gap_step,
)
from sci_stream.recon.algorithms.noise_level import NoiseLevel, local_sigma, on_device, scaled, sigma_map
from sci_stream.recon.backend.cuda_graph import (
    MOST_PIXELS,
    CaptureGuard,
    CudaGraphStep,
    Graphs,
    Recorder,
    Replay,
    UnrecordableError,
    overwrite,
    record_cuda_graph,
)
from sci_stream.recon.denoisers.ffdnet import FfdnetDenoiser
from sci_stream.recon.denoisers.half_precision import Precision
from sci_stream.recon.denoisers.registry import IdentityDenoiser
from sci_stream.recon.denoisers.tv import TvDenoiser
from sci_stream.recon.denoisers.variants import shipped_weights
from sci_stream.recon.denoisers.weights import load_ffdnet
from tests.recon.backend.test_memory import Tracker

CPU = torch.device("cpu")
SIGMAS = [0.2 * 0.8**k for k in range(7)]


class Recorded:
    """A recorded step with its recordings."""

    def __init__(self, recorder: Recorder, step: Step = gap_step) -> None:
        self.graphs = Graphs(recorder)
        self.step = CudaGraphStep(self.graphs, step)


def by_hand(work: Callable[[], None]) -> Replay:
    work()  # as a graph's warm-up does
    return work


class Example:
    def __init__(self, seed: int = 0, device: torch.device = CPU) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.phi = torch.rand(4, 18, 15, generator=torch.Generator().manual_seed(9)).to(device)
        self.y = forward(self.phi, torch.rand(4, 18, 15, generator=generator).to(device))
        self.r_inv = inverse_gram(gram_diag(self.phi))

    def problem(self, denoise: Denoise, **how: Any) -> Problem:
        return Problem(self.y, self.phi, self.r_inv, (denoise,), **how)

    def solve(self, denoise: RecordableDenoiser, step: Step, phi: torch.Tensor, **how: Any) -> list[torch.Tensor]:
        problem = self.problem(denoise, **how)._replace(phi=phi)  # recordings know masks by their place
        iterates = gap(cold_start(self.y, phi, self.r_inv), problem, SIGMAS, step)
        return [d.clone() for d in iterates]  # a recorded step overwrites its estimates


def lite(device: torch.device = CPU, precision: Precision = Precision.FLOAT32) -> FfdnetDenoiser:
    return FfdnetDenoiser(load_ffdnet(shipped_weights("ffdnet-lite")), device, precision)


@pytest.mark.parametrize("make", [TvDenoiser, IdentityDenoiser, lite])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"relaxation": 1.5},
        {"relaxation": 0.0},
        {"noise_ratio": torch.full((18, 15), 0.001)},
        {"relative": torch.linspace(0.5, 2.0, 15).expand(18, 15)},
    ],
)
def test_recorded_estimates_equal_plain_iterations(make: Callable[[], RecordableDenoiser], how: dict[str, Any]) -> None:
    denoise, example = make(), Example()
    recorded = Recorded(by_hand)
    for got, wanted in zip(
        example.solve(denoise, recorded.step, example.phi, **how),
        example.solve(denoise, gap_step, example.phi, **how),
        strict=True,
    ):
        torch.testing.assert_close(got, wanted)
    assert len(recorded.graphs) == 1
    assert not recorded.graphs.fault


def test_correlated_iterations_are_recorded() -> None:
    """One recording for these iterations, one for the following ones, and one for another correlated step."""
    denoise, example = TvDenoiser(), Example()
    recorded = Recorded(by_hand)
    for factor in (0.4, 0.4, 0.7):
        posterior_mean = partial(spread_evenly, factor)
        for where in (0.3, 1.0):
            how = {
                "correlated": CorrelatedResidual(
                    EXPLAIN.setdefault(factor, posterior_mean), torch.full((18, 15), where), 3
                )
            }
            for got, wanted in zip(
                example.solve(denoise, recorded.step, example.phi, **how),
                example.solve(denoise, gap_step, example.phi, **how),
                strict=True,
            ):
                torch.testing.assert_close(got, wanted)
            assert len(recorded.graphs) == 2 + (factor == 0.7)
    assert not recorded.graphs.fault


EXPLAIN: dict[float, PosteriorMean] = {}


def spread_evenly(factor: float, residual: torch.Tensor, measured: torch.Tensor) -> torch.Tensor:
    """Put the same share of a residual into each of four frames."""
    return (factor / 4 * residual * measured).unsqueeze(-3).expand(4, *residual.shape).clone()


def test_recording_serves_all_snapshots_of_a_calibration() -> None:
    denoise = TvDenoiser()
    recorded, phi = Recorded(by_hand), Example().phi
    for seed in range(4):
        example = Example(seed)
        got = example.solve(denoise, recorded.step, phi, relaxation=1.5)[-1]
        torch.testing.assert_close(got, example.solve(denoise, gap_step, phi, relaxation=1.5)[-1])
    assert len(recorded.graphs) == 1


def test_each_relaxation_and_graph_key_has_its_recording() -> None:
    denoise = lite(precision=Precision.HALF)
    denoise.half_from_sigma = 0.1
    recorded, example = Recorded(by_hand), Example()
    for how in ({"relaxation": 1.5}, {"relaxation": 0.0}, {"relaxation": 1.5}):
        got = example.solve(denoise, recorded.step, example.phi, **how)
        for mine, wanted in zip(got, example.solve(denoise, gap_step, example.phi, **how), strict=True):
            torch.testing.assert_close(mine, wanted)
    assert len(recorded.graphs) == 4


def test_observer_receives_the_same_estimates() -> None:
    denoise, example = TvDenoiser(), Example()
    seen: list[list[tuple[torch.Tensor, torch.Tensor]]] = []
    for step in (gap_step, Recorded(by_hand).step):
        pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        start = cold_start(example.y, example.phi, example.r_inv)
        observe = partial(lambda pairs, x, d: pairs.append((x, d)), pairs)
        iterates = gap(start, example.problem(denoise, relaxation=1.5, observe=observe), SIGMAS, step)
        copies = [d.clone() for d in iterates]
        assert all(torch.equal(d, copy) for (_, d), copy in zip(pairs, copies, strict=True))
        seen.append(pairs)
    for (x, d), (wanted_x, wanted_d) in zip(seen[1], seen[0], strict=True):
        torch.testing.assert_close(x, wanted_x)
        torch.testing.assert_close(d, wanted_d)


def test_recorded_admm_equals_plain_iterations() -> None:
    example, recorded = Example(), Recorded(by_hand, admm_step)
    start = cold_start(example.y, example.phi, example.r_inv)
    for noise_ratio in (None, torch.full((18, 15), 0.001)):
        problem = example.problem(TvDenoiser(), gamma=0.3, noise_ratio=noise_ratio)
        got, wanted = ([v.clone() for v in admm(start, problem, SIGMAS, step)] for step in (recorded.step, admm_step))
        for mine, expected in zip(got, wanted, strict=True):
            torch.testing.assert_close(mine, expected)
    assert not recorded.graphs.fault


def test_recorded_step_does_not_modify_the_start() -> None:
    example = Example()
    start = cold_start(example.y, example.phi, example.r_inv)
    before = start.clone()
    *_, last = gap(start, example.problem(TvDenoiser()), SIGMAS, Recorded(by_hand).step)
    assert torch.equal(start, before)
    assert not torch.equal(last, before)


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.any()),
        lambda x: x.nonzero(),
        lambda x: x[x > 0.5],
        lambda x: x.new_tensor([1.0, 2.0]),
        lambda x: x + torch.tensor([1.0]),
        lambda x: x.masked_select(x > 0.5),
        lambda x: torch.where(x > 0.5),
        lambda x: torch.allclose(x, x),
        lambda x: x.unique(),
        lambda x: x.repeat_interleave((x > 0.5).long()),
        lambda x: x.to("meta"),
        lambda x: torch.empty((), device="meta").copy_(x[0]),
        lambda x: torch.linalg.solve(x.diag() + 1, x),
        lambda x: torch.linalg.solve_ex(x.diag() + 1, x),
        lambda x: torch.linalg.eigh(x.diag()),
    ],
)
@pytest.mark.parametrize("inference", [False, True])
def test_capture_guard_refuses_what_a_graph_cannot_hold(
    inference: bool, work: Callable[[torch.Tensor], object]
) -> None:
    """Also in inference mode, in which engines solve and torch passes on other operations."""
    x = torch.rand(8)
    with torch.inference_mode(inference), pytest.raises(UnrecordableError), CaptureGuard():
        work(x)
    graphs = Graphs(by_hand)

    def recorded() -> None:
        work(x)

    assert not graphs.record("key", recorded)
    assert "iterations are not recorded: aten." in graphs.fault


def test_capture_guard_holds_what_the_work_reads_from_outside() -> None:
    outside, scale = torch.rand(8), torch.rand(())
    with CaptureGuard() as guard:
        made = outside * scale
        made.add_(outside[2:3]).mul_(torch.arange(8))
    assert {tensor.data_ptr() for tensor in guard.held} == {outside.data_ptr(), scale.data_ptr()}


def test_capture_guard_holds_nothing_that_the_work_makes() -> None:
    """A whole solve passes under it: with all that its layers make, 512×512×22 would take a hundred gigabytes."""
    outside = torch.rand(1000)
    with torch.inference_mode(), Tracker() as tracker, CaptureGuard():
        found = outside
        for _ in range(20):
            found = found * 0.5
    assert tracker.peak <= 3 * 4000


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
    assert graphs.fault == "iterations are not recorded: CUDA out of memory"


def test_failed_capture_ends_the_use_of_the_device() -> None:
    """torch's allocator may be broken then, so the engine must not continue stepwise."""

    def fails(_work: Callable[[], None]) -> Replay:
        raise CaptureError("Capturing a CUDA graph failed")

    example = Example()
    with pytest.raises(CaptureError):
        example.solve(TvDenoiser(), Recorded(fails).step, example.phi)


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
    assert (held.own.tolist(), held.parts[0].tolist(), held.late.tolist()) == ([2.0, 2.0], [2.0], [3.0, 3.0])


def test_unrecordable_work_is_done_stepwise_with_reason() -> None:
    def refuse(_work: Callable[[], None]) -> Replay:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    denoise, example = TvDenoiser(), Example()
    recorded = Recorded(refuse)
    got = example.solve(denoise, recorded.step, example.phi)
    assert torch.equal(got[-1], example.solve(denoise, gap_step, example.phi)[-1])
    assert recorded.graphs.fault == "iterations are not recorded: operation not permitted when stream is capturing"
    assert len(recorded.graphs) == 0


def test_very_large_videos_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1920 * 1080 * 24 < MOST_PIXELS < 3840 * 1644 * 48
    monkeypatch.setattr("sci_stream.recon.backend.cuda_graph.MOST_PIXELS", 100)
    denoise, example = TvDenoiser(), Example()
    recorded = Recorded(by_hand)
    example.solve(denoise, recorded.step, example.phi)
    assert len(recorded.graphs) == 0
    assert not recorded.graphs.fault


def test_noise_level_has_a_copy_on_the_device() -> None:
    tensor = torch.tensor(0.5)
    level = NoiseLevel(0.25, tensor)
    assert level == 0.25
    assert level * 4 == 1.0
    assert on_device(level, torch.zeros(2)) is tensor
    assert torch.equal(on_device(0.25, torch.zeros(2, dtype=torch.float64)), torch.tensor(0.25, dtype=torch.float64))


def test_noise_level_may_vary_over_pixels() -> None:
    relative, tensor, like = torch.tensor([[[0.5, 2.0]]]), torch.tensor(0.1), torch.zeros(3, 1, 2)
    level = local_sigma(NoiseLevel(0.1, tensor), relative)
    assert (level, on_device(level, like)) == (0.1, tensor)
    torch.testing.assert_close(sigma_map(level, like), torch.tensor([[[0.05, 0.2]]]))
    torch.testing.assert_close(sigma_map(scaled(local_sigma(0.1, relative), 2.0), like), torch.tensor([[[0.1, 0.4]]]))
    assert sigma_map(level * 1.0, like).ndim == 0, "a plain number is uniform"
    assert local_sigma(0.1, None) == 0.1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("precision", list(Precision))
def test_cuda_graph_replays_the_iteration(precision: Precision) -> None:
    cuda = torch.device("cuda")
    with torch.inference_mode():
        for denoise in (TvDenoiser(), lite(cuda, precision)):
            recorded, phi = Recorded(record_cuda_graph(cuda)), Example(device=cuda).phi
            for seed in range(3):
                example = Example(seed, cuda)
                got = example.solve(denoise, recorded.step, phi, relaxation=1.5)
                wanted = example.solve(denoise, gap_step, phi, relaxation=1.5)
                for mine, other in zip(got, wanted, strict=True):
                    torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-3)
            assert recorded.graphs.fault == ""
            assert len(recorded.graphs) >= 1


def test_released_recordings_free_memory_and_are_not_remade() -> None:
    denoise, example = TvDenoiser(), Example()
    recorded = Recorded(by_hand)
    before = example.solve(denoise, recorded.step, example.phi)[-1]
    assert len(recorded.graphs) == 1
    assert recorded.graphs.give_up("memory ran out")
    after = example.solve(denoise, recorded.step, example.phi)[-1]
    assert len(recorded.graphs) == 0
    assert recorded.graphs.fault == "iterations are not recorded: memory ran out"
    assert not recorded.graphs.give_up("memory ran out"), "nothing is left to release"
    torch.testing.assert_close(after, before)
