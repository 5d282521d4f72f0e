"""Right measurements, and random mutilations of them, as arrays and files of others have them."""

from __future__ import annotations

import enum
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import h5py
import numpy as np
import scipy.io

import sci_stream
from sci_stream.errors import SciStreamError
from sci_stream.model import Array
from sci_stream.optics.white import brightness_percentile

SIZE = 96
# Loss against the control from which a video is wrong, dB, and the factor of its brightness.
_LOSS_DB, _BRIGHTNESS = 0.2, 2.0

Rng = np.random.Generator


@dataclass(frozen=True, eq=False)
class Sample:
    """A series: frames x (N, B, H, W), 0–1, masks (B, H, W), 0–1, y (N, H, W), Σ masks·x with
    noise.

    ``truth`` is passed to the reconstruction; ``what`` names the changes, ``harmless`` says whether
    it is still right.
    """

    x: Array
    masks: Array
    y: Array
    truth: Array | None = None
    what: str = ""
    harmless: bool = True

    def after(self, what: str, *, harmless: bool = False, **arrays: Array) -> Sample:
        return replace(
            self,
            **arrays,
            what=f"{self.what}, {what}".lstrip(", "),
            harmless=self.harmless and harmless,
        )


def blurred(image: Array, px: float) -> Array:
    return np.asarray(cv2.GaussianBlur(image, (0, 0), px))


def painted(rng: Rng, count: int, size: int) -> Array:
    """Return frames of a texture over which bright and dark squares move."""
    layers = sum(blurred(rng.random((size, size)), px) * px for px in (1, 3, 9, 27))
    frames = np.repeat(
        (0.05 + 0.6 * (layers - layers.min()) / np.ptp(layers))[np.newaxis], count, 0
    )
    for _ in range(4):
        (top, left), (dy, dx), level = (
            rng.integers(5, size - 35, 2),
            rng.integers(-1, 2, 2),
            rng.uniform(0.05, 0.95),
        )
        for n, frame in enumerate(frames):
            row, column = np.clip((top + n * dy, left + n * dx), 0, size - 25)
            frame[row : row + 25, column : column + 20] = level
    return np.asarray(frames.clip(0, 1))


def masks_of(rng: Rng, count: int, size: int) -> Array:
    """Return random, sparse, blurred or moving masks."""
    kind = rng.integers(4)
    if kind == 3:
        pattern = blurred(rng.random((size + count, size + count)), 1.0)
        pattern = (0.5 + 0.3 * (pattern - pattern.mean()) / pattern.std()).clip(0.02, 1)
        return np.stack([pattern[b : b + size, b : b + size] for b in range(count)])
    masks = (rng.random((count, size, size)) < (0.3 if kind == 1 else 0.5)).astype(np.float64)
    return np.stack([blurred(mask, 0.6) for mask in masks]) if kind == 2 else masks


def right(rng: Rng, clip: Array | None = None) -> Sample:
    """Return right data of a painted scene, or of the frames of a clip, (n, H, W), 0–1."""
    frames, snapshots = int(rng.choice([4, 6, 8, 10])), int(rng.choice([1, 1, 2]))
    count = frames * snapshots
    if clip is None or len(clip) < count or min(clip.shape[1:]) < SIZE:
        x = painted(rng, count, SIZE)
    else:
        top, left = (int(rng.integers(0, side - SIZE + 1)) for side in clip.shape[1:])
        x = clip[:count, top : top + SIZE, left : left + SIZE].astype(np.float64)
    x = x.reshape(snapshots, frames, SIZE, SIZE)
    masks = masks_of(rng, frames, SIZE)
    y = np.einsum("bhw,nbhw->nhw", masks, x)
    y += rng.normal(0, rng.choice([0, 0.002, 0.005]) * y.max(), y.shape)
    levels = int(rng.choice([250, 60_000]))
    y = np.rint(y / y.max() * levels) * y.max() / levels
    return Sample(
        x,
        masks,
        y,
        x.reshape(-1, SIZE, SIZE) if rng.random() < 0.3 else None,
        f"B={frames} N={snapshots}",
    )


# --- changes that leave the data right


def _scale(rng: Rng, s: Sample) -> Sample:
    top = float(s.y.max())
    names = ("/max", "/B", "/255", "255", "4095/max", "1e-9", "65535/max", "1")
    values = (1 / top, 1 / len(s.masks), 1 / 255, 255.0, 4095 / top, 1e-9, 65535 / top, 1.0)
    i = rng.integers(len(names))
    return s.after(f"y·{names[i]}", harmless=True, y=s.y * values[i])


