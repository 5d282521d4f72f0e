"""Parts of a scene that move as one: an image that moves, in place of frames of their own.

A pan, a belt, a shaking camera or an object that passes shows one image at another place in each
frame. An image has as many pixels as a snapshot has measurements, so that least squares through the
masks recovers it alone::

    y = Σ_b φ_b · S_b u,   S_b u(p) = u(p − d_b)

A solve does not know that, and its frames of such a part are 3 to 10 dB worse. So the frames of a
solve are registered, and the part of the picture is found where they agree. y corrects the
displacements d_b. The frames are replaced there if the image predicts pixels of y that it was not
fitted to, by detail that their neighbours lack. Then the rest of the picture is registered in the
same way. `moving_canvas` has S_b, of mosaics too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import cv2
import numpy as np

from sci_stream.model import F32, BayerPhase
from sci_stream.recon.moving_canvas import Canvas, CodedImage, Displacements

# The constants below were chosen on twelve photographs and texts that move, on nine scenes of two
# photographs that move apart, and on 21 clips (lab/research/moving-image.md).

# Parts of a scene that are looked for, and the pixels of the smallest one.
_PARTS = 3
_LEAST_PX = 2500
# Standard deviations in px of the blur before frames are registered, and rounds with each.
_REGISTRATION = ((2.0, 3), (1.0, 4))
# Registrations of what agreed in the one before.
_REGISTRATIONS = 2
# Pixels at the edge that do not take part in the registration.
_EDGE = 8
# Variance of frames that are moved back, relative to that of frames as they are: none of a place
# takes part in the registration, all of it does; it belongs to the part.
_DISAGREE = 0.6
_AGREE = 0.25
_BELONGS = 0.75
# Smaller differences of the frames are noise of the solve: the variance of frames as they are is at
# least so large.
_NOISE_VARIANCE = 1e-5
# Width in px of the windows in which the variances are compared.
_WINDOW = 17
# Distance in px from one part to the next.
_APART = 4
# Parts that move less, in px from the first to the last frame, are still.
_STILL_PX = 0.5
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
# Share of the pixels that are predicted, in squares of this side: behind a pattern that shifts, a
# pixel is nearly a copy of the next one.
_HELD_OUT = 0.1
_SQUARE_PX = 2
# The denoised image takes part as so many observations of each pixel by an open mask.
_PRIOR_WEIGHT = 0.3
# Noise level of the denoiser, in the error of the image: neighbours share a part of the error.
_DENOISED = 0.7
_MIN_SIGMA = 2 / 255
# Part of the fine detail of an image that y confirms: an image with less is wrong, one with more is
# right. A Gaussian of this standard deviation in px removes the fine detail.
_WRONG = 0.76
_RIGHT = 0.84
_FINE_PX = 1.0
# Squared error of the prediction by neighbouring pixels in the solve, relative to that in the
# image: with less the solve is better, with more the image may be. The solve knew the pixel.
_SOLVE_IS_BETTER = 0.28
_SOLVE_MAY_BE_WORSE = 0.36
# Standard deviation in px of the blur between the image and the frames of the solve.
_SEAM_PX = 4.0

_TINY = 1e-12

Denoise = Callable[[F32, float], F32]
"""Denoise an image, (H, W), with this standard deviation of the noise."""


class MovingImage(NamedTuple):
    """Frames of which some parts are images.

    ``video`` (B, h, w); ``share`` of its pixels that are images; ``velocity`` of the largest one in
    px a frame, rows and columns.
    """

    video: F32
    share: float
    velocity: tuple[float, float]


class _MovingPart(NamedTuple):
    """A part of the picture that moves as one: ``displacements`` (B, 2), and ``where``, (h, w), 1
    in the part and 0 outside.
    """

    displacements: Displacements
    where: F32


def with_moving_image(
    snapshot: CodedImage, video: F32, denoise: Denoise, bayer: BayerPhase | None = None
) -> MovingImage | None:
    """Replace the frames of a solve by images that move, wherever these predict y.

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
    if n_frames < 2 or min(shape) <= 2 * _EDGE:
        return None
    brightness = video if bayer is None else _brightness(video)
    free = np.ones(shape, np.float32)
    replaced = video
    shares: dict[tuple[float, float], float] = {}
    for _ in range(_PARTS):
        if free.sum() < _LEAST_PX:
            break
        part = _moving_part(brightness, free)
        if part.where.sum() < _LEAST_PX:
            break
        around = cv2.dilate(part.where, np.ones((2 * _APART + 1,) * 2))
        free = (free * (1 - around)).astype(np.float32)
        spread = np.ptp(part.displacements, axis=0)
        if spread.max() < _STILL_PX or (spread > _MAX_SPREAD * np.array(shape)).any():
            continue
        frames, trust, displacements = _frames_of(snapshot, part, video, denoise, bayer)
        if trust > 0:
            share = trust * part.where * _blurred(part.where, _SEAM_PX)
            replaced = replaced + share * (frames - replaced)
            shares[_velocity(displacements)] = float(share.mean())
    if not shares:
        return None
    return MovingImage(replaced, sum(shares.values()), max(shares, key=lambda v: shares[v]))


