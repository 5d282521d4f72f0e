"""Work on a device recorded once and replayed: one launch instead of hundreds.

A GPU runs the kernels of an iteration, or those that find the start of a solve, in less time than the host takes to
launch them one by one. A CUDA graph holds them all, with the addresses they read and write. So whatever changes from
one replay to the next lives in tensors that stay where they are.

What a graph cannot hold is found before it is captured: the work is first done step by step under `CaptureGuard`. A
capture that fails all the same can leave torch's allocator in a state in which every later call fails; that is
`CaptureError`, after which the process has to end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from sci_stream.errors import CaptureError
from sci_stream.recon.algorithms.gap import CorrelatedResidual, Problem, State, Step
from sci_stream.recon.algorithms.noise_level import NoiseLevel

Replay = Callable[[], None]
Recorder = Callable[[Callable[[], None]], Replay]
"""Record work on tensors at fixed addresses; return a function that repeats it."""


MOST_PIXELS = 2**26
"""Pixels of a video above which nothing is recorded: its iterations take so long that launching them costs nothing,
and recordings hold some more videos (`sci_stream.recon.backend.memory.solve_bytes`)."""
MOST_PIXELS_AT_ONCE = 2**24
"""Pixels of a video up to which a whole solve is one recording. An iteration of more takes a GPU milliseconds, so that
launching it costs nothing, and until a replay ends a node can neither hand on results nor stop."""

_T = TypeVar("_T")


class UnrecordableError(RuntimeError):
    """The work waits for the device or takes data from the host, which a graph cannot hold."""


# Operations that make the host wait for a value on the device, or that bring values from the host to the device. In
# inference mode torch passes many on before it takes them apart: `item` as well as `_local_scalar_dense`.
_WAITS = {
    **dict.fromkeys(("item", "_local_scalar_dense", "is_nonzero"), "a value is read back (item, float, bool, tolist)"),
    **dict.fromkeys(("equal", "allclose"), "tensors are compared by the host"),
    **dict.fromkeys(
        ("nonzero", "masked_select", "bincount", "histc", "_unique2", "unique_dim", "unique_consecutive"),
        "the size of the result, or of its steps, depends on values",
    ),
    "lift_fresh": "a tensor is made of numbers of the host",
}
# Of linear algebra all but these: its libraries check their results on the host, or cannot be captured (cuSOLVER).
_LINEAR_ALGEBRA = re.compile(r"(_?linalg_(?!vector_norm|vecdot|matrix_norm|cross)\w+|cholesky\w*|inverse|lu_solve|svd)")
# Copies, which also wait for a single number of the other device; elsewhere one is an argument of the kernel.
_COPIES = frozenset({"to", "_to_copy", "copy", "copy_", "type_as", "where", "cpu", "cuda", "pin_memory"})


class CaptureGuard(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raise on what a graph cannot hold; note the tensors from outside that the work reads.

    ``held`` are those tensors: a graph has their addresses and no reference, so that a recording has to keep them.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.held: list[torch.Tensor] = []
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        why = wait_of(func, args, kwargs or {})
        if why:
            raise UnrecordableError(f"{func}: {why}")
        for tensor in given:
            if self._is_new(tensor):
                self.held.append(tensor)
        out = func(*args, **(kwargs or {}))
        # Not kept: all that a whole solve makes would not fit into memory. What later lies at the address of something
        # that is gone was made here too, since tensors from outside were there before.
        self._known.update(_address(leaf) for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor))
        return out

    def _is_new(self, tensor: torch.Tensor) -> bool:
        key = _address(tensor)
        new = key not in self._known
        self._known.add(key)
        return new


def _address(tensor: torch.Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata
    return address


def wait_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return why an operation of torch makes the host wait or takes data from it; empty if it does neither."""
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
        return "the size of the result depends on values (an index of booleans, where, repeat_interleave)"
    copies = name in _COPIES
    devices = {tensor.device.type for tensor in tensors if tensor.ndim > 0 or copies}
    if copies:
        devices |= {leaf.type for leaf in leaves if isinstance(leaf, torch.device)}
    return "data are copied between host and device" if len(devices) > 1 else ""


@dataclass(slots=True, eq=False)
class _Recording:
    """A replay of some work, with the tensors that it needs."""

    replay: Replay
    held: list[torch.Tensor]
    outputs: Any = None
    inputs: tuple[torch.Tensor, ...] = ()


