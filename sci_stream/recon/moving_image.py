"""A scene that moves as one: frames that are one displaced image, in place of frames of their own.

A pan, a belt or a shaking camera shows one image at another place in each frame. An image has as
many pixels as a snapshot has measurements, so that least squares through the masks recovers it
alone::

    y = Σ_b φ_b · S_b u,   S_b u(p) = u(p − d_b)

A solve does not know that, and its frames of such a scene are 5 to 10 dB worse. So the frames of a
solve are registered, y corrects their displacements d_b, and the frames are replaced wherever the
image predicts pixels of y that it was not fitted to. `moving_canvas` has S_b, of mosaics too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import cv2
import numpy as np

from sci_stream.model import F32, BayerPhase
from sci_stream.recon.moving_canvas import Canvas, CodedImage, Displacements

# The constants below were chosen on twelve photographs and texts that move, and on 21 clips of
# which none moves as one; those of mosaics on 24 photographs, and on 29 clips
# (lab/research/moving-image.md).

# Standard deviations in px of the blur before frames are registered, and rounds with each.
_REGISTRATION = ((2.0, 3), (1.0, 4))
# Pixels at the edge that do not take part in the registration.
_EDGE = 8
# Frames as far from each other share too little of an image.
_MAX_SPREAD = 0.5
# Iterations of conjugate gradients from an even image, from one that is nearly right, from one that
# was fitted to fewer pixels, and from one that was denoised.
_FIRST_ITERATIONS = 16
_NEXT_ITERATIONS = 10
_REFIT_ITERATIONS = 4
_LAST_ITERATIONS = 6
# Corrections of the displacements.
_ROUNDS = 2
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
# Ratio of the squared difference of image and solve to the squared error of the image
# from which on the image takes part, and from which on it is all.
_DIFFER = (0.8, 1.28)
_DIFFER_BY_FAR = (1.0, 2.0)
# Variance of frames that are moved back, relative to that of frames as they are.
_DISAGREE = 0.5
_AGREE = 0.25
# Squared error at a held-out pixel of those beside it in the solve, relative to that in the image.
# The solve knew the pixel.
_FORETOLD = (0.56, 0.66)
_FORETOLD_IN_ALL = (0.55, 0.6)
_FORETOLD_BETTER = (1.0, 1.2)
# Masks that are alike beside a pixel tell less: that much more is asked for in all, by their
# correlation. Behind masks of correlation 0.5, clips that do not move as one have up to 0.71, and
# all pans but one 0.79 or more.
_MORE_OF_ALIKE = 0.36
# The same for the ratio of `_DIFFER`: one clip of 31 lost 0.25 dB behind grey masks without it.
_DIFFER_MORE = 0.8
# An image that leaves this share of its possible worth is given up before it is refined.
_HOPELESS = 0.12

_TINY = 1e-12

Denoise = Callable[[F32, float], F32]
"""Denoise an image, (H, W), with this standard deviation of the noise."""


class MovingImage(NamedTuple):
    """Frames of which some are one image.

    ``video`` (B, h, w); ``share`` of its pixels that are the image; ``velocity`` of the image in px
    a frame, rows and columns.
    """

    video: F32
    share: float
    velocity: tuple[float, float]


def with_moving_image(
    snapshot: CodedImage, video: F32, denoise: Denoise, bayer: BayerPhase | None = None
) -> MovingImage | None:
    """Replace the frames of a solve by one image that moves, wherever that predicts y better.

    Parameters
    ----------
    snapshot
        The measurement.
    video
        (B, h, w), as solved.
    denoise
        The denoiser of the image.
    bayer
        Of mosaics, else None.

    Returns
    -------
    None where no part of the scene moves as one.
    """
    n_frames, *shape = video.shape
    if n_frames < 2 or min(shape) < _WINDOW:
        return None
    brightness = video if bayer is None else _brightness(video)
    displacements = _registered(brightness)
    spread = np.ptp(displacements, axis=0)
    if (spread > _MAX_SPREAD * np.array(shape)).any():
        return None
    test = _Test(snapshot, video, bayer)
    canvas = Canvas(displacements, shape, _ROUNDS, bayer)
    image = _fitted(test.fitted_to, canvas, canvas.even(snapshot), _FIRST_ITERATIONS)
    if test.worth(canvas.frames(image)) < _HOPELESS:
        return None
    for _ in range(_ROUNDS):
        image, steps = _fitted_with_motion(test.fitted_to, canvas, image)
        canvas.move(steps)
    test.note_motion(canvas.displacements)
    image = _fitted(test.fitted_to, canvas, image, _NEXT_ITERATIONS)
    sigma = max(_DENOISED * test.error(canvas.frames(image)), _MIN_SIGMA)
    predicted = _denoised(test.fitted_to, canvas, image, denoise, sigma)
    if not test.share(predicted, predicted).any():
        return None
    image = _fitted(snapshot, canvas, image, _REFIT_ITERATIONS)
    frames = _denoised(snapshot, canvas, image, denoise, sigma)
    share = test.share(predicted, frames)
    if not share.any():
        return None
    replaced = video + share * (frames - video)
    return MovingImage(replaced, float(share.mean()), _velocity(canvas.displacements))


class _Test:
    """Held-out pixels of y, which tell how wrong an image is that was fitted to the others.

    An error e of the frames leaves Σ φ_b e_b of y. Errors that cancel in the sum over frames, as
    those of motion do, leave e²·Σ_b (φ_b − φ̄)² in the mean.

    Image and solve have errors in common: neither shows fine texture. Their difference is then
    small where the image is better by far. So three statements of other kinds are asked for: the
    pixels beside a held-out one predict it as well in the image as in the solve, the image differs
    from the solve by at least its own error, and the frames of the solve agree where they are moved
    back. Frames of a grey camera that differ by far need not agree.
    """

    def __init__(self, snapshot: CodedImage, video: F32, bayer: BayerPhase | None) -> None:
        drawn = np.random.default_rng(0).random(snapshot.y.shape, np.float32)
        self._held_out = snapshot.weights * (drawn < _HELD_OUT)
        self.fitted_to = snapshot._replace(weights=snapshot.weights - self._held_out)
        """The snapshot without them."""
        self._snapshot = snapshot
        self._video = video
        self._is_mosaic = bayer is not None
        self._contrast = self._held_out * snapshot.phi.var(0) * len(snapshot.phi)

    def note_motion(self, displacements: Displacements) -> None:
        """Count only the contrast of the masks as they pass over the image, and find where the
        frames of the solve agree if they are moved back.
        """
        self._modulation = _modulation(self._snapshot.phi, displacements)
        self._contrast = self._modulation * self._contrast
        brightness = _brightness(self._video) if self._is_mosaic else self._video
        smooth = [_blurred(frame, 1.0) for frame in brightness]
        moved_back = _disagreement(smooth, displacements)
        as_they_are = _disagreement(smooth, np.zeros_like(displacements))
        self._agreement = _ramp(_quotient(moved_back, as_they_are), _DISAGREE, _AGREE)

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

        Parameters
        ----------
        predicted, frames
            (B, h, w), fitted without and with the pixels that are held out.
        """
        spread = _spread_of_errors(self._snapshot.phi, self._missed(predicted), self._held_out)
        contrast = self._modulation * self._held_out * spread
        # The next pixel of its colour is farther away in a mosaic.
        apart_px = 2 if self._is_mosaic else 1
        alike = _likeness(self._snapshot.phi, apart_px)
        ratio = self._ratio(predicted, frames, contrast)
        differ = _ramp(ratio - _DIFFER_MORE * alike, *_DIFFER)
        beside, beside_solve = (
            self._missed(_beside(video, apart_px)) for video in (predicted, self._video)
        )
        local = _quotient(_averaged(beside_solve), _averaged(beside))
        whole = _quotient(beside_solve.sum(), beside.sum())
        whole -= _MORE_OF_ALIKE * alike
        foretold = _ramp(local, *_FORETOLD) * _ramp(whole, *_FORETOLD_IN_ALL)
        foretold_better = self._modulation * local - _MORE_OF_ALIKE * alike
        better = np.maximum(differ, _ramp(foretold_better, *_FORETOLD_BETTER))
        share = better * self._agreement
        if not self._is_mosaic:
            by_far = self._ratio(predicted, frames, self._contrast)
            share = np.maximum(share, _ramp(by_far, *_DIFFER_BY_FAR))
        return _blurred(share * foretold, _SEAM_PX)

    def _ratio(self, predicted: F32, frames: F32, contrast: F32) -> F32:
        """Return the squared difference of both over the squared error of the image, (h, w)."""
        missed = _averaged(self._missed(predicted))
        difference = _averaged(self._apart(frames)) * _averaged(contrast)
        return _quotient(difference, missed)


