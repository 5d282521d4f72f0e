"""A mask modulator of which every failure is the same to its rig: it is lost, and opened again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from sci_stream.errors import CameraLost, InputError
from sci_stream.ports import MaskModulator

log = logging.getLogger(__name__)


def guarded_modulator(modulator: MaskModulator) -> MaskModulator:
    """Return a modulator each method of which raises `CameraLost` whatever the driver raises.

    So it is opened again together with the camera. `InputError` passes. ``stop`` and ``close`` log
    failures and do not raise.
    """
    return cast(MaskModulator, _Guarded(modulator))


class _Guarded:
    def __init__(self, modulator: MaskModulator) -> None:
        self._modulator = modulator

    def __getattr__(self, name: str) -> Callable[..., Any]:
        guard = _quietly if name in ("stop", "close") else _guarded
        return partial(guard, name, getattr(self._modulator, name))


def _guarded(name: str, call: Callable[..., Any], *arguments: object) -> Any:
    try:
        result = call(*arguments)
        if name == "counters":
            return {str(name): int(count) for name, count in result.items()}
        return result
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # a driver may raise anything
        raise CameraLost(f"The mask modulator does not respond to {name}()", got=error) from error


def _quietly(name: str, call: Callable[[], None]) -> None:
    try:
        _guarded(name, call)
    except (CameraLost, InputError) as error:
        log.warning("%s: it is released without", error)
