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
from sci_stream.recon.backend.fusion import Fusion
from sci_stream.recon.denoisers.tv import TvDenoiser
from sci_stream.recon.engine import Engine
from sci_stream.recon.settings import default_settings
from tests.recon.backend.stand_in import Device

CPU = torch.device("cpu")


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


@pytest.mark.slow
def test_stages_of_a_solve_are_traced_whole_and_give_the_same(
    make_video: Callable[..., np.ndarray],
    make_calibration: Callable[..., Calibration],
    expose: Callable[..., Snapshot],
) -> None:
    """A break in the trace would leave the operations after it as they are."""
    calibration = make_calibration(4, 48, 56)
    settings = dataclasses.replace(default_settings(CPU, "tv"), iterations=6, warm_start=True)
    compiler = functools.partial(torch.compile, dynamic=False, fullgraph=True, backend="eager")
    plain = Engine(calibration, TvDenoiser(1), CPU, settings)
    fused = Engine(
        calibration, TvDenoiser(1), CPU, settings, recorder=Device().record, compiler=compiler
    )
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
