"""A substitute for a GPU that counts kernel launches, waits and recordings.

A CPU does the work, with the very code that runs on a GPU. Each operation of torch that computes
counts as a launch, and each that makes the host wait for a value as a wait; the replay of a
recording is one launch, whatever it holds. Work that waits cannot be recorded, as on a GPU, where
torch finds that itself (`torch.cuda.set_sync_debug_mode`).
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable
from typing import Any, Self

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from sci_stream.recon.backend.cuda_graph import Replay

# Operations that make the host wait for a value on the device, or that bring values from the host
# to the device. In inference mode torch passes many on before it takes them apart: `item` as well
# as `_local_scalar_dense`.
_WAITS = {
    **dict.fromkeys(
        ("item", "_local_scalar_dense", "is_nonzero"),
        "a value is read back (item, float, bool, tolist)",
    ),
    **dict.fromkeys(("equal", "allclose"), "tensors are compared by the host"),
    **dict.fromkeys(
        (
            "nonzero",
            "masked_select",
            "bincount",
            "histc",
            "_unique2",
            "unique_dim",
            "unique_consecutive",
        ),
        "the size of the result, or of its steps, depends on values",
    ),
    "lift_fresh": "a tensor is made of numbers of the host",
}
# Of linear algebra all but these: its libraries check their results on the host, or cannot be
# captured (cuSOLVER).
_LINEAR_ALGEBRA = re.compile(
    r"(_?linalg_(?!vector_norm|vecdot|matrix_norm|cross)\w+|cholesky\w*|inverse|lu_solve|svd)"
)
# Copies, which also wait for a single number of the other device; elsewhere one is an argument of
# the kernel.
_COPIES = frozenset(
    {"to", "_to_copy", "copy", "copy_", "type_as", "where", "cpu", "cuda", "pin_memory"}
)


def wait_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return why an operation of torch makes the host wait or takes data from it; empty if it does
    neither.
    """
    leaves = tree_leaves((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    name, overload = func._schema.name.removeprefix("aten::"), func._overloadname
    if name in _WAITS:
        return _WAITS[name]
    if _LINEAR_ALGEBRA.fullmatch(name):
        return "a library of linear algebra is used"
    by_value = (
        (name.startswith("index") and any(tensor.dtype is torch.bool for tensor in tensors[1:]))
        or (name == "where" and overload == "default")
        or (name == "repeat_interleave" and overload != "self_int")
    )
    if by_value:
        return (
            "the size of the result depends on values (an index of booleans, where, "
            "repeat_interleave)"
        )
    copies = name in _COPIES
    devices = {tensor.device.type for tensor in tensors if tensor.ndim > 0 or copies}
    if copies:
        devices |= {leaf.type for leaf in leaves if isinstance(leaf, torch.device)}
    return "data are copied between host and device" if len(devices) > 1 else ""


class NoWaits(TorchDispatchMode):
    """Raises on work that a graph cannot hold."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if why := wait_of(func, args, kwargs or {}):
            raise RuntimeError(f"{func}: {why}")
        return func(*args, **(kwargs or {}))


class _Lists(TorchFunctionMode):
    """Counts reads of whole tensors, which are no operation on a CPU."""

    def __init__(self, waits: Callable[[str], None]) -> None:
        super().__init__()
        self._waits = waits

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in {"tolist", "cpu", "numpy", "__array__"} and (args[0].ndim or name == "cpu"):
            self._waits(f"{name}: a tensor is read back")
        return func(*args, **(kwargs or {}))


class Device(TorchDispatchMode):
    """Counts while it is entered; `record` records."""

    def __init__(self) -> None:
        super().__init__()
        self._lists = _Lists(self._note)
        self.launches = self.recordings = 0
        self.waits: list[str] = []

    def __enter__(self) -> Self:
        self._lists.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._lists.__exit__(*error)

    def _note(self, why: str) -> None:
        self.waits.append(why)

    def reset(self) -> None:
        self.launches = self.recordings = 0
        self.waits = []

    def record(self, work: Callable[[], None]) -> Replay:
        with NoWaits():
            work()
        self.recordings += 1

        def replay() -> None:
            self.launches += 1
            with _disable_current_modes():  # type: ignore[no-untyped-call]
                work()

        return replay

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        why = wait_of(func, args, kwargs or {})
        uploads = (
            "lift_fresh" in str(func) and given[0].ndim == 2
        )  # an image by `Transfers.upload`: nothing waits
        if why and not uploads:
            self.waits.append(f"{func}: {why}")
        elif not func.is_view and "empty" not in str(func):
            self.launches += 1
        return func(*args, **(kwargs or {}))


class OutsideTensors(TorchDispatchMode):
    """Notes the tensors from outside that some work reads, without keeping them."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: list[weakref.ref[torch.Tensor]] = []
        self._known: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        for tensor in _tensors((args, kwargs)):
            if (address := _address(tensor)) not in self._known:
                self._known.add(address)
                self.tensors.append(weakref.ref(tensor))
        out = func(*args, **(kwargs or {}))
        # What later lies at the address of something that is gone was made here too, since tensors
        # from outside were there before.
        self._known.update(map(_address, _tensors(out)))
        return out


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _address(tensor: torch.Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata
    return address