def _dtype(rng: Rng, s: Sample) -> Sample:
    dtype, top = [
        ("u1", 250),
        ("u2", 60000),
        ("i4", 60000),
        ("f4", 1000),
        (">u2", 60000),
        ("i8", 1e6),
    ][rng.integers(6)]
    if top == 250 and len(np.unique(s.y)) > 500:
        dtype, top = "u2", 60000  # 8 bits would lose something
    y = (s.y / s.y.max() * top).clip(0 if "u" in dtype else None)
    return s.after(dtype, harmless=True, y=(y if dtype == "f4" else np.rint(y)).astype(dtype))


def _mask_type(rng: Rng, s: Sample) -> Sample:
    factor, dtype = [(255, "u1"), (1, "f4"), (4095, "u2"), (0.01, "f8"), (255, "f4"), (17.3, "f4")][
        rng.integers(6)
    ]
    masks = s.masks * factor
    masks = (np.rint(masks) if "u" in dtype else masks).astype(dtype)
    return s.after(f"masks·{factor} {dtype}", harmless=True, masks=masks)


def _truth_type(rng: Rng, s: Sample) -> Sample:
    del rng
    return s.after(
        "truth", harmless=True, truth=np.rint(s.x.reshape(-1, *s.x.shape[2:]) * 255).astype("u1")
    )


HARMLESS = (_scale, _dtype, _mask_type, _truth_type)


# --- changes that do not


def _turned(rng: Rng, s: Sample) -> Sample:
    turns: tuple[tuple[str, Callable[[Array], Array]], ...] = (
        ("transposed", lambda a: a.swapaxes(-1, -2)),
        ("flipped", lambda a: a[..., ::-1, :]),
        ("mirrored", lambda a: a[..., ::-1]),
        ("turned", lambda a: np.rot90(a, 1, (-2, -1))),
        ("upside down", lambda a: a[..., ::-1, ::-1]),
    )
    name, turn = turns[rng.integers(len(turns))]
    if rng.random() < 0.5:
        return s.after(f"masks {name}", masks=turn(s.masks))
    return s.after(f"y {name}", y=turn(s.y))


def _order(rng: Rng, s: Sample) -> Sample:
    B = len(s.masks)
    order = [np.arange(B)[::-1], rng.permutation(B), np.roll(np.arange(B), 1)][rng.integers(3)]
    truth = s.x.reshape(-1, *s.x.shape[2:])  # nothing else shows an order
    return s.after(f"order {order.tolist()}", masks=s.masks[order], truth=truth)


def _offset(rng: Rng, s: Sample) -> Sample:
    share = float(rng.choice([0.02, 0.04, 0.06, 0.1, 0.2, -0.1]))
    return s.after(f"black {share:+.0%}", y=(s.y + share * np.percentile(s.y, 99.9)).clip(0))


def _gamma(rng: Rng, s: Sample) -> Sample:
    gamma, top = float(rng.choice([0.45, 0.6, 0.8, 1.5, 2.2])), np.percentile(s.y, 99.9)
    return s.after(f"gamma {gamma}", y=(s.y.clip(0) / top) ** gamma * top)


def _number(rng: Rng, s: Sample) -> Sample:
    B, kind = len(s.masks), rng.integers(4)
    if kind == 0:
        return s.after("last mask missing", masks=s.masks[:-1])
    if kind == 1:
        return s.after("first mask missing", masks=s.masks[1:])
    more = rng.permuted(s.masks[: int(rng.integers(1, B))], axis=1)
    parts = (s.masks, more) if kind == 2 else (more, s.masks)
    return s.after(
        f"{len(more)} more masks {'after' if kind == 2 else 'before'}", masks=np.concatenate(parts)
    )


def _not_finite(rng: Rng, s: Sample) -> Sample:
    name, value = [("NaN", np.nan), ("inf", np.inf)][rng.integers(2)]
    array = (s.y if rng.random() < 0.7 else s.masks).astype(np.float32)
    array.reshape(-1)[rng.choice(array.size, int(rng.integers(1, 50)), replace=False)] = value
    return (
        s.after(f"{name} in masks", masks=array)
        if array.shape == s.masks.shape
        else s.after(f"{name} in y", y=array)
    )


def _stuck(rng: Rng, s: Sample) -> Sample:
    y, top, kind = s.y.copy(), float(s.y.max()), rng.integers(5)
    where = rng.choice(y[0].size, int(rng.choice([1, 5, 20, 60])), replace=False)
    level = float(rng.choice([1.0, 2.0, 16.0]))
    if kind == 0:
        y[:, :, rng.integers(y.shape[2])] = level * top
        return s.after(f"hot column {level:g}", y=y)
    if kind == 1:
        y[:, rng.integers(y.shape[1])] = 0
        return s.after("dead row", y=y)
    if kind == 2:
        y.reshape(len(y), -1)[:, where] = 0
        return s.after(f"{len(where)} dead pixels", y=y)
    y.reshape(len(y), -1)[:, where] = level * top
    return s.after(f"{len(where)} stuck pixels {level:g}", y=y)


