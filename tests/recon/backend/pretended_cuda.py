"""A pretended CUDA device: its tensors say ``cuda:0``, and their values lie on the processor.

Operations on tensors of two devices raise, as on a GPU. Kernels, copies and waits of the host are
counted. It serves programs that use torch from Python.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any, Self

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

CUDA = torch.device("cuda", 0)
_CPU = torch.device("cpu")
# Operations that make no kernel.
_FREE = {"detach", "alias", "lift_fresh", "_unsafe_view", "_reshape_alias", "view", "expand"}
# Operations whose result or size the host reads.
_WAITS = {
    "_local_scalar_dense",
    "item",
    "is_nonzero",
    "nonzero",
    "masked_select",
    "equal",
    "allclose",
    "_unique2",
    "unique_dim",
    "_linalg_check_errors",
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
        self.reset()

    def reset(self) -> None:
        """Begin to count again."""
        self.kernels = 0
        self.waits: list[str] = []
        self.up = Counter[str]()
        self.down = Counter[str]()

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
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        here = [t for t in tensors if _is_here(t)]
        wanted = kwargs.get("device")
        to_device = bool(here) if wanted is None else torch.device(wanted).type != "cpu"
        if name == "copy_":
            to_device = _is_here(args[0])
        elif here and name not in _COPIES:
            self._refuse_mixture(func, name, tensors)
        if here and _waits(name, tensors):
            self.waits.append(str(func))
        if name in _COPIES and len(tensors) > 1 and len(here) == 1:
            (self.up if to_device else self.down)[name] += 1
        if wanted is not None:
            kwargs = {**kwargs, "device": _CPU}
        known = {id(t.values): t for t in here}
        out = func(*tree_map(_values, args), **tree_map(_values, kwargs))
        if not to_device:
            return out
        if not func.is_view and name not in _FREE and not name.startswith("empty"):
            self.kernels += 1

        def placed(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or _is_here(value):
                return value
            known_as = known.get(id(value))
            return _OnDevice(value) if known_as is None else known_as

        return tree_map(placed, out)

    def _refuse_mixture(self, func: Any, name: str, tensors: list[torch.Tensor]) -> None:
        others = [t for t in tensors if not _is_here(t)]
        if name.startswith(("index", "_index", "_unsafe_index")):
            self.up[name] += sum(t.ndim > 0 for t in others)
            return
        if any(t.ndim > 0 for t in others) or (others and name not in _TAKES_NUMBERS):
            raise RuntimeError(f"Expected all tensors to be on the same device: {func}")

    def moved(self, tensor: torch.Tensor, to: torch.device, how: dict[str, Any]) -> torch.Tensor:
        """Return a tensor on a device, in another dtype or layout if asked for."""
        values = _values(tensor)
        new = values.to(**how) if how else values
        if to.type == "cpu":
            self.down["to"] += 1
            self.waits.append("to the host")
            return new.clone() if new is values else new
        if not _is_here(tensor):
            self.up["to"] += 1
            return _OnDevice(new.clone() if new is values else new)
        if new is values:
            return tensor
        self.kernels += 1
        return _OnDevice(new)


def _waits(name: str, tensors: list[torch.Tensor]) -> bool:
    by_value = name.startswith("index") and any(t.dtype is torch.bool for t in tensors[1:])
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
            self._device.waits.append(name)
            return getattr(args[0].values, name)()
        if name == "new_tensor" and _is_here(args[0]):
            self._device.up[name] += 1
            return _OnDevice(torch.tensor(*args[1:], **{"dtype": args[0].dtype, **kwargs}))
        made = torch.device(kwargs.get("device") or _CPU)
        if func in {torch.tensor, torch.as_tensor} and made.type == "cuda":
            self._device.up[name] += 1
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
        return self._device.moved(tensor, to, how)


class _Stream:
    def __init__(self, *_args: Any, **_kwargs: Any) -> None: ...

    def wait_stream(self, _other: Any) -> None: ...


class _Event:
    def __init__(self, *_args: Any, **_kwargs: Any) -> None: ...

    def record(self, _stream: Any = None) -> None:
        self._at_s = time.perf_counter()

    def query(self) -> bool:
        return True

    def synchronize(self) -> None: ...

    def elapsed_time(self, later: _Event) -> float:
        return (later._at_s - self._at_s) * 1e3


@functools.cache
def _register_backend() -> None:
    """Let torch dispatch operations of a device type to Python; once in a process."""
    backend_registration._setup_privateuseone_for_python_backend()


@contextlib.contextmanager
def pretended_cuda(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have torch report one GPU, an H100 without CUDA graphs, whose tensors are pretended."""
    _register_backend()
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
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    for name in ("stream", "device"):
        monkeypatch.setattr(torch.cuda, name, lambda _which: contextlib.nullcontext())
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, *_a: tensor)
    monkeypatch.setattr(torch, "empty", empty)
    # Tensors of a Python backend are not dispatched in inference mode.
    monkeypatch.setattr(torch, "inference_mode", torch.no_grad)
    with PretendedCuda() as device:
        yield device
