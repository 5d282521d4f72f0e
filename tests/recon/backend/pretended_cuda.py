"""A pretended CUDA device: its tensors say ``cuda:0``, and their values lie on the processor.

Operations on tensors of two devices raise, as on a GPU. Launches, copies and waits of the host are
counted. Asynchronous copies to the host come as late as they may. `torch.cuda.graph` records
operations at their addresses. The device serves programs that use torch from Python.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Self

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode

from tests.recon.backend.pretended_graph import PretendedGraph, mapped, tensors_in

CUDA = torch.device("cuda", 0)
_CPU = torch.device("cpu")
# Operations that make no kernel.
_FREE = {"detach", "alias", "lift_fresh", "_unsafe_view", "_reshape_alias", "view", "expand"}
# Operations whose result or size the host reads.
_WAITS = {
    *("_local_scalar_dense", "item", "is_nonzero", "equal", "allclose"),
    *("nonzero", "masked_select", "bincount", "histc"),
    *("_unique2", "unique_dim", "unique_consecutive"),
    *("_linalg_check_errors", "cholesky", "inverse", "lu_solve", "svd"),
}
_LINEAR_ALGEBRA_WITHOUT_WAIT = {"linalg_vecdot", "linalg_vector_norm", "linalg_cross"}
_COPIES = {"copy_", "_to_copy", "to"}
# Operations that take a number of the other device as an argument of their kernel.
_TAKES_NUMBERS = {
    *("add", "sub", "mul", "div", "pow", "add_", "mul_", "sub_", "div_", "fill_", "lerp"),
    *("lt", "gt", "le", "ge", "eq", "maximum", "minimum", "where", "addcmul"),
    *("clamp", "clamp_min", "clamp_max"),
}


class _OnDevice(torch.Tensor):
    """A tensor of the pretended device."""

    values: torch.Tensor

    @staticmethod
    def __new__(cls, values: torch.Tensor) -> Self:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined,no-any-return]
            cls,
            values.shape,
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=_CPU,
            dispatch_device=True,
            requires_grad=False,
        )

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return CUDA

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    def numpy(self, *_args: Any, **_kwargs: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    __array__ = numpy

    def record_stream(self, _stream: Any) -> None:
        """Do nothing: memory is not shared between streams."""

    def data_ptr(self) -> int:
        return self.values.data_ptr()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} without the pretended device")


def _is_here(value: Any) -> bool:
    return isinstance(value, _OnDevice)


def _values(value: Any) -> Any:
    return value.values if isinstance(value, _OnDevice) else value


class PretendedCuda(TorchDispatchMode):
    """The device while it is entered; see `pretended_cuda`."""

    def __init__(self) -> None:
        super().__init__()
        self._functions = _Moves(self)
        self._graph: PretendedGraph | None = None
        self._waits_raise = False
        self._late: list[Callable[[], object]] = []
        self.reset()

    def reset(self) -> None:
        """Begin to count again."""
        self.launches = 0
        """Kernels launched one by one, and replays."""
        self.recordings = 0
        self.waits: list[str] = []
        """Operations for which the host waited."""
        self.up = Counter[str]()
        """Copies to the device, by operation."""
        self.down = Counter[str]()

    def take_late_copies(self) -> list[Callable[[], object]]:
        """Return the copies to the host that no event waits for yet."""
        late = self._late
        self._late = []
        return late

    def graph(self) -> PretendedGraph:
        """Make an empty graph."""
        return PretendedGraph(self._launch)

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record work, without the solves by which `record_cuda_graph` prepares a real GPU."""
        graph = self.graph()
        with self.capture(graph):
            work()
        return graph.replay

    @contextlib.contextmanager
    def capture(self, graph: PretendedGraph, **_how: Any) -> Iterator[None]:
        """Record operations, as `torch.cuda.graph`."""
        assert self._graph is None
        self._graph = graph
        try:
            yield
        finally:
            self._graph = None
        self.recordings += 1

    def set_sync_debug_mode(self, mode: int | str) -> None:
        """Raise on waits, or not."""
        self._waits_raise = mode in {2, "error"}

    def get_sync_debug_mode(self) -> int:
        return 2 if self._waits_raise else 0

    def wait(self, why: str) -> None:
        """Let the host wait; raise where it must not."""
        self.waits.append(why)
        if self._graph is not None:
            raise RuntimeError(f"operation not permitted when stream is capturing: {why}")
        if self._waits_raise:
            raise RuntimeError(f"called a synchronizing CUDA operation: {why}")

    def copies(self, name: str, *, up: bool, blocks: bool) -> None:
        """Count a copy between host and device."""
        (self.up if up else self.down)[name] += 1
        if blocks or self._graph is not None:
            self.wait(f"{name} {'to' if up else 'from'} the device")

    def _launch(self) -> None:
        self.launches += 1

    def _kernel(
        self, operation: Callable[..., Any], args: Any, kwargs: Any, out: Any, *, writes: bool
    ) -> None:
        """Count an operation on tensors of the device, or record it."""
        if self._graph is None:
            self._launch()
            return
        graph = self._graph

        def argument(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            # A number of the host becomes an argument of the kernel.
            return value.values if _is_here(value) else graph.keep(value.clone())

        args, kwargs = mapped(argument, (args, kwargs))
        graph.add(operation, args, kwargs, out, writes=writes)

    def __enter__(self) -> Self:
        super().__enter__()
        self._functions.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._functions.__exit__(*error)
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.split("::")[1]
        if name == "device":
            return torch.device("privateuseone", 0)
        tensors = tensors_in((args, kwargs))
        here = [t for t in tensors if _is_here(t)]
        wanted = kwargs.get("device")
        to_device = bool(here) if wanted is None else torch.device(wanted).type != "cpu"
        if name == "copy_":
            to_device = _is_here(args[0])
        elif here and name not in _COPIES:
            self._refuse_mixture(func, name, tensors)
        if here and _waits(name, func._overloadname, tensors):
            self.wait(str(func))
        if name in _COPIES and len({to_device, *map(_is_here, tensors)}) == 2:
            blocks = not (
                kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2])
            )
            self.copies(name, up=to_device, blocks=blocks)
            if name == "copy_" and not to_device and not blocks:
                self._late.append(functools.partial(func, args[0], args[1].values))
                return args[0]
        if wanted is not None:
            kwargs = {**kwargs, "device": _CPU}
        known = {id(t.values): t for t in here}
        out = func(*mapped(_values, args), **mapped(_values, kwargs))
        if not to_device:
            return out
        if name.startswith("empty"):
            if self._graph is not None:
                self._graph.keep(out)
        elif not func.is_view and name not in _FREE:
            self._kernel(func, args, kwargs, out, writes=func._schema.is_mutable)

        def placed(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or _is_here(value):
                return value
            known_as = known.get(id(value))
            return _OnDevice(value) if known_as is None else known_as

        return mapped(placed, out)

    def _refuse_mixture(self, func: Any, name: str, tensors: list[torch.Tensor]) -> None:
        others = [t for t in tensors if not _is_here(t)]
        if name.startswith(("index", "_index", "_unsafe_index")):
            for t in others:
                if t.ndim > 0:
                    self.copies(name, up=True, blocks=True)
            return
        if any(t.ndim > 0 for t in others) or (others and name not in _TAKES_NUMBERS):
            raise RuntimeError(f"Expected all tensors to be on the same device: {func}")

    def moved(
        self, tensor: torch.Tensor, to: torch.device, how: dict[str, Any], *, blocks: bool
    ) -> torch.Tensor:
        """Return a tensor on a device, in another dtype or layout if asked for."""
        values = _values(tensor)
        new = values.to(**how) if how else values
        if to.type == "cpu":
            self.copies("to", up=False, blocks=True)
            return new.clone() if new is values else new
        if not _is_here(tensor):
            self.copies("to", up=True, blocks=blocks)
            return _OnDevice(new.clone() if new is values else new)
        if new is values:
            return tensor
        self._kernel(torch.Tensor.to, (tensor,), how, new, writes=False)
        return _OnDevice(new)


def _waits(name: str, overload: str, tensors: list[torch.Tensor]) -> bool:
    by_value = (
        (name.startswith("index") and any(t.dtype is torch.bool for t in tensors[1:]))
        or (name == "where" and overload == "default")
        or (name == "repeat_interleave" and overload != "self_int")
    )
    solves = name.startswith("linalg_") and name not in _LINEAR_ALGEBRA_WITHOUT_WAIT
    return name in _WAITS or by_value or solves


class _Moves(TorchFunctionMode):
    """Calls that name a device, which torch would take for the real one."""

    def __init__(self, device: PretendedCuda) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in {"to", "cpu", "cuda"} and isinstance(args[0], torch.Tensor):
            return self._to(name, func, args, kwargs)
        if name in {"tolist", "item"} and _is_here(args[0]):
            self._device.wait(name)
            return getattr(args[0].values, name)()
        if name == "new_tensor" and _is_here(args[0]):
            self._device.copies(name, up=True, blocks=True)
            return _OnDevice(torch.tensor(*args[1:], **{"dtype": args[0].dtype, **kwargs}))
        made = torch.device(kwargs.get("device") or _CPU)
        if func in {torch.tensor, torch.as_tensor} and made.type == "cuda":
            self._device.copies(name, up=True, blocks=True)
            del kwargs["device"]
            return _OnDevice(func(*args, **kwargs))
        return func(*args, **kwargs)

    def _to(self, name: str, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        tensor, *given = args
        to = {"cpu": _CPU, "cuda": CUDA}.get(name) or tensor.device
        how: dict[str, Any] = {}
        for value in (*given, kwargs.get("device"), kwargs.get("dtype")):
            if isinstance(value, torch.Tensor):
                to = value.device
                how["dtype"] = value.dtype
            elif isinstance(value, torch.dtype):
                how["dtype"] = value
            elif isinstance(value, torch.device | str):
                to = torch.device(value)
        if to.type == "cpu" and not _is_here(tensor):
            return func(*args, **kwargs)
        if layout := kwargs.get("memory_format"):
            how["memory_format"] = layout
        return self._device.moved(tensor, to, how, blocks=not kwargs.get("non_blocking"))


class _Stream:
    def __init__(self, *_args: Any, **_kwargs: Any) -> None: ...

    def wait_stream(self, _other: Any) -> None: ...


class _Event:
    def __init__(self, device: PretendedCuda, *_args: Any, **_kwargs: Any) -> None:
        self._device = device
        self._copies: list[Callable[[], object]] = []

    def record(self, _stream: Any = None) -> None:
        self._at_s = time.perf_counter()
        self._copies = self._device.take_late_copies()

    def query(self) -> bool:
        self.synchronize()
        return True

    def synchronize(self) -> None:
        for copy in self._copies:
            copy()
        self._copies = []

    def elapsed_time(self, later: _Event) -> float:
        return (later._at_s - self._at_s) * 1e3


@functools.cache
def _register_backend() -> None:
    """Let torch dispatch operations of a device type to Python; once in a process."""
    backend_registration._setup_privateuseone_for_python_backend()


@contextlib.contextmanager
def pretended_cuda(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have torch report one GPU, an H100, whose tensors are pretended."""
    _register_backend()
    device = PretendedCuda()
    real_empty = torch.empty

    def empty(*sizes: Any, pin_memory: bool = False, **how: Any) -> torch.Tensor:
        """Make a tensor in memory that no CUDA pins."""
        assert isinstance(pin_memory, bool)
        return real_empty(*sizes, **how)

    properties = SimpleNamespace(multi_processor_count=132)
    answers: dict[str, Any] = {
        "_lazy_init": None,
        "is_available": True,
        "device_count": 1,
        "get_device_name": "pretended",
        "get_device_capability": (9, 0),
        "get_arch_list": ["sm_90"],
        "is_bf16_supported": True,
        "get_device_properties": properties,
        "mem_get_info": (1 << 36, 1 << 36),
        "empty_cache": None,
        "synchronize": None,
        "graph_pool_handle": (0, 0),
        "current_stream": _Stream(),
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_a, _answer=answer, **_k: _answer)
    monkeypatch.setattr(torch.cuda, "Stream", _Stream)
    monkeypatch.setattr(torch.cuda, "Event", functools.partial(_Event, device))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", device.graph)
    monkeypatch.setattr(torch.cuda, "graph", device.capture)
    for name in ("set_sync_debug_mode", "get_sync_debug_mode"):
        monkeypatch.setattr(torch.cuda, name, getattr(device, name))
    for name in ("stream", "device"):
        monkeypatch.setattr(torch.cuda, name, lambda _which: contextlib.nullcontext())
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, *_a: tensor)
    monkeypatch.setattr(torch, "empty", empty)
    # Tensors of a Python backend are not dispatched in inference mode.
    monkeypatch.setattr(torch, "inference_mode", torch.no_grad)
    with device:
        yield device
