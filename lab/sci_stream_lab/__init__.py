"""The laboratory of `sci_stream`: benchmarks, training of denoisers, and the paper's methods.

``sci_stream_lab.compare`` compares solvers on a measurement, as ``sci-stream compare`` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sci_stream_lab.bench.quality.solvers import compare_solvers as compare

__all__ = ["compare"]


def __getattr__(name: str) -> object:
    if name != "compare":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sci_stream_lab.bench.quality.solvers import compare_solvers  # noqa: PLC0415 - it loads torch

    return compare_solvers
