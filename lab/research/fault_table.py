"""Print the names that a live rig gives to faults of its hardware, and their costs.

``python lab/research/fault_table.py RIG… [--faults NAME…] [--onset N]`` draws simulated rigs by
their numbers, and solves ten snapshots of each fault from its onset on. It prints for each the PSNR
that it costs in the last six without and with checks, in dB; the names, with the number of
snapshots that had them; and a verdict:

- *right*: the names are right;
- *beside*: a right name beside others;
- *wrong*: other names alone;
- *harmless*: no name, and at most 1 dB is lost;
- *silent*: no name, and more is lost;
- *false*: names without a fault.

The clock is pretended: each snapshot is looked at. With ``--onset 0``, the fault is there from the
start.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections import Counter

import torch

from sci_stream.recon.guarded import NO_GUARD
from sci_stream_lab.bench.hardware.drawn_rigs import drawn_rig
from sci_stream_lab.bench.hardware.faults import FAULTS
from sci_stream_lab.bench.hardware.faulty_rig import SOON, FaultyRig, Verdict, solved, verdict


def main() -> None:
    """Print a line for each rig and fault, and for each fault the medians and verdicts."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    warnings.simplefilter("ignore")
    verdicts: dict[str, list[Verdict]] = {name: [] for name in arguments.faults}
    onset = arguments.onset
    iterations = arguments.iterations
    for number in arguments.rigs:
        options = drawn_rig(number)
        if arguments.size:
            options = options.model_copy(
                update={"height_px": arguments.size, "width_px": arguments.size}
            )
        rig = FaultyRig(options)
        count = onset + SOON
        undisturbed = rig.snapshots(FAULTS["none"], onset=onset, count=count)
        right = solved(undisturbed, rig.calibration, iterations)
        print(
            f"rig {number}: {options.scene} × {options.speed:g}, {options.width_px} px, "
            f"B {options.n_frames}, {options.mask}, {options.bayer}, {options.bit_depth} bit, "
            f"{right[-1].report.psnr_db:.1f} dB",
            flush=True,
        )
        for name in arguments.faults:
            fault = FAULTS[name]
            series = rig.snapshots(fault, onset=onset, count=count)
            faulty = solved(series, rig.calibration, iterations)
            unchecked = solved(series, rig.calibration, iterations, NO_GUARD)
            one = verdict(fault, right[onset:], faulty[onset:], unchecked[onset:])
            verdicts[name].append(one)
            names = ", ".join(
                f"{name} {times}{'' if name in one.at_end else ' (gone)'}"
                for name, times in one.names.items()
            )
            lost = f"{one.unchecked_db:+6.1f} {one.lost_db:+6.1f} dB"
            print(f"{number} {name:10s} {lost} {one.word:8s} {names}", flush=True)
    for name, of_fault in verdicts.items():
        unchecked_db, lost_db = (
            statistics.median(getattr(one, loss) for one in of_fault)
            for loss in ("unchecked_db", "lost_db")
        )
        common = Counter(one.word for one in of_fault).most_common()
        counts = ", ".join(f"{word} {count}" for word, count in common)
        print(f"{name:10s} {unchecked_db:+6.1f} {lost_db:+6.1f} dB  {counts}")


parser = argparse.ArgumentParser()
parser.add_argument("rigs", nargs="+", type=int)
parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS))
parser.add_argument("--onset", type=int, default=8)
parser.add_argument("--iterations", type=int, default=4)
parser.add_argument("--size", type=int, default=0)

if __name__ == "__main__":
    arguments = parser.parse_args()
    main()
