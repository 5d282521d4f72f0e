"""Checkpoints of a training run; a resumed run is bit-identical to an uninterrupted one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, BinaryIO, TypedDict, cast

import torch

from sci_stream.errors import FileFormatError
from sci_stream.file_guard import complete_output, writing
from sci_stream.recon.denoisers.weights import read_pickled
from sci_stream_lab.training.learner import LearnerState

# Settings of networks of earlier versions, which checkpoints of all networks have.
_REMOVED_SETTINGS = ("pool", "noise_steps")
# The `format` entry of checkpoints; the number increases with every incompatible change.
FORMAT = "sci_stream.training.2"

_KINDS: dict[str, type | UnionType] = {
    "format": str,
    "settings": dict,
    "data_id": str,
    "n_images": int,
    "clips": list,
    "steps": int | None,
    "elapsed_s": int | float,
    "sessions": list,
    "begun_with": str,
    "learner": dict,
}
_SESSION_KINDS = {"device": str, "torch": str, "steps": int, "minutes": int | float}


class SessionRecord(TypedDict):
    """Machine and duration of one session of a run."""

    device: str
    torch: str
    steps: int
    minutes: float


class Checkpoint(TypedDict):
    """Content of a checkpoint.

    ``settings`` are those of `TrainingSettings`; ``steps`` is None while undecided; ``clips`` are
    the names of the clips to learn from, none in checkpoints from before there were any.
    """

    settings: dict[str, Any]
    data_id: str
    n_images: int
    clips: list[str]
    steps: int | None
    elapsed_s: float
    sessions: list[SessionRecord]
    begun_with: str
    learner: LearnerState


def checkpoint_path(run: Path) -> Path:
    """Return the path of a run's checkpoint."""
    return run / "checkpoint.pt"


def save_checkpoint(run: Path, content: Checkpoint) -> None:
    """Replace a run's checkpoint atomically: after a crash, the old or the new one is complete.

    Raises
    ------
    StorageError
        If writing fails.
    """
    write_atomically(
        checkpoint_path(run), lambda file: torch.save({**content, "format": FORMAT}, file)
    )


def load_checkpoint(run: Path) -> Checkpoint:
    """Read a run's checkpoint without executing code from it.

    Raises
    ------
    FileFormatError
        If it is missing, damaged or not a training checkpoint.
    """
    path = checkpoint_path(run)
    if not path.is_file():
        raise FileFormatError(
            f"There is no training run in {run}", expected=str(path), got="no such file"
        )
    hint = "It is damaged or from another program: start a new run in another folder."
    content = read_pickled(path, "a training checkpoint", hint=hint)
    if isinstance(content, dict):
        content.setdefault("clips", [])
    if (
        not isinstance(content, dict)
        or content.get("format") != FORMAT
        or not content.keys() >= _KINDS.keys()
    ):
        raise FileFormatError(
            f"{path} is not a training checkpoint of this version",
            expected=f"format {FORMAT!r} with {', '.join(sorted(_KINDS))}",
            got=repr(content.get("format"))
            if isinstance(content, dict)
            else type(content).__name__,
        )
    wrong = _of_other_kinds(content, _KINDS)
    if not wrong and any(
        _of_other_kinds(session, _SESSION_KINDS) for session in content["sessions"]
    ):
        wrong = ["sessions"]
    if wrong:
        raise FileFormatError(
            f"{path} has values of other kinds than a checkpoint", got=", ".join(wrong), hint=hint
        )
    for name in _REMOVED_SETTINGS:
        content["settings"].pop(name, None)
    return cast(Checkpoint, content)


def _of_other_kinds(values: object, kinds: Mapping[str, type | UnionType]) -> list[str]:
    if not isinstance(values, dict):
        return [type(values).__name__]
    return sorted(name for name, kind in kinds.items() if not isinstance(values.get(name), kind))


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file, in a folder that is created if missing: after a crash, it is complete or as it
    was.

    Raises
    ------
    StorageError
        If the disk is full, gone or not writable.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with complete_output(path, replace=True) as partial, partial.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
