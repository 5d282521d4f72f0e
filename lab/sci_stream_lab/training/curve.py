"""The validation curve of a run: one JSON object per line, in the order of the steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypedDict

from sci_stream.errors import FileFormatError
from sci_stream.file_guard import SMALL_BYTES, read_small
from sci_stream_lab.training.checkpoint import write_atomically


class CurvePoint(TypedDict):
    """A validation point; ``psnr_db`` by noise level on the 0–255 scale, and as ``solve`` of a
    short solve.
    """

    step: int
    minutes: float
    learning_rate: float
    loss: float
    psnr_db: dict[str, float]


def curve_path(run: Path) -> Path:
    """Return the path of a run's curve."""
    return run / "curve.jsonl"


def read_curve(run: Path) -> list[CurvePoint]:
    """Return the points of the curve.

    Raises
    ------
    FileFormatError
        If a line is not a point of a curve.
    """
    path = curve_path(run)
    points: list[CurvePoint] = []
    if not path.exists():
        return points
    content = read_small(path, "a training curve", SMALL_BYTES)
    for number, line in enumerate(content.decode(errors="replace").splitlines(), start=1):
        try:
            point = json.loads(line)
            numbers = [
                *map(point.get, ("step", "minutes", "learning_rate", "loss")),
                *point["psnr_db"].values(),
            ]
            if not all(isinstance(number, int | float) for number in numbers):
                raise TypeError
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise FileFormatError(
                f"Line {number} of {path} is not a point of a curve",
                expected="step, psnr_db, …",
                got=line[:80],
            ) from error
        points.append(point)
    return points


def write_curve(run: Path, points: list[CurvePoint]) -> None:
    """Replace the curve.

    It is small; replacing it as a whole keeps it complete and consistent with its checkpoint.

    Raises
    ------
    StorageError
        If writing fails.
    """
    text = "".join(json.dumps(point) + "\n" for point in points)
    write_atomically(curve_path(run), lambda file: file.write(text.encode()))
