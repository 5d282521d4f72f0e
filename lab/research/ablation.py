"""Study: what each constant of the solver is worth on the scenes of `bench reality`; see
docs/algorithm.md.

``python lab/research/ablation.py reporting "lmmse._DECISION=8"
"lmmse._TEXTURE=0.0;error_map._MIN_LEVEL=0.2"`` solves half of the scenes with the constants as they
are, then with each argument's values in their place, and prints the change of the PSNR, mean over
the scenes of each group, in dB: 12 / 4 iterations of `ffdnet-lite`, 128 × 128 pixels, and in
parentheses the worst case. A constant is named by its module and its own name, ``settings.NAME`` is
a setting of the solver, values are Python. Names of groups as an argument, as in ``none,noise``,
restrict it to them. SCI_STREAM_DATA names the data.

Groups: published masks, s = 0.5, without an error, with noise, a shift, and everything, each third
snapshot solved cold; ``jitter`` behind shift masks, B = 14; ``blurred``: published masks, s = 0.8;
``random``: s = 0.5, B = 14; ``binary``: every second whole shot of the published set of that half;
``warm``: the third of three snapshots of each scene and of the published set, each solved from the
one before; ``cut`` (with ``warm``): a snapshot of one scene after one of another.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import sys
from collections import defaultdict
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch

from sci_stream.config import ReconstructSection
from sci_stream.devices.solver import make_prior
from sci_stream.model import Snapshot
from sci_stream.optics.calibration import Calibration
from sci_stream.recon.backend.device import pick_device
from sci_stream.recon.engine import Engine
from sci_stream_lab.bench.reality.perturbations import parse_perturbation
from sci_stream_lab.bench.reality.rigs import OpticalSetup, film
from sci_stream_lab.bench.reality.scenes import (
    SCENES,
    NamedScene,
    SceneFormat,
    SceneUnavailableError,
)

CPU = pick_device("cpu")
PRIOR, SETTINGS = make_prior(ReconstructSection(solver="ffdnet-lite"), CPU)
ITERATIONS = (12, 4)
PLACES = (
    "sci_stream.recon",
    "sci_stream.recon.initialization",
    "sci_stream.recon.algorithms",
    "sci_stream.recon.denoisers",
)


class Series(NamedTuple):
    """Snapshots of a scene; the last one is what counts,
    solved from those before it if ``warm``.
    """

    group: str
    scene: str
    calibration: Calibration
    snapshots: tuple[Snapshot, ...]
    warm: bool = False


class Group(NamedTuple):
    """A rig, its errors, and the number of scenes it takes; 0 for all."""

    name: str
    rig: OpticalSetup
    perturbation: str
    scenes: int
    warm: bool = False


PUBLISHED = OpticalSetup("published", 0.5, 8)
GROUPS = (
    *(Group(name, PUBLISHED, name, 0) for name in ("none", "noise", "shift", "all")),
    Group("jitter", OpticalSetup("shift", 0.5, 14), "jitter", 3),
    Group("blurred", OpticalSetup("published", 0.8, 8), "none", 3),
    Group("random", OpticalSetup("random", 0.5, 14), "none", 3),
    Group("warm", PUBLISHED, "none", 0, warm=True),
)
SIZE, WHOLE = 128, 256


def films(half: str, names: list[str]) -> Iterator[Series]:
    """Yield all series of a half of the scenes; of some groups, if these are named."""
    scenes = [scene for scene in SCENES if scene.half == half]
    for group in GROUPS:
        if names and group.name not in names:
            continue
        left, before = group.scenes or len(scenes), ()
        for scene in scenes:
            taken = videos(scene, SceneFormat(SIZE, group.rig.n_frames, False, 3)) if left else None
            if taken is None:
                continue
            left -= 1
            series = film(
                group.rig, group.rig.optics(SIZE), taken, parse_perturbation(group.perturbation)
            )
            yield Series(group.name, scene.name, series.assumed, series.snapshots, group.warm)
            if group.warm:
                if before and (not names or "cut" in names):
                    yield Series(
                        "cut",
                        scene.name,
                        series.assumed,
                        (before[-2], series.snapshots[-1]),
                        warm=True,
                    )
                before = series.snapshots
    rig = OpticalSetup("published", 0.0, 8)
    for scene in scenes:
        taken = (
            videos(scene, SceneFormat(WHOLE, 8, False, 9))
            if scene.name in {"traffic", "crash"}
            else None
        )
        if taken is None:
            continue
        made = film(rig, rig.optics(WHOLE), taken, parse_perturbation("none"))
        if not names or "binary" in names:
            for snapshot in made.snapshots[::2]:
                yield Series("binary", scene.name, made.assumed, (snapshot,))
        if not names or "warm" in names:
            yield Series("warm", scene.name, made.assumed, made.snapshots[:3], warm=True)


def videos(scene: NamedScene, take: SceneFormat) -> np.ndarray | None:
    """Return the videos of a scene; None if its data are not here."""
    try:
        return scene.frames(take)
    except SceneUnavailableError:
        return None


def solved(series: Series, settings: dict[str, Any], iterations: int) -> float:
    """Return the PSNR of the last snapshot, dB."""
    engine = Engine(series.calibration, PRIOR, CPU, dataclasses.replace(SETTINGS, **settings))
    for snapshot in series.snapshots if series.warm else series.snapshots[-1:]:
        _, report = engine.reconstruct(snapshot, iterations)
    assert report.psnr_db is not None
    return report.psnr_db


def changed(variant: str) -> dict[str, Any]:
    """Set the constants of a variant such as ``lmmse._TEXTURE=0.0``; return the settings that it
    has.
    """
    settings: dict[str, Any] = {}
    for part in variant.split(";"):
        name, _, value = part.partition("=")
        module, _, constant = name.rpartition(".")
        if module == "settings":
            settings[constant] = ast.literal_eval(value)
            continue
        place = _module(module)
        before = getattr(place, constant)
        new = ast.literal_eval(value)
        setattr(place, constant, type(before)(*new) if hasattr(before, "_fields") else new)
        UNDO.append((place, constant, before))
    return settings


UNDO: list[tuple[ModuleType, str, object]] = []


def _module(name: str) -> ModuleType:
    for place in PLACES:
        try:
            return importlib.import_module(f"{place}.{name}")
        except ModuleNotFoundError:
            continue
    raise SystemExit(f"no module {name} below {', '.join(PLACES)}")


def measured(every: list[Series], settings: dict[str, Any]) -> dict[str, list[list[float]]]:
    """Return the PSNR of every series with each number of iterations, by group."""
    scores: dict[str, list[list[float]]] = defaultdict(list)
    for series in every:
        scores[series.group].append(
            [solved(series, settings, iterations) for iterations in ITERATIONS]
        )
    return scores


def main() -> None:
    """Print a line for each variant."""
    torch.set_num_threads(1)
    half, *variants = sys.argv[1:]
    names = [name for variant in variants if "=" not in variant for name in variant.split(",")]
    every = list(films(half, names))
    before = measured(every, {})
    print(
        f"{'as it is':40} "
        + ", ".join(f"{group} {_means(rows)}" for group, rows in before.items()),
        flush=True,
    )
    for group in before:
        print(f"  {group:8} " + ", ".join(s.scene for s in every if s.group == group))
    for variant in variants:
        if "=" not in variant:
            continue
        after = measured(every, changed(variant))
        while UNDO:
            setattr(*UNDO.pop())
        parts = []
        for group, rows in after.items():
            change = np.array(rows) - np.array(before[group])
            parts.append(
                f"{group} {change[:, 0].mean():+.2f} / {change[:, 1].mean():+.2f} "
                f"({change.min():+.2f})"
            )
        print(f"{variant:40} " + ", ".join(parts), flush=True)


def _means(rows: list[list[float]]) -> str:
    return " / ".join(f"{mean:.2f}" for mean in np.mean(rows, axis=0))


if __name__ == "__main__":
    main()
