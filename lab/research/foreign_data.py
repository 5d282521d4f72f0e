"""Study: which defects of the data are found, and none in right data; see foreign-data.md.

``python lab/research/foreign_data.py [EVERY]`` makes snapshots of the published sets, the capture
4fan14 and clips in ``video`` and ``video_train`` of SCI_STREAM_DATA: behind random, sparse,
blurred, moving and measured masks, with 0 to 1 % of noise, as 8-bit, 12-bit and floating-point
values. It prints each false finding, then for each mutilation of every EVERYth snapshot (3 by
default) how often each defect was named.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np

import sci_stream
from sci_stream.calibration.evidence.inspection import examine
from sci_stream.calibration.evidence.stuck_pixels import stuck_pixels
from sci_stream.model import Array
from sci_stream_lab.bench.reality.scenes import data_folder

SIZE = 128
RNG = np.random.default_rng(1)
CLIPS_AT = {"flower": (10,), "bigbuckbunny": (20,), "tears-of-steel-battle-clip-medium": (200, 900)}


def frames_of(path: Path, start: int, count: int) -> Array | None:
    """Return grey frames of a clip from this one on; None if it has fewer."""
    film, frames = cv2.VideoCapture(str(path)), []
    film.set(cv2.CAP_PROP_POS_FRAMES, start)
    while len(frames) < count:
        decoded, frame = film.read()
        if not decoded:
            return None
        frames.append(cv2.cvtColor(frame, cv2.COLOR_BGR2GRAY))
    return np.stack(frames).astype(np.float64)


def clips(folder: Path) -> Iterator[tuple[str, Array]]:
    """Yield names and frames."""
    for path in sorted((folder / "video").iterdir()):
        for start in CLIPS_AT.get(path.stem, ()):
            if (frames := frames_of(path, start, 48)) is not None:
                yield f"{path.stem[:5]}{start}", frames
    films = sorted((folder / "video_train").rglob("*.mkv"))
    for path in films[:: max(1, len(films) // 20)]:
        count = int(cv2.VideoCapture(str(path)).get(cv2.CAP_PROP_FRAME_COUNT))
        if (frames := frames_of(path, count // 3, 32)) is not None:
            yield path.stem[-14:], frames


def masks_of(kind: str, count: int, measured: Array) -> Array:
    """Return masks, (B, H, W), 0–1."""
    if kind == "measured":
        top, left = RNG.integers(0, measured.shape[1] - SIZE + 1, 2)
        return measured[:count, top : top + SIZE, left : left + SIZE]
    if kind == "moving":
        pattern = cv2.GaussianBlur(RNG.random((SIZE + 64, SIZE + 64)), (0, 0), 1.5)
        pattern = np.clip(0.5 + 0.45 * (pattern - pattern.mean()) / pattern.std(), 0.02, 1)
        steps = (np.array([[1, 0, -16 - 0.6 * b], [0, 1, -16]], np.float64) for b in range(count))
        return np.stack([cv2.warpAffine(pattern, step, (SIZE, SIZE)) for step in steps])
    masks = (RNG.random((count, SIZE, SIZE)) < (0.3 if kind == "sparse" else 0.5)).astype(
        np.float64
    )
    return (
        np.stack([cv2.GaussianBlur(mask, (0, 0), 0.7) for mask in masks])
        if kind == "blurred"
        else masks
    )


def right(folder: Path) -> Iterator[tuple[str, Array, Array]]:
    """Yield names, y (H, W) and masks (B, H, W) of right snapshots."""
    measured: Array = np.zeros((1, SIZE, SIZE))
    for path in sorted([*(folder / "benchmark").glob("*.mat"), *(folder / "real").glob("*.mat")]):
        data = sci_stream.load_measurement(path)
        masks = np.asarray(data.masks, np.float64) / np.max(data.masks)
        measured = masks if path.parent.name == "real" else measured
        yield from (
            (f"{path.stem}.{n}", np.asarray(y, np.float64), masks) for n, y in enumerate(data.y)
        )
    for name, clip in clips(folder):
        for kind, count in {
            "random": 8,
            "sparse": 16,
            "blurred": 10,
            "moving": 12,
            "measured": 14,
        }.items():
            if min(clip.shape[1:]) < SIZE:
                continue
            top, left = (int(RNG.integers(0, side - SIZE + 1)) for side in clip.shape[1:])
            masks = masks_of(kind, count, measured)
            y = (masks * clip[: len(masks), top : top + SIZE, left : left + SIZE]).sum(0)
            noise, bits = RNG.choice([0, 0.003, 0.01]), RNG.choice([0, 3900, 250])
            y += RNG.normal(0, noise * y.max() + 1e-9, y.shape)
            yield f"{name}.{kind}", np.rint(y / y.max() * bits).clip(0) if bits else y, masks


def _top(y: Array) -> float:
    return float(np.percentile(y, 99.9))


def _jpeg(y: Array, quality: int) -> Array:
    code = cv2.imencode(
        ".jpg",
        (y / y.max() * 250).clip(0, 255).astype(np.uint8),
        [cv2.IMWRITE_JPEG_QUALITY, quality],
    )
    return np.asarray(cv2.imdecode(code[1], cv2.IMREAD_GRAYSCALE), np.float64)


MUTILATIONS: dict[str, Callable[[Array, Array], tuple[Array, Array]]] = {
    **{
        f"gamma {g}": lambda y, m, g=g: ((y.clip(0) / _top(y)) ** g, m)
        for g in (0.45, 0.8, 0.9, 1.5)
    },
    **{
        f"black {b:+.0%}": lambda y, m, b=b: ((y + b * _top(y)).clip(0), m)
        for b in (0.1, 0.05, 0.03, 0.02, -0.04, -0.1)
    },
    "masks inverted": lambda y, m: (y, 1 - m),
    "masks transposed": lambda y, m: (y, m.transpose(0, 2, 1)),
    "masks upside down": lambda y, m: (y, m[:, ::-1]),
    "masks turned": lambda y, m: (y, np.rot90(m, 1, (1, 2))),
    "masks moved (0, 1)": lambda y, m: (y, np.roll(m, 1, 2)),
    "masks moved (-2, 1)": lambda y, m: (y, np.roll(m, (-2, 1), (1, 2))),
    "masks of another camera": lambda y, m: (y, RNG.permutation(m.ravel()).reshape(m.shape)),
    "masks blurred": lambda y, m: (
        y,
        np.stack([cv2.GaussianBlur(mask, (0, 0), 0.6) for mask in m]),
    ),
    "last mask missing": lambda y, m: (y, m[:-1]),
    "two more masks": lambda y, m: (y, np.concatenate([m, RNG.permuted(m[:2], axis=1)])),
    "one more mask before": lambda y, m: (y, np.concatenate([RNG.permuted(m[:1], axis=1), m])),
    "clipped at 95 %": lambda y, m: (np.minimum(y, np.percentile(y, 95)), m),
    **{f"JPEG {q}": lambda y, m, q=q: (_jpeg(y, q), m) for q in (90, 75, 50)},
}


def main() -> None:
    """Print false findings, and how often each mutilation was named."""
    samples = list(right(data_folder()))
    false = 0
    for name, y, masks in samples:
        found, stuck = (
            [defect.name for defect in examine(y, masks)],
            int(stuck_pixels(y, masks).sum()),
        )
        if found or stuck:
            false += 1
            print(f"right data {name}: {', '.join(found)}, {stuck} stuck pixels")
    print(f"{false} of {len(samples)} right snapshots have a false finding")
    for what, mutilate in MUTILATIONS.items():
        counts: Counter[str] = Counter()
        for _, y, masks in samples[:: int(sys.argv[1]) if sys.argv[1:] else 3]:
            counts["+".join(defect.name for defect in examine(*mutilate(y, masks))) or "none"] += 1
        print(
            f"{what:24}",
            ", ".join(f"{name} {count}" for name, count in counts.most_common()),
            flush=True,
        )


if __name__ == "__main__":
    main()
