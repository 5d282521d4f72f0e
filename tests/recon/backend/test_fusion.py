"""Operations fused by torch's compiler, and what happens without one.

Here it only traces; nothing is generated.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from sci_stream.model import Snapshot
from sci_stream.optics.calibration import Calibration
from sci_stream.recon.algorithms.gap import data_step
from sci_stream.recon.backend import cuda_graph
from sci_stream.recon.backend.cuda_graph import Replay
from sci_stream.recon.backend.fusion import Fusion, compile_on_gpu
from sci_stream.recon.denoisers.tv import TvDenoiser
from sci_stream.recon.engine import Engine
from sci_stream.recon.settings import default_settings

CPU = torch.device("cpu")


class CountedCompiler:
    """The compiler of fused operations, which generates nothing and counts the traces."""

    def __init__(self) -> None:
        self.versions = 0

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return compile_on_gpu(function, backend=self._as_traced)

    def _as_traced(self, graph: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
        self.versions += 1
        return graph.forward


def test_function_is_compiled_only_while_on() -> None:
    calls: list[str] = []

    def compiler(function: Callable[..., Any]) -> Callable[..., Any]:
        def compiled(x: int) -> int:
            calls.append("compiled")
            return int(function(x))

        return compiled

    fusion = Fusion(compiler)
    twice = fusion(lambda x: 2 * x)
    assert (twice(2), calls) == (4, [])
    fusion.on = True
    assert (twice(2), calls) == (4, ["compiled"])


def test_missing_compiler_leaves_the_function_as_it_is() -> None:
    def compiler(_function: Callable[..., Any]) -> Callable[..., Any]:
        def broken(*_args: Any) -> Any:
            raise RuntimeError(
                "Failed to find C compiler.\nPlease specify via CC environment variable."
            )

        return broken

    fusion = Fusion(compiler)
    twice = fusion(lambda x: 2 * x)
    fusion.on = True
    assert twice(2) == 4
    assert not fusion.on
    assert fusion.fault == "operations are not fused: Failed to find C compiler."


def test_fault_has_the_reason_of_the_compiler() -> None:
    def broken(_graph: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
        raise ValueError("no kernel for this device")

    fusion = Fusion(functools.partial(compile_on_gpu, backend=broken))
    twice = fusion(lambda x: 2 * x)
    fusion.on = True
    assert twice(torch.ones(2)).tolist() == [2.0, 2.0]
    assert fusion.fault == "operations are not fused: no kernel for this device"


def test_out_of_memory_is_no_fault_of_the_compiler() -> None:
    def compiler(_function: Callable[..., Any]) -> Callable[..., Any]:
        def full(*_args: Any) -> Any:
            raise torch.OutOfMemoryError("out of memory")

        return full

    fusion = Fusion(compiler)
    twice = fusion(lambda x: 2 * x)
    fusion.on = True
    with pytest.raises(torch.OutOfMemoryError):
        twice(2)
    assert not fusion.fault


def test_nine_sizes_are_nine_versions() -> None:
    """torch's own limit is eight, after which it calls a function as it is, in silence."""
    compiled = CountedCompiler()
    fusion = Fusion(compiled)
    twice = fusion(lambda x: 2 * x)
    fusion.on = True
    for size in range(1, 10):
        torch.testing.assert_close(twice(torch.ones(size, 3)), torch.full((size, 3), 2.0))
    assert compiled.versions == 9
    assert fusion.fault == ""


def test_version_beyond_the_limit_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sci_stream.recon.backend.fusion._MAX_VERSIONS", 2)
    fusion = Fusion(CountedCompiler())
    twice = fusion(lambda x: 2 * x)
    fusion.on = True
    for size in range(1, 5):
        torch.testing.assert_close(twice(torch.ones(size, 3)), torch.full((size, 3), 2.0))
    assert not fusion.on
    assert "operations are not fused" in fusion.fault