def _ramp(value: F32, none: float, full: float) -> F32:
    """Return 0 at ``none``, 1 at ``full``, and shares between."""
    share: F32 = np.clip((value - none) / (full - none), 0, 1, dtype=np.float32)
    return share


def _quotient(dividend: F32, divisor: F32) -> F32:
    return np.divide(dividend, np.maximum(divisor, _TINY), dtype=np.float32)


def _brightness(mosaics: F32) -> F32:
    """Return frames without colour, (B, h, w), of mosaics of this shape."""
    weights = np.array([0.25, 0.5, 0.25], np.float32)
    return np.stack([cv2.sepFilter2D(mosaic, -1, weights, weights) for mosaic in mosaics])


def _beside(video: F32, apart_px: int) -> F32:
    """Return at each pixel the mean of the next four of its colour, (B, h, w)."""
    kernel = np.zeros((2 * apart_px + 1, 2 * apart_px + 1), np.float32)
    kernel[[0, apart_px, apart_px, -1], [apart_px, 0, -1, apart_px]] = 0.25
    return np.stack([cv2.filter2D(frame, -1, kernel) for frame in video])


def _likeness(phi: F32, apart_px: int) -> float:
    """Return the correlation, 0 to 1, of masks with themselves at pixels beside."""
    contrast = phi - phi.mean(0)
    below = (contrast[:, apart_px:] * contrast[:, :-apart_px]).mean()
    right = (contrast[..., apart_px:] * contrast[..., :-apart_px]).mean()
    variance = max(float(np.square(contrast).mean()), _TINY)
    return float(np.clip((below + right) / 2 / variance, 0, 1))