def _sign(rng: Rng, s: Sample) -> Sample:
    kind = rng.integers(3)
    if kind == 0:
        return s.after("masks inverted", masks=s.masks.max() - s.masks)
    if kind == 1:
        return s.after("masks ±1", masks=s.masks / s.masks.max() * 2 - 1)
    return s.after("y inverted", y=s.y.max() - s.y)


def _shift(rng: Rng, s: Sample) -> Sample:
    by = tuple(int(n) for n in rng.integers(-3, 4, 2))
    return s.after(
        f"masks moved by {by}", masks=np.roll(s.masks, by, (1, 2)), harmless=by == (0, 0)
    )


def _lossy(rng: Rng, s: Sample) -> Sample:
    if rng.random() < 0.5:
        share = float(rng.choice([0.8, 0.95]))
        return s.after(f"clipped at {share}", y=np.minimum(s.y, np.quantile(s.y, share)))
    quality, top = int(rng.choice([40, 75, 90])), s.y.max()
    codes = [
        cv2.imencode(".jpg", (y / top * 250).clip(0, 255).astype("u1"), (1, quality))[1]
        for y in s.y
    ]
    return s.after(
        f"JPEG {quality}", y=np.stack([cv2.imdecode(code, cv2.IMREAD_GRAYSCALE) for code in codes])
    )


def _cropped(rng: Rng, s: Sample) -> Sample:
    px = int(rng.integers(1, 5))
    return s.after(f"y cropped by {px}", y=s.y[:, px:, :]) if rng.random() < 0.5 else s.after(
        "y enlarged", y=np.stack([cv2.resize(y.astype("f4"), None, fx=2, fy=2) for y in s.y])
    )  # fmt: skip


def _other(rng: Rng, s: Sample) -> Sample:
    kind = rng.integers(3)
    if kind == 0:
        return s.after("masks of another camera", masks=rng.permuted(s.masks, axis=1))
    if kind == 1:
        return s.after("y is no snapshot", y=np.repeat(s.x[:, :1].mean(1), 1, 0))
    return s.after("masks all open", masks=np.ones_like(s.masks))


HARMFUL = (
    _turned, _order, _offset, _gamma, _number, _not_finite, _stuck, _sign, _shift, _lossy,
    _cropped, _other,
)  # fmt: skip


# --- arrays and files


def _axes(rng: Rng, array: Array) -> Array:
    """Return an array with its frames last, or with a further axis, or as it is."""
    kind = rng.integers(5)
    return (
        np.moveaxis(array, 0, -1) if kind == 0 else array[..., np.newaxis] if kind == 1 else array
    )


_NAMES = {
    "y": ("meas", "y", "measurement", "snapshot", "meas_real", "Y"),
    "masks": ("mask", "masks", "phi", "Phi", "patterns", "mask_2"),
    "truth": ("orig", "gt", "truth", "x", "orig_video"),
}
_ODD = {"y": "capture", "masks": "C", "truth": "ref"}


def load(rng: Rng, s: Sample, folder: Path) -> tuple[sci_stream.Measurements, str]:
    """Write a sample to a file of others, and load it."""
    form = str(rng.choice(["mat", "npz", "h5", "npy", "tif", "png"]))
    one = s.y[0] if len(s.y) == 1 and rng.random() < 0.5 else s.y
    arrays = {"y": one, "masks": s.masks, **({} if s.truth is None else {"truth": s.truth})}
    if form in {"npz", "h5", "npy"}:
        arrays = {
            role: _axes(rng, array) if array.ndim == 3 else array for role, array in arrays.items()
        }
    odd = form in {"mat", "npz", "h5"} and rng.random() < 0.2
    names = _ODD if odd else {role: str(rng.choice(choices)) for role, choices in _NAMES.items()}
    variables = {role: names[role] for role in arrays} if odd else None
    what = form + (" named" if odd else "")
    named = {names[role]: array for role, array in arrays.items()}
    path = folder / f"a.{form}"
    if form == "mat":
        scipy.io.savemat(
            path, {name: np.moveaxis(a, 0, -1) if a.ndim == 3 else a for name, a in named.items()}
        )
    elif form == "npz":
        np.savez(path, **named)
    elif form == "h5":
        with h5py.File(path, "w") as file:
            for name, array in named.items():
                file[f"data/{name}"] = array
    else:
        paths = {role: folder / f"{role}.npy" for role in arrays}
        for role, array in arrays.items():
            np.save(paths[role], array)
        if form == "tif" and s.masks.dtype in (np.uint8, np.uint16, np.float32):
            paths["masks"] = folder / "masks.tif"
            cv2.imwritemulti(str(paths["masks"]), list(s.masks))
        if form == "png" and s.masks.dtype in (np.uint8, np.uint16):
            paths["masks"] = folder / "masks"
            paths["masks"].mkdir()
            for n, mask in enumerate(s.masks):
                cv2.imwrite(str(paths["masks"] / f"{n}.png"), mask)
        return sci_stream.load_measurement(paths["y"], paths["masks"], paths.get("truth")), what
    return sci_stream.load_measurement(path, variables=variables), what


