"""Study findings of the guarded solve in data that is right: there should be none.

``python lab/research/right_data.py PART… [--first N] [--every K]`` solves every K-th case of each
part from the N-th on, and prints each case with a defect, or with a correction that changes the
result by less than 0.02 dB or costs more than that. The parts:

- ``arrays``: a snapshot of each scene behind nine kinds of masks, B from 2 to 24, crops of 64 and
  128 px, counts of 8 to 12 bits or numbers with a fraction, through `sci_stream.reconstruct`;
- ``simulated``: series of four snapshots of each scene of the simulated camera, through
  `sci_stream.reconstruct`;
- ``stream``: the same snapshots through `sci_stream.reconstruct_stream`;
- ``rig``: each scene of the simulated camera, 96 × 96, for 30 s through the solver thread;
- ``series``: 500 drawn rigs of 128 to 1024 px, B from 4 to 24, eleven snapshots each, with all
  checks of a live rig. The clock is pretended: each snapshot is looked at.

SCI_STREAM_DATA names the data; scenes that are not there are left out.
"""

from __future__ import annotations

import argparse
import itertools
import queue
import time
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

import sci_stream
from sci_stream.calibration.diagnosis import diagnose
from sci_stream.config import ReconstructSection
from sci_stream.nodes.reconstruct.solver_thread import Solved, SolverThread
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.mask_errors import MaskCorrection
from sci_stream.recon.metrics import psnr
from sci_stream_drivers.simulated.options import SCENES as SIMULATED
from sci_stream_lab.bench.datasets import Footage, filmed, filmed_scene
from sci_stream_lab.bench.hardware.drawn_rigs import drawn_rig
from sci_stream_lab.bench.hardware.faulty_rig import solved as solved_live
from sci_stream_lab.bench.reality.scenes import SCENES, SceneFormat, SceneUnavailableError

SIZES = (128, 64)
FRAMES = (2, 4, 8, 16, 24)
MASKS = ("half", "30", "grey", "shift", "balanced", "onehot", "blur", "weak", "coarse")
# None: numbers with a fraction, as a simulation makes them.
BITS = (12, 10, 8, None)
NOISE = (0.0, 0.003, 0.01, 0.02)
ITERATIONS = 4
SNAPSHOTS = 4
RIG_PX = 96
RIG_S = 30.0
RIG_PERIOD_S = 0.1
SERIES = 500
SERIES_SNAPSHOTS = 11
# A smaller change of the result is no reason for a correction.
LEAST_DB = 0.02


class Case(NamedTuple):
    """Names of defects, corrections in words, and the gain over the solve without checks."""

    name: str
    defects: tuple[str, ...]
    correction: str
    gain_db: float

    @property
    def is_right(self) -> bool:
        """Whether right data is left alone."""
        pays = not self.correction or self.gain_db >= LEAST_DB
        return not self.defects and pays and self.gain_db > -LEAST_DB


