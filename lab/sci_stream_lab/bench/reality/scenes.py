"""Scenes with truth, in two fixed halves: one to tune the solver on, one that is only ever printed.

Sources are the simulated camera's procedural scenes, which are always there, and photographs, clips
and published sets below the folder that ``SCI_STREAM_DATA`` names. Of each, the middle is cut out
square and scaled to the field.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import cv2
import numpy as np

from sci_stream.errors import FileFormatError, SciStreamError
from sci_stream.files.measurement_file import load_measurement
from sci_stream.files.media import read_image, video_frames
from sci_stream.model import Array, BayerPhase
from sci_stream.optics.bayer import sample_colours
from sci_stream_lab.bench.datasets import filmed_scene, truth_of
from sci_stream_lab.bench.reality.optics import F32

DATA_VARIABLE = "SCI_STREAM_DATA"
BAYER = BayerPhase.RGGB
"""Phase of the mosaics; the others differ in nothing that a reconstruction depends on."""

# Motion of a panned photograph per frame, to the right and down, pixels. Faster, its fine structure
# is lost and the masks do not matter: at 0.9 px the defaults give 19.0 dB with exact masks and 18.7
# dB with every perturbation.
_PAN_PX = (0.35, 0.2)
# Relative magnification per frame, so that no two places move alike.
_ZOOM = 0.002
# ITU-R BT.709: what a monochrome sensor sees of linear R, G, B.
_LUMINANCE = np.array([0.2126, 0.7152, 0.0722], np.float32)


class Half(StrEnum):
    """What a scene may be used for."""

    TUNING = "tuning"
    REPORTING = "reporting"


class SceneUnavailableError(SciStreamError):
    """A scene is not on this machine, or not in colour or not long enough."""


@dataclass(frozen=True, slots=True)
class SceneFormat:
    """Requirements on a scene: ``size`` pixels square, B frames per snapshot, a mosaic or not,
    number of snapshots.
    """

    size: int
    n_frames: int
    colour: bool
    snapshots: int


Film = Callable[[SceneFormat], F32]
"""Returns the frames of a scene, (S·B, H, W) float32 0–1, S ≤ ``snapshots``; a Bayer mosaic if in
colour."""


@dataclass(frozen=True, slots=True)
class NamedScene:
    """A scene by name. ``in_colour`` is false where only grey frames exist."""

    name: str
    half: Half
    film: Film
    in_colour: bool = True

    def frames(self, form: SceneFormat) -> F32:
        """Return the true video of each snapshot, (S, B, H, W) float32, 0–1, S ≤
        ``form.snapshots``.

        Raises
        ------
        SceneUnavailableError
            With the reason.
        """
        if form.colour and not self.in_colour:
            raise SceneUnavailableError(f"{self.name} is not in colour")
        video = self.film(form)
        B = form.n_frames
        count = min(len(video) // B, form.snapshots)
        if count == 0:
            raise SceneUnavailableError(f"{self.name} has {len(video)} frames, fewer than {B}")
        return np.ascontiguousarray(video[: count * B]).reshape(count, B, *video.shape[1:])


def data_folder() -> Path:
    """Return the folder with data.

    Raises
    ------
    SceneUnavailableError
        If the environment does not name one.
    """
    name = os.environ.get(DATA_VARIABLE)
    if not name:
        raise SceneUnavailableError(
            f"{DATA_VARIABLE} is not set: it names the folder with photographs and clips"
        )
    return Path(name)


def _found(pattern: str) -> Path:
    """Return the first file below the data folder that matches."""
    folder = data_folder()
    path = next(iter(sorted(folder.glob(pattern))), None)
    if path is None:
        raise SceneUnavailableError(f"there is no {pattern} in {folder}")
    return path


def _simulated(scene: str, seed: int, speed: float = 1.0) -> Film:
    """Return a source of a scene of the simulated camera: its truth,
    without its masks and sensor.
    """

    def film(form: SceneFormat) -> F32:
        options = {"seed": seed, "speed": speed, "bayer": BAYER if form.colour else None}
        size = {"height_px": form.size, "width_px": form.size, "n_frames": form.n_frames}
        footage = filmed_scene(scene, snapshots=form.snapshots, **size, **options)
        return np.concatenate([truth_of(snapshot) for snapshot in footage.snapshots])

    return film


def _clip(pattern: str, start: int = 0) -> Film:
    """Return what films a clip, one of its pictures a frame; made small, its motion is that of a
    faster camera.
    """

    def film(form: SceneFormat) -> F32:
        pictures = itertools.islice(
            video_frames(_found(pattern)), start, start + form.snapshots * form.n_frames
        )
        frames = [_sensed(_square(picture, form.size), form.colour) for picture in pictures]
        return np.stack(frames) if frames else np.empty((0, form.size, form.size), np.float32)

    return film


def _photograph(pattern: str) -> Film:
    """Return what films a photograph while the camera pans and slowly zooms."""

    def film(form: SceneFormat) -> F32:
        path = _found(pattern)
        try:
            picture = read_image(path, cv2.IMREAD_COLOR)
        except FileFormatError as error:
            raise SceneUnavailableError(str(error)) from error
        wide = _square(picture, min(2 * form.size, *picture.shape[:2]))
        count = form.snapshots * form.n_frames
        return np.stack([_sensed(_view(wide, form.size, k), form.colour) for k in range(count)])

    return film


def _view(wide: F32, size: int, k: int) -> F32:
    """Return frame ``k`` of a pan over (N, N, 3), from its upper left; beyond its border it is
    mirrored.
    """
    scale = 1 / (1 + _ZOOM * k)
    where = np.array([[scale, 0, _PAN_PX[0] * k], [0, scale, _PAN_PX[1] * k]])
    flags = cv2.INTER_CUBIC | cv2.WARP_INVERSE_MAP
    view = cv2.warpAffine(wide, where, (size, size), flags=flags, borderMode=cv2.BORDER_REFLECT)
    return np.asarray(np.clip(view, 0, 1), np.float32)


def _published(pattern: str) -> Film:
    """Return what films the true frames of a published set."""

    def film(form: SceneFormat) -> F32:
        path = _found(pattern)
        orig = load_measurement(path).truth
        if orig is None or min(orig.shape[1:]) < form.size:
            raise SceneUnavailableError(f"{path} has no truth of {form.size} × {form.size} pixels")
        top, left = (orig.shape[1] - form.size) // 2, (orig.shape[2] - form.size) // 2
        frames = orig[
            : form.snapshots * form.n_frames, top : top + form.size, left : left + form.size
        ]
        return np.asarray(frames, np.float32) / np.float32(255 if orig.max() > 2 else 1)

    return film


def _square(picture: Array, size: int) -> F32:
    """Cut the middle square out of 8-bit BGR and scale it: (size, size, 3) RGB float32, 0–1, its
    own levels.
    """
    edge = min(picture.shape[:2])
    top, left = (picture.shape[0] - edge) // 2, (picture.shape[1] - edge) // 2
    cut = picture[top : top + edge, left : left + edge, ::-1].astype(np.float32) / 255
    method = cv2.INTER_AREA if edge > size else cv2.INTER_CUBIC
    return np.asarray(
        np.clip(cv2.resize(cut, (size, size), interpolation=method), 0, 1), np.float32
    )


def _sensed(rgb: F32, colour: bool) -> F32:
    """Return what a sensor sees of (H, W, 3): a Bayer mosaic, or luminance; (H, W) float32."""
    if not colour:
        return np.asarray(rgb @ _LUMINANCE, np.float32)
    return sample_colours(rgb, BAYER)


def _scenes(
    half: Half, entries: dict[str, Film], published: tuple[str, ...]
) -> tuple[NamedScene, ...]:
    sets = (
        NamedScene(name, half, _published(f"benchmark/{name}*.mat"), in_colour=False)
        for name in published
    )
    return (*sets, *(NamedScene(name, half, film) for name, film in entries.items()))


SCENES: Final = (
    *_scenes(
        Half.TUNING,
        {
            "simulated fast": _simulated("fast", seed=1),
            "bunny clip": _clip("video/bigbuckbunny*"),
            "kodak 5 panned": _photograph("test/kodak24/5.png"),
            "simulated slow": _simulated("slow", seed=2),
            "steel clip": _clip("video/tears-of-steel*", start=40),
            "kodak 20 panned": _photograph("test/kodak24/20.png"),
        },
        published=("crash", "kobe", "aerial"),
    ),
    *_scenes(
        Half.REPORTING,
        {
            "simulated faster": _simulated("fast", seed=3, speed=1.5),
            "flower clip": _clip("video/flower*"),
            "kodak 19 panned": _photograph("test/kodak24/19.png"),
            "simulated other": _simulated("slow", seed=4, speed=2.0),
            "steel clip later": _clip("video/tears-of-steel*", start=900),
            "kodak 8 panned": _photograph("test/kodak24/8.png"),
        },
        published=("traffic", "runner", "drop"),
    ),
)
"""Never move a scene from one half to the other: a figure of the reporting half would then be of
data tuned on."""
