"""A camera that plays files: published measurements and recordings.

Their sources number the shots and give random access to them. ``capabilities`` of a source are
those of a camera that plays each shot once; ``frame_numbers`` ascend, one per shot: a step of more
than 1 gives the number of frames lost in the original run.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from sci_stream.errors import FileFormatError, InputError
from sci_stream.file_guard import unicode_name
from sci_stream.files.measurement_file import Measurements, load_measurement
from sci_stream.optics.white import brightness_percentile, fit_white, transmission, white_level
from sci_stream.plugins import (
    Array,
    BayerPhase,
    Calibration,
    CameraCapabilities,
    CameraFrame,
    unix_ns,
)
from sci_stream.recording.columns import recorded_chunks
from sci_stream.recording.series import RecordedSeries
from sci_stream_drivers.fields import BayerOption, DriverOptions, pixel_format_name
from sci_stream_drivers.pacing import Pacer

log = logging.getLogger(__name__)

# Published simulations agree to rounding; masks in another order leave far more.
_MAX_RESIDUAL = 0.05


class ReplayOptions(DriverOptions):
    """Options of the replay camera."""

    path: Path
    """A published .mat file (v5 or v7.3); a recording: its first .h5 file."""
    snapshot_rate_hz: float = Field(0.0, ge=0, le=100_000)
    """Snapshots per second; 0: as fast as they can be read."""
    loop: bool = False
    """Restart after the last shot, endlessly."""
    truth: bool = True
    """Deliver the true video, if a .mat file contains it."""
    bayer: BayerOption = None
    """Colour filters of a .mat file's sensor, or none; a recording contains its own."""
    full_scale_dn: float | None = Field(None, gt=0)
    """Counts of one white frame through an open mask of a .mat file; unset: estimated."""


class ReplayCamera:
    """Play a file as if it came from a camera. Implements `sci_stream.ports.Camera`.

    Frame ids count from 0 at each start, with the gaps of the original run if a recording contains
    them; in a loop they continue, so that no id is repeated. Recorded timestamps are delivered,
    except in a loop, where they would go back.
    """

    Options: ClassVar[type[ReplayOptions]] = ReplayOptions

    def __init__(self, options: ReplayOptions) -> None:
        self._options = options
        self._pacer = Pacer(options.snapshot_rate_hz)
        self._source: PublishedSource | RecordedSource | None = None
        self._counts = Counter[str]()
        self._running = False
        self._played = 0

    def open(self) -> CameraCapabilities:
        """Read the file and return the capabilities.

        Raises `FileFormatError` if the file cannot be played.
        """
        o = self._options
        if self._source is None:
            path = o.path.expanduser()
            self._source = (
                PublishedSource(path, o) if path.suffix.lower() == ".mat" else RecordedSource(path)
            )
            self._counts.clear()
        capabilities = replace(
            self._source.capabilities, frame_period_ns=self._pacer.period_ns, finite=not o.loop
        )
        return replace(capabilities, clock="none") if o.loop else capabilities

    def calibration(self) -> Calibration:
        """Return the calibration of the file, or the one that follows from its masks."""
        return self._opened().calibration

    def start(self) -> None:
        """Start with the first shot."""
        self._opened()
        if not self._running:
            self._running = True
            self._played = 0
            self._pacer.start()

    def read(self, timeout_s: float) -> CameraFrame | None:
        """Return the next frame, or None after the timeout; see `sci_stream.ports.Camera.read`."""
        if not self._running:
            raise RuntimeError(
                "read() needs an open and started camera: call open() and start() first"
            )
        if self.exhausted or not self._pacer.wait(self._played, timeout_s):
            return None
        source = self._opened()
        numbers = source.frame_numbers
        rounds, shot = divmod(self._played, len(numbers))
        frame = source.shot(shot)
        self._played += 1
        self._counts["delivered"] += 1
        if not self._options.loop:
            return frame
        frame_id = rounds * (numbers[-1] + 1) + numbers[shot]
        return replace(frame, frame_id=frame_id, camera_time_ns=None)

    def _opened(self) -> PublishedSource | RecordedSource:
        if self._source is None:
            raise RuntimeError("the camera is not open: call open() first")
        return self._source

    @property
    def exhausted(self) -> bool:
        """True once the last shot has been delivered; never in a loop."""
        return (
            not self._options.loop
            and self._source is not None
            and self._played >= len(self._source.frame_numbers)
        )

    def counters(self) -> Mapping[str, int]:
        """Return the number of frames ``delivered`` since `open`."""
        return dict(self._counts)

    def stop(self) -> None:
        """Stop playing; `start` restarts."""
        self._running = False

    def close(self) -> None:
        """Close the file; `open` may follow."""
        self.stop()
        if self._source is not None:
            self._source.close()
            self._source = None