def test_noise_of_a_calibration_needs_no_new_version(
    make_calibration: Callable[..., Calibration],
) -> None:
    compiled = CountedCompiler()
    results = []
    for noise_dn in (0.01, 0.02):
        calibration = dataclasses.replace(
            make_calibration(4, 16, 20), read_noise_dn=noise_dn, gain_e_per_dn=1 / noise_dn
        )
        settings = default_settings(CPU, "tv")
        engine = Engine(calibration, TvDenoiser(1), CPU, settings)
        y = torch.full((16, 20), 2.0)
        engine.prepare(y)  # what follows from the masks alone is computed once
        noise = compiled(engine.prepare)(y).noise
        torch.testing.assert_close(noise, engine.prepare(y).noise)
        results.append(noise)
    assert compiled.versions == 1
    assert (results[1] > results[0]).all()


def test_fused_solve_that_differs_is_not_used(
    make_video: Callable[..., np.ndarray],
    make_calibration: Callable[..., Calibration],
    expose: Callable[..., Snapshot],
) -> None:
    def compiler(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrong(*args: Any) -> Any:
            x, y_acc = function(*args)
            return x + 0.05, y_acc

        return wrong if function is data_step else function

    calibration = make_calibration()
    settings = dataclasses.replace(default_settings(CPU, "tv"), iterations=6)
    engine = Engine(calibration, TvDenoiser(1), CPU, settings, compiler=compiler)
    engine.warm_up()
    assert "operations are not fused: fused solves differ from plain ones by" in engine.fault
    snapshot = expose(calibration, make_video())
    plain = Engine(calibration, TvDenoiser(1), CPU, settings).reconstruct(snapshot)[0]
    np.testing.assert_array_equal(engine.reconstruct(snapshot)[0], plain)


def _must_not_record(_work: Replay) -> Replay:
    raise AssertionError("a solve is recorded")


def _repeat(work: Replay) -> Replay:
    work()
    return work


@pytest.mark.parametrize("why", ["a large video", "cuda_graphs = false"])
def test_solve_that_is_not_recorded_is_fused(
    why: str, make_calibration: Callable[..., Calibration], monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "a large video":
        monkeypatch.setattr(cuda_graph, "MAX_PIXELS", 100)
    calls: list[str] = []

    def compiler(function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any) -> Any:
            calls.append(function.__name__)
            return function(*args)

        return noted

    engine = Engine(
        make_calibration(),
        TvDenoiser(1),
        CPU,
        dataclasses.replace(default_settings(CPU, "tv"), iterations=6),
        recorder=_must_not_record,
        compiler=compiler,
        cuda_graphs=why == "a large video",
    )
    engine.warm_up()
    assert engine.recordings == 0
    assert set(calls) == {"prepare", "_start", "data_step"}


@pytest.mark.slow
@pytest.mark.timeout(900)
# torch itself uses it where Inductor is loaded.
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_solve_by_the_processors_compiler_is_the_plain_one(
    make_calibration: Callable[..., Calibration],
) -> None:
    """The engine compares them itself when it warms up."""
    engine = Engine(
        make_calibration(4, 48, 56),
        TvDenoiser(1),
        CPU,
        dataclasses.replace(default_settings(CPU, "tv"), iterations=6, warm_start=True),
        compiler=compile_on_gpu,
    )
    engine.warm_up()
    assert engine.fault == ""


@pytest.mark.slow
def test_stages_of_a_solve_are_traced_whole_and_give_the_same(
    make_video: Callable[..., np.ndarray],
    make_calibration: Callable[..., Calibration],
    expose: Callable[..., Snapshot],
) -> None:
    """A break in the trace would leave the operations after it as they are."""
    calibration = make_calibration(4, 48, 56)
    settings = dataclasses.replace(default_settings(CPU, "tv"), iterations=6, warm_start=True)
    compiler = functools.partial(compile_on_gpu, backend="eager")
    plain = Engine(calibration, TvDenoiser(1), CPU, settings)
    fused = Engine(calibration, TvDenoiser(1), CPU, settings, recorder=_repeat, compiler=compiler)
    shots = [expose(calibration, make_video(4, 48, 56), seq=seq) for seq in range(2)]
    fused.reconstruct(shots[0])
    fused.forget()
    fused._graphs.clear()
    fused._fusion.on = True
    for shot in shots:
        video, report = fused.reconstruct(shot)
        wanted, expected = plain.reconstruct(shot)
        assert report.start_reason == expected.start_reason
        np.testing.assert_allclose(video, wanted, atol=1e-4)
    assert fused.fault == ""
    assert fused._fusion.on