def _moving_part(frames: F32, free: F32) -> _MovingPart:
    """Return the part of the picture whose frames agree if they are moved back, within ``free``."""
    smooth = [_blurred(frame, 1.0) for frame in frames]
    unmoved = np.zeros((len(frames), 2))
    as_they_are = np.maximum(_variance(smooth, unmoved), _NOISE_VARIANCE)
    displacements = _registered(frames, free, unmoved)
    for _ in range(_REGISTRATIONS):
        agreement = _variance(smooth, displacements) / as_they_are
        weights = free * np.clip((_DISAGREE - agreement) / (_DISAGREE - _AGREE), 0, 1)
        displacements = _registered(frames, weights, displacements, _REGISTRATION[-1:])
    agreement = _variance(smooth, displacements) / as_they_are
    belongs = free * (agreement < _BELONGS)
    where = cv2.erode(belongs.astype(np.float32), np.ones((3, 3)))
    return _MovingPart(displacements, where.astype(np.float32, copy=False))


def _frames_of(
    snapshot: CodedImage, part: _MovingPart, video: F32, denoise: Denoise, bayer: BayerPhase | None
) -> tuple[F32, float, Displacements]:
    """Return the frames of an image that moves, (B, h, w), how far they are to be trusted, 0 to 1,
    and their displacements, (B, 2).
    """
    snapshot = snapshot._replace(weights=snapshot.weights * part.where)
    canvas = Canvas(part.displacements, snapshot.y.shape, _ROUNDS, bayer)
    test = _Test(snapshot)
    image = _fitted(test.fitted_to, canvas, canvas.even(snapshot), _FIRST_ITERATIONS)
    for _ in range(_ROUNDS):
        image, steps = _fitted_with_motion(test.fitted_to, canvas, image)
        canvas.move(steps)
    image = _fitted(test.fitted_to, canvas, image, _NEXT_ITERATIONS)
    sigma = max(_DENOISED * test.error(canvas, image), _MIN_SIGMA)
    denoised = _denoised(test.fitted_to, canvas, image, denoise, sigma)
    trust = test.confirmed(canvas, denoised)
    trust *= test.better(canvas.frames(denoised), video, 1 if bayer is None else 2)
    if trust > 0:
        image = _fitted(snapshot, canvas, image, _REFIT_ITERATIONS)
        image = _denoised(snapshot, canvas, image, denoise, sigma)
    return canvas.frames(image), trust, canvas.displacements


