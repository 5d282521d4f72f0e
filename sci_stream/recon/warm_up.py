"""The first solves of an engine: they load, record and fuse all that later ones use, and cost time
that is measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sci_stream.model import F32, Snapshot
from sci_stream.optics.calibration import Calibration
from sci_stream.ports import Abilities
from sci_stream.recon.backend.cuda_graph import Graphs
from sci_stream.recon.backend.fusion import Fusion
from sci_stream.recon.budget import SolveCosts

if TYPE_CHECKING:
    from sci_stream.recon.engine import Engine

# Root mean square difference, where white is 1, up to which fused solves are the plain ones: 16
# bits cost the network 0.07 to 0.56 of 255 (lab/research/speed-cpu.md).
_MAX_DIFFERENCE = 1e-3


class WarmUp:
    """Solves of a moving pattern by an engine, with its recordings and its fused operations."""

    def __init__(self, engine: Engine, graphs: Graphs, fusion: Fusion) -> None:
        self._engine = engine
        self._graphs = graphs
        self._fusion = fusion

    def measure(self, abilities: Abilities) -> SolveCosts:
        """Prepare everything, and return the costs of a solver with these abilities."""
        if self._fusion.possible:
            self._choose_fusion()
        # Where solves are recorded, each number again: the first time, the solve is recorded.
        counts = self._engine.rungs * 2 or self._cost_known_at(abilities)
        seconds = {iterations: self._solve(iterations)[0] for iterations in counts}
        full = self._engine.settings.iterations
        most = max(seconds)
        if abilities.steps and full > most:
            # All further ones are with the denoiser, as the first are.
            before = abilities.least_before
            least = min(seconds)
            each_s = (seconds[before] - seconds[least]) / (before - least)
            seconds[full] = seconds[most] + (full - most) * max(each_s, 0.0)
        return SolveCosts(seconds)

    def _cost_known_at(self, abilities: Abilities) -> tuple[int, ...]:
        """Numbers of iterations whose costs give those of all others: without stages, and with all
        of them.
        """
        least = self._engine.settings.min_iterations
        full = self._engine.settings.iterations
        if not abilities.steps:
            return (least,)
        # Two that differ by iterations alone, or all of them.
        before = abilities.least_before
        known = (least, before if least < before else full, before + abilities.steps)
        return tuple(sorted({min(max(least, count), full) for count in known}))

    def _choose_fusion(self) -> None:
        """Fuse operations if solves then are faster and the same."""
        iterations = self._engine.settings.min_iterations
        self._fusion.on = False
        plain_s, plain = [self._solve(iterations) for _ in range(2)][-1]
        self._graphs.clear()
        self._fusion.on = True
        fused_s, fused = [self._solve(iterations) for _ in range(2)][-1]
        difference = float(np.sqrt(np.mean(np.square(fused - plain))))
        if self._fusion.on and not difference <= _MAX_DIFFERENCE:
            self._fusion.stop(f"fused solves differ from plain ones by {difference:.1g}")
        self._fusion.on &= fused_s < plain_s
        if not self._fusion.on:
            self._graphs.clear()

    def _solve(self, iterations: int) -> tuple[float, F32]:
        """Solve two snapshots of a moving pattern, the first cold.

        Returns
        -------
        The seconds of the second, and both videos.
        """
        self._engine.forget()
        videos = []
        for seq in range(2):
            pattern = _moving_pattern(self._engine.calibration, seq)
            video, report = self._engine.reconstruct(pattern, iterations)
            videos.append(video.astype(np.float32))
        self._engine.forget()
        return report.solve_ns / 1e9, np.stack(videos)


def _moving_pattern(calibration: Calibration, seq: int) -> Snapshot:
    """Return a snapshot of waves that move fast enough to begin at levels of σ that real scenes
    begin at.
    """
    rows, columns = np.ogrid[: calibration.shape[0], : calibration.shape[1]]
    counts = np.zeros(calibration.shape, np.float32)
    for b, mask in enumerate(calibration.phi):
        moved = 1.5 * (b + seq * calibration.n_frames)
        frame = 0.5 + 0.3 * np.sin((columns - moved) / 3) * np.cos(rows / 2)
        counts += mask * frame.astype(np.float32)
    counts_dn = np.asarray(calibration.dark + calibration.full_scale_dn * counts, np.float32)
    return calibration.snapshot("warm-up", seq, counts_dn)
