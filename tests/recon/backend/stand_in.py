"""A substitute for a GPU that counts kernel launches, waits and recordings.

A CPU does the work, with the very code that runs on a GPU. Each operation of torch that computes counts as a launch,
and each that makes the host wait for a value as a wait; the replay of a recording is one launch, whatever it holds.
That a recording waits for nothing is found when it is made (`sci_stream.recon.backend.cuda_graph.CaptureGuard`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from sci_stream.recon.backend.cuda_graph import Replay, wait_of


class _Lists(TorchFunctionMode):
    """Counts reads of whole tensors, which are no operation on a CPU."""

    def __init__(self, waits: Callable[[str], None]) -> None:
        super().__init__()
        self._waits = waits

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in {"tolist", "cpu", "numpy", "__array__"} and args[0].ndim:
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
        self.recordings += 1

        def replay() -> None:
            self.launches += 1
            with _disable_current_modes():  # type: ignore[no-untyped-call]
                work()

        return replay

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        why = wait_of(func, args, kwargs or {})
        uploads = "lift_fresh" in str(func) and given[0].ndim == 2  # an image by `Transfers.upload`: nothing waits
        if why and not uploads:
            self.waits.append(f"{func}: {why}")
        elif not func.is_view and "empty" not in str(func):
            self.launches += 1
        return func(*args, **(kwargs or {}))
