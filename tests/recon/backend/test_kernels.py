"""Device kernels and bytes of a warm snapshot, counted without a GPU on tensors that hold no
values.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sci_stream.optics.calibration import Calibration
from sci_stream.recon.backend import memory
from sci_stream.recon.backend.half_precision import Precision
from sci_stream.recon.denoisers.registry import make_denoiser
from sci_stream.recon.engine import Engine
from sci_stream.recon.initialization import gaussian_prior, optical_flow, warm_start
from sci_stream.recon.initialization.initializer import Past
from sci_stream.recon.settings import default_settings

SHAPE, ITERATIONS = (8, 256, 256), 8
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
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine on the device of tensors without values, which cuts its work as on a GPU."""
    for sizes in (
        memory.PIXELS_PER_CHUNK,
        gaussian_prior._PIXELS_AT_ONCE,
        optical_flow._BLOCK,
        warm_start._PIXELS_AT_ONCE,
    ):
        monkeypatch.setitem(sizes, "meta", sizes["cuda"])
    calibration = Calibration(phi=np.random.default_rng(0).integers(0, 2, SHAPE).astype(np.float32))
    settings = dataclasses.replace(default_settings(torch.device("cpu"), "ffdnet"), warm_start=True)
    return Engine(calibration, make_denoiser("ffdnet", META, None, Precision.HALF), META, settings)


@torch.no_grad()
def test_warm_snapshot_takes_few_kernels(engine: Engine) -> None:
    """A graph hides the launches; the kernels still run one after the other, for at least a
    microsecond each.
    """
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
