"""Operations fused into few kernels by torch's compiler.

A start is hundreds of small operations, each a kernel of a microsecond that reads and writes a
whole image. Compiled by Triton they are a fraction of that. Nothing depends on it: where a compiler
is missing, or its kernels are not faster or give something else, the functions are called as they
are.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from sci_stream.recon.backend.device import ran_out_of_memory

_P = ParamSpec("_P")
_T = TypeVar("_T")

Compiler = Callable[[Callable[_P, _T]], Callable[_P, _T]]
"""Compile a function of tensors on its first call."""

# Versions of a function, one for each size and kind of problem. torch's own limit is 8, which the
# solves of four sizes of masks reach.
_MAX_VERSIONS = 64


def compile_on_gpu(
    function: Callable[_P, _T], *, backend: str | Callable[..., object] = "inductor"
) -> Callable[_P, _T]:
    """Compile a function as a whole, for each size separately.

    It raises where a part cannot be compiled, and beyond 64 versions: torch alone would then call
    the function as it is, in silence.
    """
    compiled = torch.compile(function, dynamic=False, fullgraph=True, backend=backend)
    torch._dynamo.config.cache_size_limit = _MAX_VERSIONS
    return compiled


class Fusion:
    """Functions of tensors that are compiled while ``on``; not at first, while they fill their
    caches.

    Parameters
    ----------
    compiler
        None to compile nothing.
    """

    def __init__(self, compiler: Compiler[..., object] | None) -> None:
        self.on = False
        self.fault = ""
        """Why nothing is fused where it might be; empty while it is."""
        self.possible = compiler is not None
        self._compiler = compiler

    def stop(self, why: str) -> None:
        """Call functions as they are from now on."""
        self.on = self.possible = False
        self.fault = f"operations are not fused: {why}"

    def __call__(self, function: Callable[_P, _T]) -> Callable[_P, _T]:
        """Return the function, compiled while `on`."""
        if self._compiler is None:
            return function
        compiled = self._compiler(function)

        def fused(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            # Under a mode that watches operations the compiler would give a function up for good.
            if not self.on or is_in_torch_dispatch_mode():
                return function(*args, **kwargs)
            try:
                with (
                    warnings.catch_warnings()
                ):  # of caches that it does not know, and of complex numbers
                    warnings.simplefilter("ignore", UserWarning)
                    return compiled(*args, **kwargs)  # type: ignore[return-value] # compiled, it returns the same
            except (
                Exception
            ) as error:  # no compiler, or operations that it does not know: it raises anything
                if ran_out_of_memory(error):
                    raise
                # torch's own text begins with the name of the backend alone.
                cause = getattr(error, "inner_exception", error)
                self.stop(str(cause).partition("\n")[0])
                return function(*args, **kwargs)

        return fused
