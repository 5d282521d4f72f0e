"""The state of torch in the caller's thread, such as autocast, which must not change a solve."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def plain_torch_state() -> Iterator[None]:
    """Compute as in a program of its own: without autocast, inference mode or other defaults."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with contextlib.ExitStack() as state:
            state.enter_context(torch.device("cpu"))
            state.enter_context(torch.inference_mode(False))
            for device in ("cpu", "cuda"):
                state.enter_context(torch.autocast(device, enabled=False))
            yield
    finally:
        torch.set_default_dtype(dtype)