class _Test:
    """Held-out pixels of y, which tell how wrong an image is that was fitted to the others."""

    def __init__(self, snapshot: CodedImage) -> None:
        height, width = snapshot.y.shape
        squares = (-(-height // _SQUARE_PX), -(-width // _SQUARE_PX))
        drawn = np.random.default_rng(0).random(squares) < _HELD_OUT
        held_out = np.kron(drawn, np.ones((_SQUARE_PX, _SQUARE_PX), np.float32))
        self._snapshot = snapshot
        self._held_out: F32 = snapshot.weights * held_out[:height, :width].astype(np.float32)
        self.fitted_to = snapshot._replace(weights=snapshot.weights - self._held_out)
        """The snapshot without them."""

    def _missed(self, frames: F32) -> F32:
        """Return y less its prediction by frames, (h, w)."""
        missed: F32 = self._snapshot.y - (self._snapshot.phi * frames).sum(0)
        return missed

    def _squared(self, frames: F32) -> float:
        """Return the sum of the squared errors of the prediction."""
        return float((self._held_out * self._missed(frames) ** 2).sum())

    def error(self, canvas: Canvas, image: F32) -> float:
        """Return the root mean square error of an image.

        An error e of the frames leaves Σ φ_b e_b of y. Errors that cancel in the sum over frames,
        as those of motion do, leave e²·Σ_b (φ_b − φ̄)² in the mean, as far as the masks differ as
        they pass over the image.
        """
        phi = self._snapshot.phi
        contrast = float((self._held_out * phi.var(0)).sum()) * len(phi)
        contrast *= _modulation(phi, canvas.displacements)
        return math.sqrt(self._squared(canvas.frames(image)) / max(contrast, _TINY))

    def confirmed(self, canvas: Canvas, image: F32) -> float:
        """Return 1 for an image whose fine detail y confirms, 0 for one with detail of its own, and
        shares between.

        Noise of y changes neither: y, less its prediction by the smooth image, is regressed on the
        detail.
        """
        smooth = image.copy()
        brightness = canvas.parts[0].where
        smooth[brightness] = _blurred(image[brightness], _FINE_PX)
        unexplained = self._missed(canvas.frames(smooth))
        detail = self._held_out * (unexplained - self._missed(canvas.frames(image)))
        confirmed = float((detail * unexplained).sum()) / max(float((detail**2).sum()), _TINY)
        confirmed *= _modulation(self._snapshot.phi, canvas.displacements)
        return float(np.clip((confirmed - _WRONG) / (_RIGHT - _WRONG), 0, 1))

    def better(self, frames: F32, video: F32, step: int) -> float:
        """Return 0 where the solve is better than the image, 1 where it may be worse, and shares
        between; ``step`` is the distance in px of pixels of one colour.
        """
        solve = self._squared(_beside(video, step))
        ratio = solve / max(self._squared(_beside(frames, step)), _TINY)
        span = _SOLVE_MAY_BE_WORSE - _SOLVE_IS_BETTER
        return float(np.clip((ratio - _SOLVE_IS_BETTER) / span, 0, 1))


def _brightness(mosaics: F32) -> F32:
    """Return frames without colour, (B, h, w), of mosaics of this shape."""
    weights = np.array([0.25, 0.5, 0.25], np.float32)
    return np.stack([cv2.sepFilter2D(mosaic, -1, weights, weights) for mosaic in mosaics])


def _beside(frames: F32, step: int) -> F32:
    """Return at each pixel the mean of the four at this distance, (B, h, w)."""
    kernel = np.zeros((2 * step + 1,) * 2, np.float32)
    kernel[[0, step, step, -1], [step, 0, -1, step]] = 0.25
    return np.stack([cv2.filter2D(frame, -1, kernel) for frame in frames])


def _variance(frames: Sequence[F32], displacements: Displacements) -> F32:
    """Return the variance of frames that are moved back, (h, w), in windows."""
    variance = _aligned(frames, displacements).var(0)
    edges = (_EDGE,) * 4
    whole = cv2.copyMakeBorder(variance, *edges, cv2.BORDER_REFLECT)
    averaged = cv2.blur(whole, (_WINDOW, _WINDOW), borderType=cv2.BORDER_REFLECT)
    return np.asarray(averaged, np.float32)


def _modulation(phi: F32, displacements: Displacements) -> float:
    """Return by how much masks differ for one place of an image that moves: 0 to 1.

    1 for independent masks. 0 for a mask that moves with the image: y is then a blurred image, and
    predicts itself whatever the frames are.
    """
    seen = _aligned(phi, displacements)
    shared = seen.mean(0).var() / max(float(seen.var((1, 2)).mean()), _TINY)
    return float(np.clip((1 - shared) / (1 - 1 / len(phi)), 0, 1))


def _blurred(image: F32, blur_px: float) -> F32:
    return cv2.GaussianBlur(image, (0, 0), blur_px).astype(np.float32, copy=False)


def _registered(
    frames: F32,
    weights: F32,
    displacements: Displacements,
    stages: Sequence[tuple[float, int]] = _REGISTRATION,
) -> Displacements:
    """Return the displacement of each frame from the mean of all, (B, 2).

    ``frames`` (B, h, w) begin at ``displacements``; ``weights``, (h, w), say which pixels count.
    """
    n_frames = len(frames)
    times = _times(n_frames)
    inside = slice(_EDGE, -_EDGE)
    weights = weights[inside, inside].ravel()
    for blur, rounds in stages:
        blurred = [_blurred(frame, blur) for frame in frames]
        for _ in range(rounds):
            aligned = _aligned(blurred, displacements)
            mean = aligned.mean(0)
            slopes = np.stack([slope.ravel() for slope in np.gradient(mean)])
            weighted = weights * slopes
            normal = weighted @ slopes.T + 1e-9 * np.eye(2)
            steps = (mean - aligned).reshape(n_frames, -1) @ weighted.T
            steps = np.linalg.solve(normal, steps.T).T
            if blur > 1:  # a velocity first: single frames may lock to another part of a texture
                steps = np.outer(times, _velocity(steps))
            displacements = displacements + steps
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
    """Return an image that was denoised and then fitted to y again."""
    prior = np.empty_like(image)
    for part in canvas.parts:
        # Differences of colours are about 0.
        prior[part.where] = denoise(image[part.where] + part.middle, sigma) - part.middle
    return _fitted(snapshot, canvas, prior, _LAST_ITERATIONS, prior=prior)