class PublishedSource:
    """The shots of a published ``.mat`` file, on its own scale of counts.

    Such files have no Bayer phase, which is an option. With ``truth`` their ``orig`` is the truth,
    if they have it. Without ``full_scale_dn``, the counts of one white frame through an open mask,
    it is estimated: see `_calibrate`.

    Raises `FileFormatError` if the file is unusable.
    """

    def __init__(self, path: Path, options: ReplayOptions) -> None:
        published = load_measurement(path)
        bayer = options.bayer
        for note in published.assumed:
            log.info("%s: %s", path, note)
        self.calibration = _calibrate(published, path, bayer, options.full_scale_dn)
        self._counts = _as_counts(np.asarray(published.y))
        self._truth = _as_truth(
            published.truth if options.truth else None, self.calibration.phi.shape
        )
        self.frame_numbers = list(range(len(self._counts)))
        depth = 8 * self._counts.dtype.itemsize
        height, width = self.calibration.shape
        self.capabilities = CameraCapabilities(
            model="published measurement",
            serial=unicode_name(path),
            height_px=height,
            width_px=width,
            pixel_format="Mono32f"
            if self._counts.dtype == np.float32
            else pixel_format_name(depth, bayer),
            bit_depth=depth,
            n_frames=self.calibration.n_frames,
            bayer=bayer,
            has_truth=len(self._truth) > 0,
        )

    def shot(self, i: int) -> CameraFrame:
        """Return shot ``i``."""
        truth = self._truth[i].copy() if i < len(self._truth) else None
        return CameraFrame(self._counts[i].copy(), self.frame_numbers[i], None, unix_ns(), truth)

    def close(self) -> None:
        """Do nothing: the file has been read completely."""


class RecordedSource:
    """The raw snapshots of a recording, across all segments.

    Losses of the original run, of camera frames and of snapshots recorded without counts, appear
    again. Timestamps are omitted if the camera was reopened in between, because its clock may have
    restarted. ``path`` is the first segment, or a later one for that one alone.

    Raises `FileFormatError` if the file is not a recording, is damaged, or contains no raw
    snapshots.
    """

    def __init__(self, path: Path) -> None:
        self._series = RecordedSeries(path)
        try:
            seqs = self._series.require_raw().seqs
            self._seqs: list[int] = seqs.tolist()
            self.calibration = self._series.calibration
            self.frame_numbers = self._numbers()
            info = self._series.info
            self.capabilities = CameraCapabilities(
                model=f"recording of {info.camera_model}",
                serial=info.camera_serial,
                height_px=info.height_px,
                width_px=info.width_px,
                pixel_format=info.pixel_format,
                bit_depth=info.bit_depth,
                n_frames=info.n_frames,
                bayer=info.bayer,
                clock="recorded" if self._stamped(seqs) else "none",
                chunks=dict(info.chunks),
            )
        except BaseException:
            self._series.close()
            raise

    def _stamped(self, seqs: npt.NDArray[np.int64]) -> bool:
        rows = self._series.rows
        at = seqs - self._series.first_seq
        return bool((rows["camera_time_ns"][at] >= 0).all() and np.ptp(rows["epoch"][at]) == 0)

    def _numbers(self) -> list[int]:
        lost = self._series.rows["dropped_before"]
        numbers = [0]
        for previous, seq in pairwise(self._seqs):
            rows = slice(previous + 1 - self._series.first_seq, seq + 1 - self._series.first_seq)
            numbers.append(numbers[-1] + seq - previous + int(lost[rows].sum()))
        return numbers

    def shot(self, i: int) -> CameraFrame:
        """Return shot ``i``."""
        seq = self._seqs[i]
        row = self._series.row(seq)
        stamp = row["camera_time_ns"] if self.capabilities.clock == "recorded" else None
        counts = self._series.frame_of("raw", seq)
        chunks = recorded_chunks(row)
        return CameraFrame(counts, self.frame_numbers[i], stamp, unix_ns(), chunks=chunks)

    def close(self) -> None:
        """Close the files."""
        self._series.close()


