"""A pretended CUDA graph: operations recorded at their addresses, repeated without Python.

It keeps what its operations make. Of tensors from outside it has addresses alone, as a real one:
a replay raises where such memory was freed in between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes


class PretendedGraph:
    """Operations on values of the pretended device.

    Parameters
    ----------
    launched
        Called before each replay.
    """

    def __init__(self, launched: Callable[[], None]) -> None:
        self._launched = launched
        self._operations: list[Callable[[], None]] = []
        self._owned: dict[int, torch.UntypedStorage] = {}

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor that lasts as long as the graph."""
        self._owned[_address(tensor)] = tensor.untyped_storage()
        return tensor

    def add(
        self,
        operation: Callable[..., Any],
        args: Any,
        kwargs: dict[str, Any],
        out: Any,
        *,
        writes: bool,
    ) -> None:
        """Add an operation and its results; ``writes`` if it writes to its arguments."""
        read = {_address(tensor) for tensor in tensors_in((args, kwargs))}
        made = [
            None if _address(tensor) in read else self.keep(tensor) for tensor in tensors_in(out)
        ]
        if not writes and not any(place is not None for place in made):
            return  # a view
        args, kwargs = mapped(self._reference, (args, kwargs))

        def repeat() -> None:
            present_args, present_kwargs = mapped(_present, (args, kwargs))
            results = tensors_in(operation(*present_args, **present_kwargs))
            for place, result in zip(made, results, strict=True):
                if place is not None:
                    place.copy_(result)

        self._operations.append(repeat)

    def replay(self) -> None:
        """Do the recorded operations again."""
        self._launched()
        # torch has no types for this function.
        with torch.no_grad(), _disable_current_modes():  # type: ignore[no-untyped-call]
            for operation in self._operations:
                operation()

    def _reference(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or _address(value) in self._owned:
            return value
        return _Outside(value)


class _Outside:
    """The address of a tensor that someone else keeps."""

    def __init__(self, tensor: torch.Tensor) -> None:
        assert not tensor.is_conj()
        assert not tensor.is_neg()
        # torch has no types for this class.
        self._storage = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        self._dtype = tensor.dtype
        self._geometry = (tensor.storage_offset(), tensor.shape, tensor.stride())

    def tensor(self) -> torch.Tensor:
        storage = torch.UntypedStorage._new_with_weak_ptr(self._storage.cdata)
        if storage is None:
            raise RuntimeError(f"a recording reads freed memory of a tensor {self._geometry[1]}")
        return torch.empty(0, dtype=self._dtype).set_(storage, *self._geometry)


def _present(value: Any) -> Any:
    return value.tensor() if isinstance(value, _Outside) else value


def mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return arguments or results of an operation with each value replaced.

    torch's own `tree_map` takes ten times as long.
    """
    if isinstance(tree, tuple | list):
        return type(tree)([mapped(function, value) for value in tree])
    if isinstance(tree, dict):
        return {name: mapped(function, value) for name, value in tree.items()}
    return function(tree)


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """Return the tensors among arguments or results of an operation."""
    found: list[torch.Tensor] = []
    _collect(tree, found)
    return found


def _collect(tree: Any, tensors: list[torch.Tensor]) -> None:
    if isinstance(tree, torch.Tensor):
        tensors.append(tree)
    elif isinstance(tree, tuple | list):
        for value in tree:
            _collect(value, tensors)
    elif isinstance(tree, dict):
        for value in tree.values():
            _collect(value, tensors)


def _address(tensor: torch.Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata
    return address
