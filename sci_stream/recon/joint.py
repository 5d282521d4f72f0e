"""A series that is not live: windows of consecutive snapshots are finished jointly.

The first and last frames of an exposure have neighbours on one side alone, and are worse than the
middle: video pulses at the snapshot rate. So each snapshot is solved as live, from the one before
it. Then the last steps of a solver that can see several snapshots as one video are repeated for a
window of them (`sci_stream.ports.SeriesReconstructor`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from sci_stream.model import Snapshot
from sci_stream.recon.backend.async_solve import video_psnr
from sci_stream.recon.guarded import Delivered

Solved = tuple[Snapshot, Delivered]

# Pixels of all frames of a window: about 2.5 GB with the shipped stages.
_MAX_PIXELS = 2**25
# Snapshots of a block, which is fewer than a resumed replay solves again.
_MAX_BLOCK = 14


def jointly(solved: Iterable[Solved]) -> Iterator[Solved]:
    """Yield solved snapshots in order, those of one scene finished jointly.

    A window is a block of snapshots, counted by their seq, with the one before and the one after.
    A lost or withheld snapshot, other settings, and a start that the video before did not help
    break it. A snapshot without a tail passes as it is, at once.
    """
    window: list[Solved] = []
    yielded = 0
    for one in solved:
        if window and not _continues(window[-1], one):
            yield from _finished(window)[yielded:]
            window = []
            yielded = 0
        elif window and _block(window[-1]) != _block(one):
            yield from _finished([*window, one])[yielded:-1]
            window = window[-1:]
            yielded = 1
        if one[1].tail is None:
            yield one
        else:
            window.append(one)
    yield from _finished(window)[yielded:]


def _continues(before: Solved, now: Solved) -> bool:
    """Whether two snapshots can be in one window."""
    _, first = before
    snapshot, second = now
    if first.tail is None or second.tail is None:
        return False
    settings = (first.tail.engine, first.tail.steps, first.tail.turns)
    return (
        settings == (second.tail.engine, second.tail.steps, second.tail.turns)
        and second.report.start_reason == "warm"
        and _block_length(snapshot) > 1
    )


def _block(one: Solved) -> int:
    snapshot, _ = one
    return snapshot.id.seq // _block_length(snapshot)


def _block_length(snapshot: Snapshot) -> int:
    """Return the snapshots of a block by the memory that a window takes."""
    return min(_MAX_BLOCK, _MAX_PIXELS // (snapshot.n_frames * snapshot.counts.size) - 2)


def _finished(window: list[Solved]) -> list[Solved]:
    """Return the snapshots of a window with the videos of their joint solve."""
    tails = [delivered.tail for _, delivered in window if delivered.tail is not None]
    if len(tails) < 2:
        return window
    began_s = time.perf_counter()
    joint = tails[0].engine.finish_jointly(tails)
    share_ns = int((time.perf_counter() - began_s) * 1e9) // len(tails)
    finished = []
    for (snapshot, single), (video, residual, moving_fields) in zip(window, joint, strict=True):
        if not np.isfinite(video).all():
            finished.append((snapshot, single))
            continue
        truth = snapshot.truth
        report = replace(
            single.report,
            solve_ns=single.report.solve_ns + share_ns,
            residual=residual,
            **moving_fields,
            psnr_db=None if truth is None else video_psnr(video, truth),
        )
        finished.append((snapshot, single._replace(video=video, report=report)))
    return finished
