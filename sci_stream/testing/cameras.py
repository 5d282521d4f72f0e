"""One suite of tests for every camera, also those of other packages.

Derive a class from `CameraContract` in a test module; pytest runs its tests::

    class TestMyCamera(CameraContract):
        def make(self):
            return MyCamera(MyCamera.Options())
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations, pairwise
from typing import Any

import numpy as np

from sci_stream.clock import unix_ns
from sci_stream.errors import CameraLost
from sci_stream.model import BayerPhase, CameraCapabilities, CameraFrame, FrameIds
from sci_stream.ports import AdjustableCamera, Camera

_MAX_INT = 2**63 - 1
_METHODS = ("open", "calibration", "start", "read", "exhausted", "counters", "stop", "close")
# More frames than a test camera has: a finite one that delivers more never says that it is
# exhausted.
_MAX_FRAMES = 10_000
# Frames, and time after the first `n_frames`, within which a library has filled all of its buffers.
_BUFFERED, _BUFFERED_S = 33, 2.0
# Between receipt and test: less than any clock differs that does not count from 1970.
_MAX_AGE_NS = 60 * 10**9


class CameraContract:
    """Tests of a camera; see `sci_stream.ports.Camera`."""

    n_frames = 4
    """Frames that a test reads; a finite camera must have so many."""
    timeout_s = 5.0
    """Time within which a frame must come."""
    lost_s = 10.0
    """Time within which a camera that went away must be noticed."""

    def make(self) -> Camera:
        """Return a camera, not yet open; each call returns an equal one."""
        raise NotImplementedError

    def unplug(self, camera: Any) -> None:
        """Let a running camera of `make` go away.

        Optional: the suite then tests that its loss is noticed.
        """

    # --- capabilities

    def test_it_satisfies_the_protocol(self) -> None:
        """It has all methods."""
        with self._made() as camera:
            missing = [name for name in _METHODS if not hasattr(camera, name)]
            assert isinstance(camera, Camera), (
                f"the driver lacks {', '.join(missing)}: see sci_stream.ports.Camera"
            )

    def test_options_refuse_unknown_keys(self) -> None:
        """A misspelt key of the rig file is an error."""
        with self._made() as camera:
            options: Any = getattr(type(camera), "Options", None)
        assert hasattr(options, "model_config"), (
            "the driver's class needs Options, a model of pydantic"
        )
        wanted = 'Options needs model_config = ConfigDict(extra="forbid")'
        assert options.model_config.get("extra") == "forbid", wanted

    def test_capabilities_are_complete(self) -> None:
        """Sizes, texts and frame numbering have their types and ranges; a colour sensor has even
        sizes.
        """
        with self._made() as camera:
            capabilities = camera.open()
        assert isinstance(capabilities, CameraCapabilities), (
            f"open() must return CameraCapabilities: {capabilities!r}"
        )
        for name in ("height_px", "width_px", "bit_depth"):
            assert _is_integer(getattr(capabilities, name), 1), (
                f"{name} = {getattr(capabilities, name)!r}"
            )
        for name, low in (("n_frames", 1), ("frame_period_ns", 0)):
            value = getattr(capabilities, name)
            assert value is None or _is_integer(value, low), f"{name} = {value!r}"
        for name in ("model", "serial", "pixel_format", "clock"):
            assert isinstance(getattr(capabilities, name), str), (
                f"{name} = {getattr(capabilities, name)!r}"
            )
        form, bayer, ids = capabilities.pixel_format, capabilities.bayer, capabilities.frame_ids
        assert str(capabilities.bit_depth) in form, (
            f"pixel_format {form!r} must contain the bit depth, as in 'Mono12'"
        )
        assert (bayer is not None) == form.startswith("Bayer"), (
            f"bayer = {bayer!r} with pixel_format {form!r}"
        )
        if bayer is not None:
            assert isinstance(bayer, BayerPhase), (
                f"bayer must be a sci_stream.model.BayerPhase, is {bayer!r}"
            )
            assert (capabilities.height_px % 2, capabilities.width_px % 2) == (0, 0), (
                "a colour sensor has even sizes"
            )
        assert isinstance(ids, FrameIds), (
            f"frame_ids must be sci_stream.model.FrameIds(first, last), is {ids!r}"
        )
        ordered = _is_integer(ids.first, 0) and (
            ids.last is None or _is_integer(ids.last, ids.first)
        )
        assert ordered, f"frame_ids need 0 ≤ first ≤ last, or last=None without a wrap, are {ids!r}"
        units = capabilities.chunks
        assert all(isinstance(text, str) for item in units.items() for text in item), (
            f"chunks = {units!r}"
        )

    def test_open_twice_returns_equal_capabilities(self) -> None:
        """A camera that is open stays as it is."""
        with self._made() as camera:
            first = camera.open()
            assert camera.open() == first

    def test_counters_are_counts(self) -> None:
        """Each has a name and is an integer; ``delivered`` counts frames since `open`.

        They can be read when closed.
        """
        with self._made() as camera:
            camera.counters()
            for delivered in (self.n_frames, 1):
                self._frames(camera, delivered)
                for name, count in camera.counters().items():
                    assert isinstance(name, str)
                    assert _is_integer(count, 0), f"{name} = {count!r}"
                counted = camera.counters().get("delivered")
                assert counted == delivered, (
                    f"delivered must count frames since open(): {counted}, not {delivered}"
                )
                camera.close()
                camera.counters()

    def test_settings_can_be_set_to_their_values(self) -> None:
        """An adjustable camera accepts the values that it declares."""
        with self._made() as camera:
            before = camera.open()
            if isinstance(camera, AdjustableCamera):
                for parameter in camera.settings():
                    after = camera.set(parameter.name, parameter.checked(parameter.value))
                    assert (after.height_px, after.width_px) == (before.height_px, before.width_px)

    # --- frames

    def test_frames_match_the_capabilities(self) -> None:
        """Shape, type and range of the counts, and the rest of a frame."""
        with self._made() as camera:
            capabilities = camera.open()
            shape = (capabilities.height_px, capabilities.width_px)
            for frame in self._frames(camera):
                assert isinstance(frame, CameraFrame), (
                    f"read() must return a CameraFrame or None: {frame!r}"
                )
                assert frame.counts.shape == shape, (
                    f"counts of {frame.counts.shape}, not (height, width) = {shape}"
                )
                kinds = (np.uint8, np.uint16, np.float32)
                assert frame.counts.dtype in kinds, (
                    f"counts are {frame.counts.dtype}, not uint8, uint16 or float32"
                )
                assert (
                    0 <= frame.counts.min() <= frame.counts.max() <= 2**capabilities.bit_depth - 1
                ), (
                    f"counts of {frame.counts.min()} to {frame.counts.max()} exceed "
                    f"{capabilities.bit_depth} bits"
                )
                ids, number = capabilities.frame_ids, frame.frame_id
                assert number is None or (
                    _is_integer(number, ids.first) and (ids.last is None or number <= ids.last)
                ), f"frame_id {number!r} is outside {ids}: FrameIds(first, last before a wrap)"
                age_ns = unix_ns() - frame.host_time_ns
                assert _is_integer(frame.host_time_ns, 0), (
                    f"host_time_ns must be an int, is {frame.host_time_ns!r}"
                )
                assert abs(age_ns) < _MAX_AGE_NS, (
                    "host_time_ns must be the Unix time of receipt in ns"
                )
                stamp, clock = frame.camera_time_ns, capabilities.clock
                assert (stamp is not None) == (clock != "none"), (
                    f"camera_time_ns = {stamp!r} with clock = {clock!r}"
                )
                assert stamp is None or _is_integer(stamp, 0), (
                    f"camera_time_ns must be an int, is {stamp!r}"
                )
                assert all(
                    isinstance(value, bool | int | float | str) for value in frame.chunks.values()
                )
                assert (frame.truth is not None) == capabilities.has_truth
                if frame.truth is not None:
                    assert frame.truth.shape[1:] == shape
                    assert frame.truth.dtype == np.uint8 or frame.truth.dtype.kind == "f"

    def test_frame_ids_are_consecutive(self) -> None:
        """Nothing is missed by a test, which reads at once; a finite camera begins with its first
        id.
        """
        with self._made() as camera:
            capabilities = camera.open()
            ids = [frame.frame_id for frame in self._frames(camera)]
            first = capabilities.frame_ids.first
            assert ids[0] in {None, first} or not capabilities.finite, (
                f"frame_id begins at {ids[0]}, not {first}"
            )
            for before, after in pairwise(ids):
                assert (before is None) == (after is None), f"frame_id {before} and then {after}"
                missed = (
                    0
                    if before is None or after is None
                    else capabilities.frame_ids.missed(before, after)
                )
                assert missed == 0, (
                    f"frame_id {after} does not follow {before}, with {capabilities.frame_ids}"
                )

    def test_timestamps_increase(self) -> None:
        """Of both clocks."""
        with self._made() as camera:
            for before, after in pairwise(self._frames(camera)):
                assert after.host_time_ns >= before.host_time_ns, "host_time_ns goes back"
                one, two = before.camera_time_ns, after.camera_time_ns
                assert one is None or two is None or two > one, (
                    f"camera_time_ns {two} after {one} does not increase"
                )

    def test_frame_is_unchanged_by_later_reads(self) -> None:
        """The driver does not use the memory of a delivered frame again, nor release it."""
        with self._made() as camera:
            frames = self._frames(camera)
            before = [frame.counts.copy() for frame in frames]
            end_s = time.monotonic() + _BUFFERED_S
            while len(frames) < _BUFFERED and not camera.exhausted and time.monotonic() < end_s:
                frame = camera.read(0.1)
                frames += [] if frame is None else [frame]
            for (i, one), (j, two) in combinations(enumerate(frames), 2):
                shared = np.shares_memory(one.counts, two.counts)
                assert not shared, (
                    f"frames {i} and {j} have the same memory: read() must return a copy"
                )
            camera.close()
            for frame, counts in zip(frames, before, strict=False):
                np.testing.assert_array_equal(
                    frame.counts, counts, "a frame changed after read() returned it"
                )

    def test_frame_is_owned_by_the_receiver(self) -> None:
        """Changes by the receiver of a frame do not show in later ones."""
        with self._made() as camera, self._made() as other:
            if not camera.open().finite:
                return  # a live camera does not repeat itself
            untouched = [frame.counts for frame in self._frames(camera)]
            other.open()
            other.start()
            for expected in untouched:
                frame = self._read(other)
                np.testing.assert_array_equal(frame.counts, expected)
                frame.counts[:] = 0
                if frame.truth is not None:
                    frame.truth[:] = 0

    def test_equal_options_give_equal_frames(self) -> None:
        """Two finite cameras with the same options deliver the same."""
        with self._made() as one, self._made() as other:
            if not one.open().finite:
                return
            for first, second in zip(self._frames(one), self._frames(other), strict=True):
                np.testing.assert_array_equal(first.counts, second.counts)
                assert first.frame_id == second.frame_id
            masks = [camera.calibration() for camera in (one, other)]
            assert (
                len({None if calibration is None else calibration.hash for calibration in masks})
                == 1
            )

    # --- calibration

    def test_calibration_fits_the_frames(self) -> None:
        """The masks of a camera that knows them have its format,
        and explain its range of values.
        """
        with self._made() as camera:
            capabilities = camera.open()
            calibration = camera.calibration()
            if calibration is None:
                return
            assert calibration.shape == (capabilities.height_px, capabilities.width_px)
            assert calibration.n_frames == capabilities.n_frames
            assert calibration.bayer == capabilities.bayer
            for frame in self._frames(camera):
                assert calibration.measurement(frame.counts).max() <= calibration.n_frames * 1.1

    def test_truth_explains_the_counts(self) -> None:
        """A truth, seen through the masks, is the measurement."""
        with self._made() as camera:
            capabilities = camera.open()
            calibration = camera.calibration()
            if not capabilities.has_truth:
                return
            assert calibration is not None
            for frame in self._frames(camera):
                assert frame.truth is not None
                assert frame.truth.shape == calibration.phi.shape
                truth = frame.truth / 255 if frame.truth.dtype == np.uint8 else frame.truth
                model = np.einsum("bhw,bhw->hw", calibration.phi, truth)
                assert np.sqrt(np.mean((calibration.measurement(frame.counts) - model) ** 2)) < 0.02

    # --- start, stop, close

    def test_finite_camera_is_exhausted_after_its_last_frame(self) -> None:
        """It says so, and `read` returns None from then on."""
        with self._made() as camera:
            if not camera.open().finite:
                assert not camera.exhausted
                return
            camera.start()
            count = 0
            while not camera.exhausted:
                self._read(camera)
                count += 1
                assert count < _MAX_FRAMES
            assert count >= self.n_frames
            assert camera.read(0.0) is None

    def test_start_after_stop_restarts(self) -> None:
        """A finite camera begins again; the ids of others begin again or go on."""
        with self._made() as camera:
            first = self._frames(camera, 2)
            camera.stop()
            again = self._frames(camera)
            ended, begun = first[-1].frame_id, again[0].frame_id
            if ended is not None and begun is not None and begun != first[0].frame_id:
                assert not camera.open().finite
                assert camera.open().frame_ids.missed(ended, begun) >= 0
            if camera.open().finite:
                np.testing.assert_array_equal(again[0].counts, first[0].counts)

    def test_open_after_close_works(self) -> None:
        """A camera that was closed delivers again."""
        with self._made() as camera:
            first = self._frames(camera, 1)
            camera.close()
            again = self._frames(camera, 1)
            if camera.open().finite:
                np.testing.assert_array_equal(again[0].counts, first[0].counts)

    def test_start_twice_has_no_effect(self) -> None:
        """A second start does not begin again."""
        with self._made() as camera:
            ids = camera.open().frame_ids
            (first,) = self._frames(camera, 1)
            camera.start()
            second = self._read(camera)
            if first.frame_id is not None and second.frame_id is not None:
                assert ids.missed(first.frame_id, second.frame_id) == 0

    def test_calls_out_of_order_raise_runtime_error(self) -> None:
        """`start` and `calibration` need `open`, `read` needs `start`."""
        with self._made() as camera:
            for call in (camera.start, camera.calibration):
                assert _refused(call), f"{call.__name__}() before open() must raise RuntimeError"
            camera.open()
            for _ in range(2):
                assert _refused(lambda: camera.read(0.0)), (
                    "read() without start() must raise RuntimeError"
                )
                camera.start()
                camera.stop()

    def test_lost_camera_is_noticed(self) -> None:
        """`read` raises CameraLost once the camera is gone, if a suite has `unplug`; then nothing
        else raises.
        """
        if type(self).unplug is CameraContract.unplug:
            return
        with self._made() as camera:
            self._frames(camera, 1)
            self.unplug(camera)
            end_s = time.monotonic() + self.lost_s
            try:
                while time.monotonic() < end_s:
                    camera.read(0.1)
            except CameraLost:
                camera.stop()
            else:
                raise AssertionError(
                    f"read() raised no CameraLost within {self.lost_s:g} s after unplug()"
                )

    def test_stop_and_close_are_allowed_in_any_state(self) -> None:
        """Before `open`, and twice."""
        with self._made() as camera:
            camera.stop()
            camera.close()
            self._frames(camera, 1)
            for _ in range(2):
                camera.stop()
            for _ in range(2):
                camera.close()

    @contextmanager
    def _made(self) -> Iterator[Camera]:
        camera = self.make()
        try:
            yield camera
        finally:
            camera.close()

    def _read(self, camera: Camera) -> CameraFrame:
        frame = camera.read(self.timeout_s)
        assert frame is not None, f"no frame within {self.timeout_s:g} s"
        return frame

    def _frames(self, camera: Camera, count: int | None = None) -> list[CameraFrame]:
        """Open and start a camera, if it is not, and read frames."""
        camera.open()
        camera.start()
        return [self._read(camera) for _ in range(self.n_frames if count is None else count)]


def _refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except RuntimeError:
        return True
    return False


def _is_integer(value: object, low: int) -> bool:
    return type(value) is int and low <= value <= _MAX_INT