def _disagreement(frames: Sequence[F32], displacements: Displacements) -> F32:
    """Return the variance of frames that are moved back, (h, w)."""
    variance = _aligned(frames, displacements).var(0)
    edges = (_EDGE,) * 4
    return _averaged(cv2.copyMakeBorder(variance, *edges, cv2.BORDER_REFLECT))


def _spread_of_errors(phi: F32, missed: F32, held_out: F32) -> F32:
    """Return how much of the squared error of frames is left in y, (h, w).

    Errors e_b whose sum is zero leave less than independent ones. Their parts, a with zero sum and
    c in common, follow from y: they leave a·(BΣφ² − (Σφ)²)/(B − 1) and c·(Σφ)².
    """
    n_frames = len(phi)
    common = phi.sum(0) ** 2
    opposite = (n_frames * (phi**2).sum(0) - common) / (n_frames - 1)
    tested = held_out > 0
    terms = np.stack([opposite[tested], common[tested]], axis=1)
    (a, c), *_ = np.linalg.lstsq(terms, missed[tested], rcond=None)
    share = float(np.clip(c / max(a + c, _TINY), 0, 1 / n_frames))
    spread: F32 = ((1 - share) * opposite + share * common).astype(np.float32)
    return spread


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


def _fitted(
    snapshot: CodedImage,
    canvas: Canvas,
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
        drawn = canvas.roughness(image) if prior is None else _PRIOR_WEIGHT * image
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


def _fitted_with_motion(
    snapshot: CodedImage, canvas: Canvas, image: F32
) -> tuple[F32, Displacements]:
    """Return the image and the steps of the displacements, (B, 2), that explain y together.

    y ≈ Φ S u + J δ. The image is fitted to the part of y that no δ explains (variable projection).
    Otherwise it would belong to the present displacements, and hold the steps back.
    """
    down, right = canvas.slopes(image)
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
    snapshot: CodedImage, canvas: Canvas, image: F32, denoise: Denoise, sigma: float
) -> F32:
    """Return the frames of an image that was denoised and then fitted to y again."""
    prior = np.empty_like(image)
    for part in canvas.parts:
        # Differences of colours are about 0.
        prior[part.where] = denoise(image[part.where] + part.middle, sigma) - part.middle
    return canvas.frames(_fitted(snapshot, canvas, prior, _LAST_ITERATIONS, prior=prior))