def _calibrate(
    published: Measurements, path: Path, bayer: BayerPhase | None, full_scale_dn: float | None
) -> Calibration:
    r"""Make the calibration of a published measurement, whose scale is arbitrary.

    φ is the mask over its maximum. If the truth x is available, ``full_scale_dn`` is the
    least-squares s of ``meas = s · Σ_b φ_b ⊙ x_b``. A real measurement has no absolute scale: s is
    the 99.5th percentile of ``meas / Σ_b φ_b``, the mean brightness of each pixel's video, so that
    the reconstruction fills 0–1 and only its highlights exceed it.

    Raises `FileFormatError` if truth and masks do not explain the measurement, or it is dark
    everywhere.
    """
    assert not isinstance(published.masks, Calibration)
    try:
        _, phi = transmission(published.masks)
    except InputError as error:
        raise FileFormatError(f"{path} cannot be played", got=error) from None
    y = np.asarray(published.y)
    if full_scale_dn is not None:
        scale = full_scale_dn
    elif published.truth is not None:
        scale = _scale_by_truth(y, published.truth, phi, path)
    else:
        scale = brightness_percentile(y, phi)
    if not scale > 0:
        raise FileFormatError(
            f"The measurement of {path} is dark",
            expected="positive counts",
            got=f"a scale of {scale:.4g}",
        )
    return Calibration(
        phi=phi,
        full_scale_dn=float(
            f"{scale:.7g}"
        ),  # without the rounding errors of sums, which would change the hash
        bayer=bayer,
        camera_serial=unicode_name(path),
        source=f"mask of {path.name}, divided by its maximum",
    )


def _scale_by_truth(y: Array, truth: Array, phi: Array, path: Path) -> float:
    """Return s of meas = s Σφx by least squares, and verify the relation."""
    x = truth.reshape(-1, *phi.shape) / white_level(truth)
    scale, residual = fit_white(y[: len(x)], phi, x)
    if residual > _MAX_RESIDUAL:
        raise FileFormatError(
            f"mask and orig of {path} do not explain its meas",
            expected=f"meas = Σ mask·orig up to a scale, within {_MAX_RESIDUAL:.0%}",
            got=f"a residual of {residual:.1%}",
            hint="The masks may be in another order. "
            "It plays as a real measurement with truth = false and full_scale_dn set.",
        )
    return scale


def _as_counts(meas: Array) -> Array:
    """Return counts as uint16 if all are integers that fit (up to rounding errors of summing), else
    float32.
    """
    whole = np.rint(meas)
    if whole.min() >= 0 and whole.max() <= 65535 and np.allclose(meas, whole, rtol=0, atol=1e-6):
        return whole.astype(np.uint16)
    return meas.astype(np.float32)


def _as_truth(orig: Array | None, shape: tuple[int, ...]) -> Array:
    """Return the true (B, H, W) of the first shots as uint8 if they are integers of 0–255, else as
    float32 of 0–1.
    """
    if orig is None:
        return np.empty((0, *shape))
    orig, white = orig.reshape(-1, *shape), white_level(orig)
    if (
        white == 255
        and orig.min() >= 0
        and orig.max() <= 255
        and np.array_equal(orig, np.rint(orig))
    ):
        return orig.astype(np.uint8)
    return (orig / white).astype(np.float32)