class Outcome(enum.StrEnum):
    """Outcome of a reconstruction; only the last two are faults."""

    RIGHT = "right"
    NAMED = "named"
    REFUSED = "refused"
    FALSE_ALARM = "right data refused"
    SILENT = "wrong and silent"


def fitted_psnr(video: Array, x: Array) -> tuple[float, float]:
    """Return the PSNR after the best single scale, dB, and that scale."""
    scale = float((video * x).sum() / max(float((video * video).sum()), 1e-30))
    return float(-10 * np.log10(np.mean((scale * video - x) ** 2) + 1e-30)), scale


def judge(s: Sample, control_db: float, video: Array, said: Sequence[str]) -> tuple[Outcome, float]:
    """Return the outcome of a reconstruction with these uncorrected defects, and its loss, dB."""
    x = s.x if video.ndim == 4 else s.x[0]
    if video.shape != x.shape:
        return (Outcome.NAMED if said else Outcome.SILENT), np.inf
    psnr_db, scale = fitted_psnr(np.asarray(video, np.float64), x)
    loss_db = control_db - psnr_db
    if said:
        return (Outcome.FALSE_ALARM if s.harmless else Outcome.NAMED), loss_db
    bright = 1 / np.percentile(s.x, 99.5)
    good = loss_db <= _LOSS_DB and 1 / _BRIGHTNESS / bright < scale < max(1.5, _BRIGHTNESS)
    return (Outcome.RIGHT if good else Outcome.SILENT), loss_db


def trial(seed: int, folder: Path, clips: Sequence[Array] = ()) -> tuple[Outcome, str]:
    """Mutilate right data by a seed, reconstruct it, and return the outcome with a description."""
    rng = np.random.default_rng(seed)
    sample = right(rng, clips[rng.integers(len(clips))] if clips else None)
    options = {"solver": "tv", "iterations": 12, "device": "cpu"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # The scale matters a little to the denoiser: that of the scene, or the one that fills the
        # range.
        scales = (1.0, brightness_percentile(sample.y, sample.masks))
        controls = (
            sci_stream.reconstruct(sample.y, sample.masks, **options, white=white)
            for white in scales
        )
        control_db = min(
            fitted_psnr(np.asarray(control.video, np.float64), sample.x)[0] for control in controls
        )
        changed = sample
        for change in rng.permutation(np.array(HARMLESS, object))[: rng.integers(0, 3)]:
            changed = change(rng, changed)
        if rng.random() < 0.75:
            changed = HARMFUL[rng.integers(len(HARMFUL))](rng, changed)
        through_file, form, turned = rng.random() < 0.5, "arrays", False
        try:
            if through_file:
                data, form = load(rng, changed, folder)
                turned = any("transposed" in note for note in data.assumed)
                y, masks, truth = np.asarray(data.y), data.masks, data.truth
            else:
                y, masks, truth = changed.y, changed.masks, changed.truth
            result = sci_stream.reconstruct(y, masks, **options, truth=truth)
        except SciStreamError as error:
            outcome = Outcome.FALSE_ALARM if changed.harmless else Outcome.REFUSED
            return outcome, f"{seed}: {changed.what} ({form}): {error}"
        said = [defect.name for defect in result.defects if not defect.corrected]
        # Where nothing says which of y and the masks is transposed, the video lies as y does, and a
        # note says so.
        views = [result.video, result.video.swapaxes(-1, -2)][: 1 + turned]
        outcome, loss_db = min(
            (judge(changed, control_db, view, said) for view in views), key=lambda pair: pair[1]
        )
        names = [defect.name for defect in result.defects]
        return (
            outcome,
            f"{seed}: {changed.what} ({form}): {loss_db:+.2f} dB of {control_db:.1f}, {names}",
        )
