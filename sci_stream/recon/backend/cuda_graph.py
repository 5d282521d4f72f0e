"""Work on a device recorded once and replayed: one launch instead of hundreds.

A GPU runs the kernels of a solve in less time than the host takes to launch them one by one. A CUDA
graph holds them all, with the addresses they read and write. So whatever changes from one replay to
the next lives in tensors that stay where they are.

Work that waits for the device cannot be captured: it is first done step by step where torch raises
on a wait. A capture that fails all the same can leave torch's allocator in a state in which every
later call fails; that is `CaptureError`, after which the process has to end.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from sci_stream.errors import CaptureError
from sci_stream.ports import Reconstructor, Recordable, Solver

Replay = Callable[[], None]
Recorder = Callable[[Callable[[], None]], Replay]
"""Record work on tensors at fixed addresses; return a function that repeats it."""


MAX_PIXELS = 2**24
"""Pixels of a video up to which solves are recorded.

An iteration of more takes a GPU milliseconds, so that launching it costs nothing, and until a
replay ends a node can neither hand on results nor stop.
"""

# Numbers of iterations that are recorded between the least and all.
_LADDER = (4, 8, 12, 20, 30, 40)

_T = TypeVar("_T")


class _Recording(NamedTuple):
    """A replay of some work with the tensors that it reads and writes."""

    replay: Replay
    inputs: tuple[Tensor, ...]
    outputs: Any


class Graphs:
    """Recordings of the work of one engine.

    They share the memory of their inputs and of their outputs, since they are replayed one after
    the other.

    Parameters
    ----------
    recorder
        `record_cuda_graph` bound to a device; None to record nothing.
    """

    def __init__(self, recorder: Recorder | None) -> None:
        self.fault = ""
        """Why nothing is recorded; empty while it is."""
        self._recorder = recorder
        self._recordings: dict[Hashable, _Recording] = {}
        self._memory: dict[Hashable, Tensor] = {}

    @property
    def active(self) -> bool:
        """Whether work is recorded."""
        return self._recorder is not None and not self.fault

    def __len__(self) -> int:
        """Return the number of recordings."""
        return len(self._recordings)

    def clear(self) -> None:
        """Release all recordings."""
        self._recordings.clear()
        self._memory.clear()

    def give_up(self, why: str) -> bool:
        """Release all recordings and make no more, for this reason if there is one; return whether
        there were any.
        """
        if not why:
            return False
        released = bool(self._recordings)
        if self.active:
            self.fault = f"solves are not recorded: {why}"
        self.clear()
        return released

    def call(self, key: Hashable, function: Callable[..., _T], *tensors: Tensor | None) -> _T:
        """Call a function of tensors by replaying it.

        Parameters
        ----------
        key
            Of the function and everything but the tensors that its work depends on. Shapes are
            added to it.
        function
            Returns tensors, or tuples of tensors and other values.
        tensors
            Its arguments, copied to where recordings read them. What else it reads has to stay
            where it is: a graph has its addresses and no reference.

        Returns
        -------
        New tensors. Where nothing can be recorded, `fault` then says why.

        Raises
        ------
        CaptureError
            If the device refuses an operation of the work.
        """
        key = (
            key,
            tuple(None if tensor is None else (tensor.shape, tensor.dtype) for tensor in tensors),
        )
        if self.active and key not in self._recordings:
            try:
                self._recordings[key] = self._record(function, tensors)
            except (
                RuntimeError
            ) as error:  # no memory for it, or an operation that a graph cannot hold
                self.give_up(str(error).partition("\n")[0])
        # Only now is the memory of a failed attempt free: the exception referenced it.
        if not self.active:
            return function(*tensors)
        recording = self._recordings[key]
        present = (tensor for tensor in tensors if tensor is not None)
        for place, tensor in zip(recording.inputs, present, strict=True):
            place.copy_(tensor)
        recording.replay()
        # Copies: the next replay overwrites the outputs while these may still be on their way to
        # the host.
        outputs: _T = tree_map(
            lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, recording.outputs
        )
        return outputs

    def _record(
        self, function: Callable[..., Any], tensors: tuple[Tensor | None, ...]
    ) -> _Recording:
        arguments = [
            None if tensor is None else self._placed(("input", n), tensor).copy_(tensor)
            for n, tensor in enumerate(tensors)
        ]
        # The first call is no part of the recording: libraries load and caches fill. Outputs lie
        # outside the graphs' memory, which they share: one graph's temporary tensors lie where
        # another's do.
        leaves, structure = tree_flatten(function(*arguments))
        places = [
            self._placed(("output", n), leaf) if isinstance(leaf, Tensor) else leaf
            for n, leaf in enumerate(leaves)
        ]

        def work() -> None:
            for place, leaf in zip(places, tree_leaves(function(*arguments)), strict=True):
                if isinstance(leaf, Tensor):
                    place.copy_(leaf)

        inputs = tuple(argument for argument in arguments if argument is not None)
        assert self._recorder is not None
        return _Recording(self._recorder(work), inputs, tree_unflatten(places, structure))

    def _placed(self, name: Hashable, like: Tensor) -> Tensor:
        """Return the tensor of this name, shape and dtype that all recordings share."""
        key = name, like.shape, like.dtype
        if key not in self._memory:
            self._memory[key] = torch.empty_like(like, memory_format=torch.contiguous_format)
        return self._memory[key]


def rungs(iterations: int, min_iterations: int) -> tuple[int, ...]:
    """Return the numbers of iterations that solves are recorded for, from low to high: under load a
    lower one is used.

    >>> rungs(20, 4)
    (4, 8, 12, 20)
    """
    between = {rung for rung in _LADDER if min_iterations < rung < iterations}
    return tuple(sorted({min_iterations, iterations} | between))


def is_recordable(solver: Solver) -> bool:
    """Return whether a solver leaves every σ on the device."""
    return isinstance(solver, Recordable) and solver.recordable


def why_not_recorded(solver: Solver, pixels: int, *, cuda_graphs: bool) -> str:
    """Return why solves of a video of this many pixels are not recorded on a GPU; empty if they
    are.
    """
    if not cuda_graphs:
        return "cuda_graphs = false in [reconstruct]"
    if pixels > MAX_PIXELS:
        return f"a video has more than {MAX_PIXELS:,} pixels"
    if is_recordable(solver):
        return ""
    if isinstance(solver, Reconstructor):
        return f"the network {solver.name} is not known to be recordable"
    return f"the denoiser {solver.name} reads each σ as a number"


def overwrite(held: Any, fresh: Any) -> None:
    """Copy the tensors of an object to where those of another one of the same structure lie.

    Recordings have the addresses of tensors. What changes in all of them at once, such as
    everything that follows from masks that have moved, is computed again and then put in the place
    of the old. What both share, a constant, is not written.
    """
    if held is fresh:
        return
    if isinstance(held, Tensor):
        held.copy_(fresh)
    elif isinstance(held, tuple):
        for old, new in zip(held, fresh, strict=True):
            overwrite(old, new)
    elif hasattr(held, "__dict__"):
        for name, old in list(vars(held).items()):
            overwrite(old, getattr(fresh, name))


def record_cuda_graph(device: torch.device) -> Recorder:
    """Return a recorder of CUDA graphs on a device, all of which share the memory of their
    temporary tensors.

    They may: they are replayed one after the other, and what outlasts a replay lies outside.
    """
    pool = torch.cuda.graph_pool_handle()
    # One for all recordings: libraries keep a workspace for each stream that they were called on,
    # cuBLAS 32 MiB.
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def record(work: Callable[[], None]) -> Replay:
        with torch.cuda.device(device):
            side.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(side):
                for _ in range(
                    2
                ):  # libraries load, choose algorithms and allocate, none of which can be recorded
                    work()
                _without_waits(work)
            torch.cuda.current_stream(device).wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize(device)  # what fails up to here is no fault of the capture
            try:
                # Restricted to this thread: others may copy and allocate in the meantime.
                with torch.cuda.graph(
                    graph, pool=pool, stream=side, capture_error_mode="thread_local"
                ):
                    work()
            except Exception as error:
                raise CaptureError(
                    "Capturing a CUDA graph failed",
                    got=str(error).partition("\n")[0],
                    hint="This process can no longer use the device. Start it again with "
                    "cuda_graphs = false in "
                    "[reconstruct].",
                ) from error
        return graph.replay

    return record


def _without_waits(work: Callable[[], None]) -> None:
    """Do work; torch raises RuntimeError where the host would wait for the device."""
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        work()
    finally:
        torch.cuda.set_sync_debug_mode(mode)
