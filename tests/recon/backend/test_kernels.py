"""Device kernels and bytes of a warm snapshot, counted without a GPU: on tensors that hold no
values, and as torch's compiler fuses them.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any, Never

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sci_stream.optics.calibration import Calibration
from sci_stream.recon.backend import memory
from sci_stream.recon.backend.fusion import compile_on_gpu
from sci_stream.recon.backend.half_precision import Precision
from sci_stream.recon.denoisers.registry import make_denoiser
from sci_stream.recon.engine import Engine
from sci_stream.recon.initialization import gaussian_prior, optical_flow, warm_start
from sci_stream.recon.initialization.initializer import Past
from sci_stream.recon.settings import default_settings

SHAPE, ITERATIONS = (8, 256, 256), 8
CPU = torch.device("cpu")
META = torch.device("meta")
# Kernels of operations that take several; of all others one. Inverse real transforms copy their
# input, since cuFFT overwrites it. On a GPU cuDNN's convolutions contain bias and ReLU, but for the
# last of a network.
_KERNELS = {"sort": 5, "_fft_r2c": 2, "_fft_c2r": 3}
_NETWORK = 16
# Operations without a kernel that are no views.
_FREE = frozenset({"detach", "alias", "lift_fresh", "_unsafe_view", "_reshape_alias", "relu_"})


class Kernels(TorchDispatchMode):
    """Counts kernels, and the bytes that they read and write, while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.count = self.bytes = 0
        self.of = Counter[str]()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        tensors = [
            leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, torch.Tensor)
        ]
        if (
            func.is_view
            or name in _FREE
            or name.startswith("empty")
            or all(not t.is_meta for t in tensors)
        ):
            return out
        self.of[name] += (kernels := _KERNELS.get(name, 1))
        self.count += kernels
        self.bytes += sum({id(tensor): _bytes(tensor) for tensor in tensors}.values())
        return out


def _bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor that lie in memory: an expanded one has fewer."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return (
        int(np.prod([size for size, stride in sizes if stride], dtype=np.int64))
        * tensor.element_size()
    )


@pytest.fixture
def make_engine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Engine]:
    """Return a maker of engines that cut their work as on a GPU."""

    def make(name: str, device: torch.device, precision: Precision, **how: Any) -> Engine:
        for sizes in (
            memory.PIXELS_PER_CHUNK,
            gaussian_prior._PIXELS_AT_ONCE,
            optical_flow._BLOCK,
            warm_start._PIXELS_AT_ONCE,
        ):
            monkeypatch.setitem(sizes, device.type, sizes["cuda"])
        phi = np.random.default_rng(0).integers(0, 2, SHAPE).astype(np.float32)
        settings = dataclasses.replace(
            default_settings(CPU, name),
            iterations=ITERATIONS,
            min_iterations=ITERATIONS,
            warm_start=True,
        )
        denoiser = make_denoiser(name, device, None, precision)
        return Engine(Calibration(phi=phi), denoiser, device, settings, **how)

    return make


@torch.no_grad()
def test_warm_snapshot_takes_few_kernels(make_engine: Callable[..., Engine]) -> None:
    """A graph hides the launches; the kernels still run one after the other, for at least a
    microsecond each.
    """
    engine = make_engine("ffdnet", META, Precision.HALF)
    y = torch.empty(SHAPE[1:], device=META)
    past = Past(
        torch.empty((1, *SHAPE), device=META), torch.empty((), dtype=torch.bool, device=META)
    )
    engine.initialize(engine.prepare(y), past)  # what follows from the masks is computed once
    counts: dict[str, Kernels] = {}
    with Kernels() as counts["noise"]:
        measurement = engine.prepare(y)
    with Kernels() as counts["start"]:
        start = engine.initialize(measurement, past)
    iterates = engine.solve(measurement, start, ITERATIONS)
    next(iterates)  # with the model of its errors, which follows from the masks
    with Kernels() as counts["correlated"]:
        next(iterates)
    for _ in range(5):
        next(iterates)
    with Kernels() as counts["projected"]:
        next(iterates)
    found = {
        name: (kernels.count, kernels.bytes / np.prod(SHAPE)) for name, kernels in counts.items()
    }
    most = {
        "noise": (290, 180),
        "start": (768, 1151),
        "correlated": (_NETWORK + 66, 1610),
        "projected": (_NETWORK + 25, 1460),
    }
    for name, (kernels, per_pixel) in most.items():
        assert found[name][0] <= kernels, (name, counts[name].of.most_common(12))
        assert found[name][1] <= per_pixel, (name, found[name])


class _FusedError(Exception):
    """The compiler has fused operations; nothing is to be generated."""


class CountingCompiler:
    """The compiler of fused operations up to where it knows its kernels; functions run as they are.

    ``kernels`` are the kernels of functions, by name and by which arguments are None: those of the
    compiler, and those of libraries that it calls.
    """

    def __init__(self) -> None:
        self.kernels: dict[tuple[str, tuple[bool, ...]], int] = {}
        self._count = 0

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            key = (function.__name__, tuple(argument is None for argument in args))
            if key not in self.kernels and key != COLD:
                self.kernels[key] = self._kernels(function, *args)
            return function(*args)

        return counted

    def _kernels(self, function: Callable[..., Any], *args: Any) -> int:
        patched = torch._inductor.config.patch(
            _post_fusion_custom_pass=self._fused, fx_graph_cache=False
        )
        with (
            patched,
            torch._functorch.config.patch(enable_autograd_cache=False),
            pytest.raises(torch._inductor.exc.InductorError, match="_FusedError"),
        ):
            compile_on_gpu(function)(*args)
        return self._count

    def _fused(self, nodes: list[Any]) -> Never:
        """Count the nodes that are kernels: neither views nor results of others."""
        self._count = sum(
            type(node).__name__ != "NopKernelSchedulerNode"
            and type(node.node).__name__ != "MultiOutput"
            for node in nodes
        )
        raise _FusedError


COLD = ("initialize", (False, True))
WARM = ("initialize", (False, False))
NOISE = ("prepare", (False, True))
CORRELATED = ("data_step", (False, False, False, False, False))
PROJECTED = ("data_step", (False, False, False, False, True))


@pytest.mark.slow
@pytest.mark.timeout(900)
# torch itself uses it where Inductor is loaded.
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_compiled_warm_snapshot_takes_few_kernels(make_engine: Callable[..., Engine]) -> None:
    """Those of the network are beside it.

    The kernels are fused by the rules for a processor, since those for a GPU need Triton, which
    makes fewer (docs/decisions/16-bit-and-graphs.md). Nothing is generated, so that no compiler of
    C++ is needed.
    """
    compiler = CountingCompiler()
    engine = make_engine("ffdnet-lite", CPU, Precision.FLOAT32, compiler=compiler)
    engine.warm_up()
    torch._dynamo.reset()
    assert engine.fault == ""
    counts = compiler.kernels
    half = ITERATIONS // 2
    snapshot = counts[NOISE] + counts[WARM] + half * (counts[CORRELATED] + counts[PROJECTED])
    assert snapshot <= 500, counts