def made_masks(kind: str, shape: tuple[int, int, int], rng: np.random.Generator) -> np.ndarray:
    """Return masks of a kind."""
    B, H, W = shape
    order = rng.random(shape).argsort(0)
    moving = rng.random((H, W + B)) < 0.5
    half = (rng.random(shape) < 0.5).astype(np.float32)
    blurred = torch.nn.functional.avg_pool2d(torch.from_numpy(half), 3, 1, 1).numpy()
    kinds = {
        "half": half,
        "30": rng.random(shape) < 0.3,
        "grey": rng.random(shape),
        "shift": np.stack([moving[:, b : b + W] for b in range(B)]),
        "balanced": order < max(1, B // 2),
        "onehot": order == 0,
        "blur": blurred,
        "weak": 0.5 + 0.3 * rng.random(shape),
        "coarse": half[:, ::4, ::4].repeat(4, 1).repeat(4, 2),
    }
    return kinds[kind].astype(np.float32)


def solved(name: str, y: np.ndarray, masks: np.ndarray | Calibration, truth: np.ndarray) -> Case:
    """Solve with and without checks."""
    options = {"truth": truth, "solver": "tv", "iterations": ITERATIONS}
    result = sci_stream.reconstruct(y, masks, on_mismatch="snapshot", **options)
    bare = sci_stream.reconstruct(y, masks, check_masks=False, **options)
    gain_db = (result.psnr_db or 0.0) - (bare.psnr_db or 0.0)
    names = tuple(f"{one.name}: {one.text[:70]}" for one in result.defects)
    return Case(name, names, result.correction.words, gain_db)


def arrays() -> Iterator[Case]:
    """Yield the cases of single snapshots."""
    cases = itertools.product(SIZES, SCENES, FRAMES, MASKS)
    for number, (size, scene, B, kind) in enumerate(cases):
        if not is_chosen(number):
            continue
        try:
            x = scene.frames(SceneFormat(size, B, False, 1))[0]
        except SceneUnavailableError:
            continue
        rng = np.random.default_rng(number)
        phi = made_masks(kind, x.shape, rng)
        noise = NOISE[rng.integers(len(NOISE))]
        bits = BITS[rng.integers(len(BITS))]
        y = (phi * x).sum(0) + noise * rng.standard_normal(x.shape[1:])
        if bits is not None:
            y = np.round(y.clip(0) / (1.2 * y.max()) * (2**bits - 1)).astype(np.uint16)
        yield solved(f"{size} {scene.name} {B} {kind} {bits} bit {noise}", y, phi, x)


def films() -> Iterator[tuple[str, Footage]]:
    """Yield series of the simulated camera."""
    cases = itertools.product((96, 64), SIMULATED, (4, 8, 16), ("shifting", "moving", "random"))
    for number, (size, scene, B, mask) in enumerate(cases):
        if not is_chosen(number):
            continue
        options = {
            "height_px": size,
            "width_px": size,
            "n_frames": B,
            "mask": mask,
            "bit_depth": BITS[number % 3],
            "bayer": None,
            "seed": number,
        }
        footage = filmed_scene(scene, snapshots=SNAPSHOTS, **options)
        yield f"{size} {scene} {B} {mask}", footage


def simulated() -> Iterator[Case]:
    """Yield the cases of series."""
    for name, footage in films():
        y = np.stack([one.counts for one in footage.snapshots])
        truth = np.stack([one.truth for one in footage.snapshots])
        yield solved(name, y, footage.calibration, truth)


def stream() -> Iterator[Case]:
    """Yield the cases of series, one snapshot after the other."""
    for name, footage in films():
        counts = [one.counts for one in footage.snapshots]
        options = {"solver": "tv", "iterations": ITERATIONS}
        ways = (
            sci_stream.reconstruct_stream(counts, footage.calibration, **checks, **options)
            for checks in ({"on_mismatch": "snapshot"}, {"check_masks": False})
        )
        for snapshot, result, bare in zip(footage.snapshots, *ways, strict=True):
            before_db, after_db = (
                psnr(torch.from_numpy(one.video), torch.from_numpy(snapshot.truth))
                for one in (bare, result)
            )
            names = tuple(f"{one.name}: {one.text[:70]}" for one in result.defects)
            words = result.correction.words
            yield Case(f"{name} #{snapshot.id.seq}", names, words, after_db - before_db)


def rig() -> Iterator[Case]:
    """Yield each snapshot of a live rig that has a defect or a correction."""
    for number, (scene, mask) in enumerate(itertools.product(SIMULATED, ("shifting", "random"))):
        if not is_chosen(number):
            continue
        options = {"height_px": RIG_PX, "width_px": RIG_PX, "mask": mask, "bayer": None}
        count = int(RIG_S / RIG_PERIOD_S)
        footage = filmed_scene(scene, snapshots=count, n_frames=8, **options)
        checked = live(footage, {})
        bare = live(footage, {"health_every": 0})
        for snapshot, one, other in zip(footage.snapshots, checked, bare, strict=True):
            names = ()
            if one.report.health is not None:
                defects = diagnose(one.report.health, 0.1)
                names = tuple(f"{defect.name}: {defect.text[:70]}" for defect in defects)
            words = MaskCorrection.from_text(one.report.masks_at).words
            gain_db = (one.report.psnr_db or 0.0) - (other.report.psnr_db or 0.0)
            yield Case(f"{scene} {mask} #{snapshot.id.seq}", names, words, gain_db)


def live(footage: Footage, calibration: dict[str, int]) -> list[Solved]:
    """Return the results of the solver thread, at the pace of a camera."""
    rig_file = sci_stream.config.CalibrationSection(**calibration)
    section = ReconstructSection(
        solver="tv", iterations=ITERATIONS, threads=1, video_dtype="float32", adapt_budget=False
    )
    solver = SolverThread(section, "cpu", rig_file)
    woken: queue.SimpleQueue[None] = queue.SimpleQueue()
    solver.start(lambda: woken.put(None))
    solver.adopt(footage.calibration)
    results: list[Solved] = []
    for snapshot in footage.snapshots:
        if not calibration:
            time.sleep(RIG_PERIOD_S)
        solver.submit(snapshot)
        results += one_result(solver, woken)
    solver.stop()
    return results


def one_result(solver: SolverThread, woken: queue.SimpleQueue[None]) -> list[Solved]:
    """Wait for the result of a snapshot."""
    results: list[Solved] = []
    while not results:
        woken.get(timeout=120)
        results += [one for one in solver.results() if isinstance(one, Solved)]
    return results


def series() -> Iterator[Case]:
    """Yield a case of each drawn series: all that its snapshots seem to show."""
    for number in range(SERIES):
        if not is_chosen(number):
            continue
        options = drawn_rig(number)
        fields = options.model_dump(exclude_unset=True) | {"snapshots": SERIES_SNAPSHOTS}
        footage = filmed(options.scene, "simulated", **fields)
        names = {
            one.name: f"{one.name}: {one.text[:70]}"
            for delivered in solved_live(footage.snapshots, footage.calibration, ITERATIONS)
            for one in delivered.defects
        }
        yield Case(f"{number} {options.scene}", tuple(names.values()), "", 0.0)


PARTS = {"arrays": arrays, "simulated": simulated, "stream": stream, "rig": rig, "series": series}


def is_chosen(number: int) -> bool:
    """Return whether a case is one of those that were asked for."""
    return number >= arguments.first and (number - arguments.first) % arguments.every == 0


def main() -> None:
    """Print the findings, and the counts."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    warnings.simplefilter("ignore")
    for part in arguments.parts:
        total = findings = 0
        try:
            for case in PARTS[part]():
                total += 1
                if not case.is_right:
                    findings += 1
                    found = (*case.defects, case.correction)
                    print(f"{part} {case.name}: {case.gain_db:+.3f} dB, {found}", flush=True)
        finally:
            # Also where it is interrupted.
            print(f"{part}: {findings} findings in {total} results", flush=True)


parser = argparse.ArgumentParser()
parser.add_argument("parts", nargs="+", choices=PARTS)
parser.add_argument("--first", type=int, default=0)
parser.add_argument("--every", type=int, default=1)

if __name__ == "__main__":
    arguments = parser.parse_args()
    main()
