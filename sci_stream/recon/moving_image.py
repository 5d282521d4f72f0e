"""A scene that moves as one: frames that are one displaced image, in place of frames of their own.

A pan, a belt or a shaking camera shows one image at another place in each frame. An image has as
many pixels as a snapshot has measurements, so that least squares through the masks recovers it
alone::

    y = Σ_b φ_b · S_b u,   S_b u(p) = u(p − d_b)

A solve does not know that, and its frames of such a scene are 5 to 10 dB worse. So the frames of a
solve are registered, y corrects their displacements d_b, and the frames are replaced wherever the
image predicts pixels of y that it was not fitted to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from sci_stream.model import F32

# The constants below were chosen on twelve photographs and texts that move, and on 21 clips of
# which none moves as one (lab/research/moving-image.md).

# Taps of the windowed sinc that moves an image by parts of a pixel.
_TAPS = 8
# Standard deviations in px of the blur before frames are registered, and rounds with each.
_REGISTRATION = ((2.0, 3), (1.0, 4))
# Pixels at the edge that do not take part in the registration.
_EDGE = 8
# Frames as far from each other share too little of an image.
_MAX_SPREAD = 0.5
# Weight of the squared gradient of the image: it fills places that no open mask shows.
_SMOOTHNESS = 0.05
# Iterations of conjugate gradients from an even image, from one that is nearly right, and from one
# that was denoised.
_FIRST_ITERATIONS = 16
_NEXT_ITERATIONS = 10
_LAST_ITERATIONS = 6
# Corrections of the displacements.
_ROUNDS = 2
# Largest correction of a displacement by one linear step, px.
_MAX_STEP_PX = 0.4
# Share of the pixels that are predicted.
_HELD_OUT = 0.1
# The denoised image takes part as so many observations of each pixel by an open mask.
_PRIOR_WEIGHT = 0.3
# Noise level of the denoiser, in the error of the image: neighbours share a part of the error.
_DENOISED = 0.7
_MIN_SIGMA = 2 / 255
# Width in px of the windows in which errors are compared. Smaller ones took the image by chance, in
# clips behind grey and shifting masks.
_WINDOW = 49
# Standard deviation in px of the blur between the image and the frames of the solve.
_SEAM_PX = 4.0
# An image that leaves this share of its possible worth is given up before it is refined.
_HOPELESS = 0.12

_TINY = 1e-12

Displacements = npt.NDArray[np.floating[Any]]
Denoise = Callable[[F32, float], F32]
"""Denoise an image, (H, W), with this standard deviation of the noise."""


class CodedImage(NamedTuple):
    """A snapshot: ``y`` (h, w); ``phi`` (B, h, w); ``weights`` (h, w), 1 where y counts, else 0."""

    y: F32
    phi: F32
    weights: F32


class MovingImage(NamedTuple):
    """Frames of which some are one image.

    ``video`` (B, h, w); ``share`` of its pixels that are the image; ``velocity`` of the image in px
    a frame, rows and columns.
    """

    video: F32
    share: float
    velocity: tuple[float, float]


def with_moving_image(snapshot: CodedImage, video: F32, denoise: Denoise) -> MovingImage | None:
    """Replace the frames of a solve by one image that moves, wherever that predicts y better.

    Parameters
    ----------
    snapshot
        The measurement.
    video
        (B, h, w), as solved.
    denoise
        The denoiser of the image.

    Returns
    -------
    None where no part of the scene moves as one.
    """
    n_frames, *shape = video.shape
    if n_frames < 2 or min(shape) < _WINDOW:
        return None
    displacements = _registered(video)
    spread = np.ptp(displacements, axis=0)
    if (spread > _MAX_SPREAD * np.array(shape)).any():
        return None
    test = _Test(snapshot, video)
    canvas = _Canvas(displacements, shape)
    image = _fitted(test.fitted_to, canvas, canvas.even(snapshot), _FIRST_ITERATIONS)
    if test.worth(canvas.frames(image)) < _HOPELESS:
        return None
    for _ in range(_ROUNDS):
        image, steps = _fitted_with_motion(test.fitted_to, canvas, image)
        canvas.move(steps)
    test.scale_contrast(_modulation(snapshot.phi, canvas.displacements))
    image = _fitted(test.fitted_to, canvas, image, _NEXT_ITERATIONS)
    sigma = max(_DENOISED * test.error(canvas.frames(image)), _MIN_SIGMA)
    predicted = _denoised(test.fitted_to, canvas, image, denoise, sigma)
    if not test.share(predicted, predicted).any():
        return None
    image = _fitted(snapshot, canvas, image, _NEXT_ITERATIONS)
    frames = _denoised(snapshot, canvas, image, denoise, sigma)
    share = test.share(predicted, frames)
    if not share.any():
        return None
    replaced = video + share * (frames - video)
    return MovingImage(replaced, float(share.mean()), _velocity(canvas.displacements))


class _Canvas:
    """The plane of the image, around that of the frames, and where each frame lies on it.

    Parameters
    ----------
    displacements
        (B, 2), d_b in px, rows and columns.
    shape
        (h, w) of a frame.
    """

    def __init__(self, displacements: Displacements, shape: Sequence[int]) -> None:
        self.displacements = displacements
        self._height, self._width = shape
        reach = np.abs(displacements).max(0) + _ROUNDS * _MAX_STEP_PX
        self._border = np.ceil(reach).astype(int) + _TAPS // 2
        height, width = np.array(shape) + 2 * self._border
        self._shape = (int(height), int(width))
        self.move(np.zeros_like(displacements))

    def move(self, steps: Displacements) -> None:
        """Change the displacements by these steps, (B, 2); their mean stays 0."""
        displacements = self.displacements + np.clip(steps, -_MAX_STEP_PX, _MAX_STEP_PX)
        self.displacements = displacements - displacements.mean(0)
        corners = np.floor(-self.displacements).astype(int)
        fractions = -self.displacements - corners
        corners += self._border - (_TAPS // 2 - 1)
        more = _TAPS - 1
        self._windows = [
            np.s_[top : top + self._height + more, left : left + self._width + more]
            for top, left in corners.tolist()
        ]
        self._kernels = [(_kernel(down), _kernel(right)) for down, right in fractions.tolist()]

    def even(self, snapshot: CodedImage) -> F32:
        """Return an image, (H, W), as bright as the scene in the mean."""
        light = float((snapshot.weights * snapshot.y).sum())
        transmission = float((snapshot.weights * snapshot.phi).sum())
        return np.full(self._shape, light / max(transmission, _TINY), np.float32)

    def frames(self, image: F32) -> F32:
        """Return the frames (B, h, w) that show an image (H, W)."""
        frames = np.empty((len(self._windows), self._height, self._width), np.float32)
        for frame, window, (down, right) in zip(frames, self._windows, self._kernels, strict=True):
            moved = cv2.sepFilter2D(image[window], -1, right, down, anchor=(0, 0))
            frame[...] = moved[: self._height, : self._width]
        return frames

    def transposed(self, frames: F32) -> F32:
        """Return the image (H, W) that the transpose of `frames` makes of frames."""
        image = np.zeros(self._shape, np.float32)
        more = _TAPS - 1
        border = cv2.BORDER_CONSTANT
        for frame, window, (down, right) in zip(frames, self._windows, self._kernels, strict=True):
            padded = cv2.copyMakeBorder(frame, 0, more, 0, more, border)
            image[window] += cv2.sepFilter2D(
                padded, -1, right[::-1], down[::-1], anchor=(more, more), borderType=border
            )
        return image


class _Test:
    """Held-out pixels of y, which tell how wrong an image is that was fitted to the others.

    An error e of the frames leaves Σ φ_b e_b of y. Errors that cancel in the sum over frames, as
    those of motion do, leave e²·Σ_b (φ_b − φ̄)² in the mean.
    """

    def __init__(self, snapshot: CodedImage, video: F32) -> None:
        drawn = np.random.default_rng(0).random(snapshot.y.shape, np.float32)
        self._held_out = snapshot.weights * (drawn < _HELD_OUT)
        self.fitted_to = snapshot._replace(weights=snapshot.weights - self._held_out)
        """The snapshot without them."""
        self._snapshot = snapshot
        self._video = video
        self._contrast = self._held_out * snapshot.phi.var(0) * len(snapshot.phi)

    def scale_contrast(self, share: float) -> None:
        """Count this share of the contrast of the masks alone."""
        self._contrast = share * self._contrast

    def _missed(self, frames: F32) -> F32:
        """Return the squared error of the prediction where it is tested, (h, w)."""
        missed = self._snapshot.y - (self._snapshot.phi * frames).sum(0)
        squared: F32 = self._held_out * missed**2
        return squared

    def _apart(self, frames: F32) -> F32:
        """Return the squared difference from the frames of the solve, (h, w)."""
        squared: F32 = ((frames - self._video) ** 2).mean(0)
        return squared

    def error(self, frames: F32) -> float:
        """Return the root mean square error of frames that were fitted to the other pixels."""
        contrast = max(float(self._contrast.sum()), _TINY)
        return math.sqrt(float(self._missed(frames).sum()) / contrast)

    def worth(self, frames: F32) -> float:
        """Return the squared error of the solve and that of these frames, over the latter."""
        return float(self._apart(frames).mean()) / max(self.error(frames) ** 2, _TINY)

    def share(self, predicted: F32, frames: F32) -> F32:
        """Return the share of ``frames``, (h, w), in the result.

        The difference of two estimates has the errors of both. Where it is twice that of the image
        or more, the image is taken; where it is no larger than that of the image, the solve.

        Parameters
        ----------
        predicted, frames
            (B, h, w), fitted without and with the pixels that are held out.
        """
        missed = _averaged(self._missed(predicted))
        difference = _averaged(self._apart(frames)) * _averaged(self._contrast)
        share = np.clip(difference / np.maximum(missed, _TINY) - 1, 0, 1, dtype=np.float32)
        return _blurred(share, _SEAM_PX)


def _modulation(phi: F32, displacements: Displacements) -> float:
    """Return by how much masks differ for one place of an image that moves: 0 to 1.

    1 for independent masks. 0 for a mask that moves with the image: y is then a blurred image, and
    predicts itself whatever the frames are.
    """
    seen = _aligned(phi, displacements)
    shared = seen.mean(0).var() / max(float(seen.var((1, 2)).mean()), _TINY)
    return float(np.clip((1 - shared) / (1 - 1 / len(phi)), 0, 1))


def _averaged(image: F32) -> F32:
    averaged = cv2.blur(image, (_WINDOW, _WINDOW), borderType=cv2.BORDER_REFLECT)
    return averaged.astype(np.float32, copy=False)


def _blurred(image: F32, blur_px: float) -> F32:
    return cv2.GaussianBlur(image, (0, 0), blur_px).astype(np.float32, copy=False)


def _registered(frames: F32) -> Displacements:
    """Return the displacement of each frame from the mean of all, (B, 2); ``frames`` (B, h, w)."""
    n_frames = len(frames)
    times = _times(n_frames)
    displacements = np.zeros((n_frames, 2))
    for blur, rounds in _REGISTRATION:
        blurred = [_blurred(frame, blur) for frame in frames]
        for _ in range(rounds):
            aligned = _aligned(blurred, displacements)
            mean = aligned.mean(0)
            slopes = np.stack([slope.ravel() for slope in np.gradient(mean)])
            normal = slopes @ slopes.T + 1e-9 * np.eye(2)
            steps = (mean - aligned).reshape(n_frames, -1) @ slopes.T
            steps = np.linalg.solve(normal, steps.T).T
            if blur > 1:  # a velocity first: single frames may lock to another part of a texture
                steps = np.outer(times, _velocity(steps))
            displacements += steps
            displacements -= displacements.mean(0)
    return displacements


def _velocity(displacements: Displacements) -> tuple[float, float]:
    """Return the constant velocity that is nearest to the displacements, (B, 2)."""
    times = _times(len(displacements))
    down, right = times @ displacements / (times @ times)
    return float(down), float(right)


def _times(n_frames: int) -> Displacements:
    """Return the number of each frame from the middle of the exposure, (B,)."""
    return np.arange(n_frames) - (n_frames - 1) / 2


def _aligned(frames: Iterable[F32], displacements: Displacements) -> F32:
    """Return each frame at p + d_b, (B, …), without the edges."""
    flags = cv2.INTER_CUBIC | cv2.WARP_INVERSE_MAP
    border = cv2.BORDER_REPLICATE
    aligned = []
    for frame, (down, right) in zip(frames, displacements, strict=True):
        matrix = np.array([[1, 0, right], [0, 1, down]], np.float32)
        size = frame.shape[::-1]
        aligned.append(cv2.warpAffine(frame, matrix, size, flags=flags, borderMode=border))
    return np.stack(aligned)[:, _EDGE:-_EDGE, _EDGE:-_EDGE].astype(np.float32, copy=False)


def _kernel(fraction: float) -> F32:
    """Return the windowed sinc that samples between pixels, 0 ≤ ``fraction`` < 1."""
    taps = np.arange(_TAPS) - (_TAPS // 2 - 1) - fraction
    kernel = np.sinc(taps) * np.sinc(taps / (_TAPS // 2))
    return np.asarray(kernel / kernel.sum(), np.float32)


def _fitted(
    snapshot: CodedImage,
    canvas: _Canvas,
    image: F32,
    iterations: int,
    *,
    prior: F32 | None = None,
    without: Callable[[F32], F32] = lambda difference: difference,
) -> F32:
    """Return the image that explains y best, by conjugate gradients from ``image``.

    Parameters
    ----------
    prior
        The image is drawn to this one, instead of to a smooth one.
    without
        Remove from a difference of y what something else explains: a projection.
    """
    phi = snapshot.phi

    def explained(image: F32) -> F32:
        return snapshot.weights * without(snapshot.weights * (phi * canvas.frames(image)).sum(0))

    def gradient(difference: F32) -> F32:
        return canvas.transposed(phi * difference)

    def normal(image: F32) -> F32:
        drawn = _roughness(image) if prior is None else _PRIOR_WEIGHT * image
        return gradient(explained(image)) + drawn

    target = gradient(snapshot.weights * without(snapshot.weights * snapshot.y))
    if prior is not None:
        target += _PRIOR_WEIGHT * prior
    residual = target - normal(image)
    direction = residual
    power = np.vdot(residual, residual)
    for _ in range(iterations):
        curved = normal(direction)
        length = power / max(np.vdot(direction, curved), _TINY)
        image = image + length * direction
        residual = residual - length * curved
        before = power
        power = np.vdot(residual, residual)
        direction = residual + power / max(before, _TINY) * direction
    return image


def _roughness(image: F32) -> F32:
    """Return the gradient of the squared slopes of an image, times their weight."""
    result = np.zeros_like(image)
    for image_t, result_t in ((image, result), (image.T, result.T)):
        slope = np.diff(image_t, axis=0)
        result_t[1:] += slope
        result_t[:-1] -= slope
    return _SMOOTHNESS * result


def _fitted_with_motion(
    snapshot: CodedImage, canvas: _Canvas, image: F32
) -> tuple[F32, Displacements]:
    """Return the image and the steps of the displacements, (B, 2), that explain y together.

    y ≈ Φ S u + J δ. The image is fitted to the part of y that no δ explains (variable projection).
    Otherwise it would belong to the present displacements, and hold the steps back.
    """
    frames = canvas.frames(image)
    down, right = np.gradient(frames, axis=(-2, -1))
    jacobian = -np.concatenate([snapshot.phi * down, snapshot.phi * right])
    jacobian = (snapshot.weights * jacobian).reshape(len(jacobian), -1)
    normal = jacobian @ jacobian.T
    damping = max(1e-3 * float(np.trace(normal)) / len(normal), _TINY)
    normal += damping * np.eye(len(normal), dtype=np.float32)
    inverse = np.linalg.inv(normal)

    def steps(difference: F32) -> F32:
        return np.asarray(inverse @ (jacobian @ difference.ravel()), np.float32)

    def without(difference: F32) -> F32:
        explained: F32 = (steps(difference) @ jacobian).reshape(difference.shape)
        return difference - explained

    image = _fitted(snapshot, canvas, image, _NEXT_ITERATIONS, without=without)
    difference = snapshot.weights * (snapshot.y - (snapshot.phi * canvas.frames(image)).sum(0))
    return image, steps(difference).reshape(2, -1).T


def _denoised(
    snapshot: CodedImage, canvas: _Canvas, image: F32, denoise: Denoise, sigma: float
) -> F32:
    """Return the frames of an image that was denoised and then fitted to y again."""
    prior = denoise(image, sigma)
    return canvas.frames(_fitted(snapshot, canvas, prior, _LAST_ITERATIONS, prior=prior))