@dataclass(slots=True, eq=False)
class Graphs:
    """Recordings of the work of one engine.

    Parameters
    ----------
    recorder
        `record_cuda_graph` bound to a device.
    fault
        Why nothing is recorded; empty while it is.
    """

    recorder: Recorder
    fault: str = ""
    _held: dict[Hashable, _Recording] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of recordings."""
        return len(self._held)

    def give_up(self, why: str) -> bool:
        """Release all recordings and make no more; return whether there were any."""
        held = bool(self._held)
        self.fault = self.fault or f"iterations are not recorded: {why}"
        self._held.clear()
        return held

    def drop(self, key: Hashable) -> None:
        """Release the recordings that `call` made for a key."""
        for held in [held for held in self._held if isinstance(held, tuple) and held[0] == key]:
            del self._held[held]

    def __contains__(self, key: Hashable) -> bool:
        """Return whether there is one with this key."""
        return key in self._held

    def record(self, key: Hashable, work: Callable[[], None]) -> bool:
        """Record some work under a key; the work is done a few times on the way.

        Returns
        -------
        False if it cannot be recorded: nothing is then recorded from here on.

        Raises
        ------
        CaptureError
            If the device refuses what the work is known to consist of.
        """
        return self._hold(key, lambda: _Recording(*self._record(work)))

    def replay(self, key: Hashable) -> None:
        """Do recorded work once more."""
        self._held[key].replay()

    def call(self, key: Hashable, function: Callable[..., _T], *tensors: torch.Tensor | None) -> _T:
        """Call a function of tensors by replaying it.

        Parameters
        ----------
        key
            Of the function and everything but the tensors that its work depends on. Shapes are added to it.
        function
            Returns tensors, or tuples of tensors and None.
        tensors
            Its arguments, copied to where the recording reads them. What else it reads has to stay where it is.

        Returns
        -------
        Tensors of the recording, which the next call with this key overwrites; new ones where nothing is recorded.
        """
        if self.fault:
            return function(*tensors)
        key = key, tuple(None if tensor is None else (tensor.shape, tensor.dtype) for tensor in tensors)
        if key not in self._held and not self._hold(key, lambda: self._record_function(function, tensors)):
            return function(*tensors)
        recording = self._held[key]
        present = [tensor for tensor in tensors if tensor is not None]
        for own, tensor in zip(recording.inputs, present, strict=True):
            own.copy_(tensor)
        recording.replay()
        outputs: _T = recording.outputs
        return outputs

    def _hold(self, key: Hashable, record: Callable[[], _Recording]) -> bool:
        """Hold what is recorded; return whether that could be done. What failed holds no memory after the return."""
        try:
            self._held[key] = record()
        except RuntimeError as error:  # no memory for it, or an operation that a graph cannot hold
            self.give_up(str(error).partition("\n")[0])
            return False
        return True

    def _record_function(self, function: Callable[..., Any], tensors: tuple[torch.Tensor | None, ...]) -> _Recording:
        own = [None if tensor is None else _own(tensor) for tensor in tensors]
        # Outside the graphs' memory, which they share: one graph's temporary tensors lie where another's do.
        outputs = tree_map(
            lambda found: (
                torch.empty(found.shape, dtype=found.dtype, device=found.device)
                if isinstance(found, torch.Tensor)
                else found
            ),
            function(*own),
        )
        targets = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]

        def work() -> None:
            found = [leaf for leaf in tree_leaves(function(*own)) if isinstance(leaf, torch.Tensor)]
            for target, value in zip(targets, found, strict=True):
                target.copy_(value)

        return _Recording(*self._record(work), outputs, tuple(tensor for tensor in own if tensor is not None))

    def _record(self, work: Callable[[], None]) -> tuple[Replay, list[torch.Tensor]]:
        work()  # libraries load, caches fill: what happens once is not part of the recording
        with CaptureGuard() as guard:
            work()
        return self.recorder(work), guard.held


@dataclass(slots=True, eq=False)
class _Buffers:
    """The tensors that all recorded iterations on videos of one shape read and write, made when first needed."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    loaded: dict[str, torch.Tensor] = field(default_factory=dict)
    """The tensor that each was last filled from, or returned as."""

    def like(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """Return the buffer of this name, made in the shape of ``value`` at first."""
        if name not in self.tensors:
            self.tensors[name] = torch.empty_like(value, memory_format=torch.contiguous_format)
        return self.tensors[name]

    def load(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """Copy a value into the buffer of this name, unless it holds it already; return the buffer."""
        own = self.like(name, value)
        if self.loaded.get(name) is not value:
            own.copy_(value)
            self.loaded[name] = value
        return own


class CudaGraphStep:
    """Replace an algorithm's step on a GPU by replaying a recording per kind of iteration.

    All recordings of one shape read and write the same tensors, so that consecutive iterations copy nothing. What
    cannot be recorded is done step by step, and `Graphs.fault` says why; so is what a prior does that has no
    ``graph_key`` or returns None for it.
    """

    def __init__(self, graphs: Graphs, step: Step) -> None:
        self._graphs = graphs
        self._step = step
        self._buffers: dict[tuple[torch.Size, torch.Size], _Buffers] = {}

    def forget(self) -> None:
        """Let go of the tensors that the recordings used, which must have been given up before."""
        self._buffers.clear()

    def __call__(self, state: State, sigma: float, problem: Problem) -> State:
        """Do one iteration, as the algorithm's step does; see `sci_stream.recon.algorithms.gap.Step`."""
        prior = problem.denoise(state.iteration)
        own_key = getattr(prior, "graph_key", None)
        graph_key: Hashable = None if own_key is None else own_key(sigma)
        if self._graphs.fault or graph_key is None or state.v.numel() > MOST_PIXELS:
            return self._step(state, sigma, problem)
        buffers = self._buffers.setdefault((state.v.shape, state.accumulated.shape), _Buffers())
        if state.iteration == 0:  # of another solve: the same tensors may hold other values
            buffers.loaded.clear()
        own_v, accumulated = buffers.load("v", state.v), buffers.load("accumulated", state.accumulated)
        own = _loaded(buffers, problem, state.iteration)
        own_x = None if problem.observe is None else buffers.like("x", own_v)
        level = NoiseLevel(sigma, buffers.like("sigma", problem.y.new_empty(())).fill_(sigma))

        def work() -> None:
            after = self._step(State(own_v, accumulated), level, own)
            own_v.copy_(after.v)
            accumulated.copy_(after.accumulated)
            if own_x is not None and after.x is not None:
                own_x.copy_(after.x)

        key = (
            *(state.v.shape, state.v.dtype, self._step, id(problem.phi), prior, graph_key),
            *(problem.relaxation, problem.gamma, own_x is None),
            *(problem.noise_ratio is None, problem.relative is None),
            None if own.correlated is None else own.correlated.posterior_mean,
        )
        if key not in self._graphs and not self._record(key, work, own_v, accumulated):
            return self._step(State(own_v, accumulated, iteration=state.iteration), sigma, problem)
        self._graphs.replay(key)
        v, x = own_v, None
        if own_x is not None:  # the observer may keep them
            v, x = own_v.clone(), own_x.clone()
        buffers.loaded["v"], buffers.loaded["accumulated"] = v, accumulated
        return State(v, accumulated, x, state.iteration + 1)

    def _record(self, key: Hashable, work: Callable[[], None], *changed: torch.Tensor) -> bool:
        """Record an iteration, and put back the state that it changed."""
        before = [tensor.clone() for tensor in changed]
        recorded = self._graphs.record(key, work)
        for own, value in zip(changed, before, strict=True):
            own.copy_(value)
        return recorded


def _loaded(buffers: _Buffers, problem: Problem, iteration: int) -> Problem:
    """Return the problem of one iteration, with all that it reads copied into the buffers."""
    noise_ratio, relative, correlated = problem.noise_ratio, problem.relative, problem.correlated_at(iteration)
    if correlated is not None:
        where = buffers.load("where", correlated.where)
        correlated = CorrelatedResidual(correlated.posterior_mean, where, 1)
    return problem._replace(
        y=buffers.load("y", problem.y),
        r_inv=buffers.load("r_inv", problem.r_inv),
        noise_ratio=None if noise_ratio is None else buffers.load("noise_ratio", noise_ratio),
        relative=None if relative is None else buffers.load("relative", relative),
        priors=(problem.denoise(iteration),),
        correlated=correlated,
    )


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous copy that a recording owns."""
    return tensor.clone(memory_format=torch.contiguous_format)


def overwrite(held: Any, fresh: Any) -> None:
    """Copy the tensors of an object to where those of another one of the same structure lie.

    Recordings have the addresses of tensors. What changes in all of them at once, such as everything that follows from
    masks that have moved, is computed again and then put in the place of the old.
    """
    if isinstance(held, torch.Tensor):
        held.copy_(fresh)
    elif isinstance(held, tuple):
        for old, new in zip(held, fresh, strict=True):
            overwrite(old, new)
    elif hasattr(held, "__dict__"):
        for name, old in list(vars(held).items()):
            overwrite(old, getattr(fresh, name))


def record_cuda_graph(device: torch.device) -> Recorder:
    """Return a recorder of CUDA graphs on a device, all of which share the memory of their temporary tensors.

    They may: they are replayed one after the other, and what outlasts a replay lies outside.
    """
    pool = torch.cuda.graph_pool_handle()
    # One for all recordings: libraries keep a workspace for each stream that they were called on, cuBLAS 32 MiB.
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def record(work: Callable[[], None]) -> Replay:
        with torch.cuda.device(device):
            side.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(side):
                for _ in range(3):  # libraries load, choose algorithms and allocate, none of which can be recorded
                    work()
            torch.cuda.current_stream(device).wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize(device)  # what fails up to here is no fault of the capture
            try:
                # Restricted to this thread: others may copy and allocate in the meantime.
                with torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode="thread_local"):
                    work()
            except Exception as error:
                raise CaptureError(
                    "Capturing a CUDA graph failed",
                    got=str(error).partition("\n")[0],
                    hint="This process can no longer use the device. Start it again with cuda_graphs = false in "
                    "[reconstruct].",
                ) from error
        return graph.replay

    return record
