"""What a training asks of its data, whether photographs or clips."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Protocol, TypeVar

import torch

DRAWING_THREADS = {"cpu": 1, "cuda": 8}
"""Threads that draw batches ahead, by type of device: the cores of a CPU are needed for
learning."""

T = TypeVar("T")
SamplesT = TypeVar("SamplesT")
WeightsT = TypeVar("WeightsT")
_SamplesT_co = TypeVar("_SamplesT_co", covariant=True)
_WeightsT_contra = TypeVar("_WeightsT_contra", contravariant=True)


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """What a network learns from in one step, on the device.

    Parameters
    ----------
    inputs
        (N, C, h, w), as `sci_stream.recon.denoisers.ffdnet.denoised_subpixels` takes them.
    truth
        (N, 1, 2h, 2w), the targets of the network.
    """

    inputs: torch.Tensor
    truth: torch.Tensor


class TrainingData(Protocol[_SamplesT_co, _WeightsT_contra]):
    """Batches to learn from, and held-out images for validation."""

    @property
    def id(self) -> str:
        """Digits that identify the data, held-out ones included."""
        ...

    @property
    def n_images(self) -> int:
        """Number of photographs to learn from."""
        ...

    @property
    def clips(self) -> Sequence[str]:
        """Names of the clips to learn from."""
        ...

    def batches(self, step: int, /) -> AbstractContextManager[Iterator[_SamplesT_co]]:
        """Give the batches of all steps from this one on, counted from 0."""
        ...

    def psnr_db(self, weights: _WeightsT_contra, /) -> dict[str, float]:
        """Return the PSNR in dB on held-out data, by noise level on the 0–255 scale or by what else
        is measured.
        """
        ...


@contextmanager
def drawn_ahead(draw: Callable[[int], T], first: int, threads: int) -> Iterator[Iterator[T]]:
    """Yield ``draw(first)``, ``draw(first + 1)``, … endlessly, drawn ahead by threads; their order
    is always this.
    """
    with ThreadPoolExecutor(threads, "draw") as executor:
        waiting = deque(executor.submit(draw, first + n) for n in range(threads + 1))

        def in_order() -> Iterator[T]:
            for n in count(first + threads + 1):
                drawn = waiting.popleft().result()
                waiting.append(executor.submit(draw, n))
                yield drawn

        try:
            yield in_order()
        finally:
            executor.shutdown(cancel_futures=True)
