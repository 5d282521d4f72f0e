"""The linear half of an iteration, with torch operations and as one kernel."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sci_stream.optics import forward as optics
from sci_stream.optics.forward import (
    _fused,
    accumulate_and_project,
    forward,
    gram_diag,
    inverse_gram,
    projection_fault,
)

Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]

SHAPES = [(8, 16, 20), (4, 5, 31, 7), (1, 1, 1), (1, 3, 3), (2, 50, 21, 41)]


def parts(shape: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float32) -> Parts:
    """Return v, y_acc, y, phi and r_inv of grey masks, with a pixel that no mask opens."""
    generator = torch.Generator().manual_seed(seed)
    phi = torch.rand(shape, generator=generator, dtype=dtype)
    phi[..., 0, 0] = 0.0
    v = torch.randn(shape, generator=generator, dtype=dtype)
    y = forward(phi, torch.rand(shape, generator=generator, dtype=dtype))
    y_acc = y + 0.1 * torch.randn(y.shape, generator=generator, dtype=dtype)
    return v, y_acc, y, phi, inverse_gram(gram_diag(phi))


@given(seed=st.integers(0, 1000), shape=st.sampled_from(SHAPES))
def test_weight_scales_accumulation_and_projection(seed: int, shape: tuple[int, ...]) -> None:
    v, y_acc, y, phi, r_inv = parts(shape, seed, torch.float64)
    weight = torch.rand(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(seed))
    x, accumulated = accumulate_and_project(v, y_acc, y, phi, r_inv, relaxation=1.5, weight=weight)
    coded = forward(phi, v)
    torch.testing.assert_close(accumulated, y + weight * (y_acc - y + 1.5 * (y - coded)))
    torch.testing.assert_close(x, v + phi * (weight * (accumulated - coded) * r_inv).unsqueeze(-3))
    accepted = accumulate_and_project(v, y_acc, y, phi, r_inv, relaxation=1.5, weight=torch.ones_like(y))
    for mine, wanted in zip(accepted, accumulate_and_project(v, y_acc, y, phi, r_inv, relaxation=1.5), strict=True):
        torch.testing.assert_close(mine, wanted)


@given(seed=st.integers(0, 1000), shape=st.sampled_from(SHAPES), relaxation=st.sampled_from([0.0, 1.0, 1.5]))
def test_step_equals_the_two_lines_of_the_algorithm(seed: int, shape: tuple[int, ...], relaxation: float) -> None:
    v, y_acc, y, phi, r_inv = parts(shape, seed, torch.float64)
    x, accumulated = accumulate_and_project(v, y_acc, y, phi, r_inv, relaxation=relaxation)
    expected = y_acc + relaxation * (y - forward(phi, v))
    torch.testing.assert_close(accumulated, expected)
    torch.testing.assert_close(x, v + phi * ((expected - forward(phi, v)) * r_inv).unsqueeze(-3))


def test_step_does_not_modify_its_inputs() -> None:
    given_parts = parts((3, 6, 5))
    before = [t.clone() for t in given_parts]
    accumulate_and_project(*given_parts, relaxation=1.0)
    assert all(torch.equal(a, b) for a, b in zip(given_parts, before, strict=True))


_INTERPRETED = """
import torch
from sci_stream.optics import triton_kernels as fused
from sci_stream.optics.forward import accumulate_and_project
from tests.optics.test_triton_kernels import SHAPES, parts
for shape in SHAPES:
    for relaxation in (0.0, 1.0, 1.5):
        for weight in (None, torch.rand(shape[:-3] + shape[-2:])):
            how = {"relaxation": relaxation, "weight": weight}
            got = fused.accumulate_and_project(*parts(shape), **how)
            for mine, wanted in zip(got, accumulate_and_project(*parts(shape), **how), strict=True):
                torch.testing.assert_close(mine, wanted)
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_interpreted_kernel_equals_torch() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [sys.executable, "-c", _INTERPRETED], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert run.returncode == 0, run.stderr


_COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from sci_stream.optics import triton_kernels as fused
pointers = ("v", "phi", "y", "y_acc", "r_inv", "weight", "x", "y_acc_next")
signature = {name: "*fp32" for name in pointers} | {"relaxation": "fp32", "n_pixels": "i32"}
for n_frames, weighted in ((1, False), (22, True)):
    constants = {"n_frames": n_frames, "WEIGHTED": weighted, "BLOCK": 512}
    signature |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(fn=fused._kernel, signature=signature, constexprs=constants, attrs={})
    assert triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_kernel_compiles_without_a_gpu() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [sys.executable, "-c", _COMPILED], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize(
    ("reason", "found"),
    [("Failed to find C compiler. Please specify via CC\nmore", "Failed to find C compiler"), ("", "RuntimeError")],
)
def test_projection_without_a_kernel_gives_the_reason(reason: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(*_parts: torch.Tensor, **_how: object) -> None:
        raise RuntimeError(reason)

    monkeypatch.setattr(optics.importlib, "import_module", lambda _name: SimpleNamespace(accumulate_and_project=kernel))
    without = _fused.__wrapped__(torch.device("cpu"))
    assert without.kernel is None
    assert without.fault.startswith(f"the projection runs without its Triton kernel: {found}")


def test_projection_with_a_wrong_kernel_gives_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(v: torch.Tensor, y_acc: torch.Tensor, *_parts: object, **_how: object) -> Parts:
        return v, y_acc  # type: ignore[return-value]

    monkeypatch.setattr(optics.importlib, "import_module", lambda _name: SimpleNamespace(accumulate_and_project=kernel))
    without = _fused.__wrapped__(torch.device("cpu"))
    assert without.kernel is None
    assert "differ" in without.fault


def test_projection_on_the_cpu_lacks_nothing() -> None:
    assert projection_fault(torch.device("cpu")) == ""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_kernel_is_used_where_it_works() -> None:
    assert projection_fault(torch.device("cuda", 0)) == ""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("shape", [*SHAPES, (4, 22, 256, 256)])
def test_kernel_on_a_gpu_equals_torch(shape: tuple[int, ...]) -> None:
    fused = pytest.importorskip("sci_stream.optics.triton_kernels")
    for weight in (None, torch.rand(shape[:-3] + shape[-2:])):
        there = None if weight is None else weight.cuda()
        on_gpu = fused.accumulate_and_project(*(t.cuda() for t in parts(shape)), relaxation=1.5, weight=there)
        wanted = accumulate_and_project(*parts(shape), relaxation=1.5, weight=weight)
        for mine, right in zip(on_gpu, wanted, strict=True):
            torch.testing.assert_close(mine.cpu(), right, rtol=1e-4, atol=1e-4)
