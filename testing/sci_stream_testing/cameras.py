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
from itertools import combinations, pairwise, product
from typing import Any, Literal

import numpy as np

from sci_stream.errors import CameraError, CameraLost, InputError
from sci_stream.plugins import (
    AdjustableCamera,
    Array,
    BayerPhase,
    Camera,
    CameraCapabilities,
    CameraFrame,
    CameraTiming,
    CameraTrigger,
    FrameIds,
    Parameter,
    TriggeredCamera,
    Value,
    unix_ns,
)

_MAX_INT = 2**63 - 1
_METHODS = ("open", "calibration", "start", "read", "exhausted", "counters", "stop", "close")
# More frames than a test camera has: a finite one that delivers more never says that it is
# exhausted.
_MAX_FRAMES = 10_000
# Frames, and time after the first `n_frames`, within which a library has filled all of its buffers.
_BUFFERED, _BUFFERED_S = 33, 2.0
# Frames, and time, within which ids of 8 bits wrap, and a clock shows its unit.
_MANY, _MANY_S = 300, 3.0
# Clocks that differ by more than this factor have different units; less time says nothing.
_SCALE, _SCALE_S = 3.0, 0.3
# Reads that wait in vain: the fastest of some ends this long after its timeout, even on a busy
# machine.
_GRACE_S = 0.4
# Exposures to arm, µs, that are no multiple of a usual step.
_EXPOSURES_US = (1234.5, 3456.7)
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

    def now_s(self) -> float:
        """Return the time by which a lost camera waits; a simulated one may have its own."""
        return time.monotonic()

    def spoil(self, camera: Any) -> None:
        """Let the next frame of a running camera of `make` arrive with data missing.

        Optional: the suite then tests that it is counted, not delivered.
        """

    def shows(self, frame: CameraFrame) -> Array | None:  # noqa: ARG002 - for a suite that knows
        """Return the counts that a frame must have; None, the default, if that is not known.

        From the maker's own program, for example: the suite then notices swapped axes and another
        scale.
        """
        return None

    def make_refused(self) -> Camera | None:
        """Return a camera with options that the device cannot do, such as an exposure out of range.

        Optional: the suite then tests that `open` refuses them.
        """
        return None

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

    def test_settings_keep_new_values(self) -> None:
        """A value that was set is the value from then on, and no other setting changes the image
        format.
        """
        with self._made() as camera:
            camera.open()
            if not isinstance(camera, AdjustableCamera):
                return
            for parameter in camera.settings():
                if (wanted := _another(parameter)) is None:
                    continue
                camera.set(parameter.name, wanted)
                now = next(one for one in camera.settings() if one.name == parameter.name).value
                assert now != parameter.value, (
                    f"{parameter.name} was set to {wanted!r} and still is {now!r}"
                )

    def test_impossible_options_are_refused(self) -> None:
        """`open` raises, in place of another value in silence; if a suite has `make_refused`."""
        camera = self.make_refused()
        if camera is None:
            return
        try:
            camera.open()
        except (InputError, CameraError):
            return
        finally:
            camera.close()
        raise AssertionError("open() accepted options that the device cannot do")

    # --- frames

    def test_frames_have_the_known_counts(self) -> None:
        """They are those of the device, also after a pause; if a suite has `shows`."""
        with self._made() as camera:
            camera.open()
            frames = self._frames(camera)
            time.sleep(0.1)  # time for the library to use its buffers again
            frames += [] if camera.exhausted else self._frames(camera, 1)
            for frame in frames:
                if (known := self.shows(frame)) is not None:
                    np.testing.assert_array_equal(
                        frame.counts, known, "read() delivers other counts than the device showed"
                    )

    def test_many_frames_are_numbered_and_timed(self) -> None:
        """Ids wrap where they are said to, and the clock of the camera counts nanoseconds."""
        with self._made() as camera:
            capabilities = camera.open()
            frames = self._frames(camera, 1)
            end_s = time.monotonic() + _MANY_S
            while len(frames) < _MANY and not camera.exhausted and time.monotonic() < end_s:
                frame = camera.read(0.1)
                frames += [] if frame is None else [frame]
        for before, after in pairwise(frames):
            if before.frame_id is not None and after.frame_id is not None:
                goes_on = capabilities.frame_ids.missed(before.frame_id, after.frame_id) >= 0
                assert goes_on, (
                    f"frame_id {after.frame_id} after {before.frame_id} contradicts "
                    f"{capabilities.frame_ids}"
                )
        first, last = frames[0], frames[-1]
        elapsed_ns = last.host_time_ns - first.host_time_ns
        if capabilities.finite or first.camera_time_ns is None or last.camera_time_ns is None:
            return
        ratio = (last.camera_time_ns - first.camera_time_ns) / max(elapsed_ns, 1)
        assert elapsed_ns < 1e9 * _SCALE_S or 1 / _SCALE < ratio < _SCALE, (
            f"camera_time_ns advances {ratio:.3g} times as fast as the time: it must be in ns"
        )

    def test_incomplete_frame_is_counted_and_not_delivered(self) -> None:
        """It leaves a gap of the ids and a count, if a suite has `spoil`."""
        if type(self).spoil is CameraContract.spoil:
            return
        with self._made() as camera:
            ids = camera.open().frame_ids
            numbers = [frame.frame_id for frame in self._frames(camera, 1)]
            before = sum(camera.counters().values()) - camera.counters()["delivered"]
            self.spoil(camera)
            numbers += [self._read(camera).frame_id for _ in range(_BUFFERED)]
            after = sum(camera.counters().values()) - camera.counters()["delivered"]
        assert after > before, "a frame with data missing must be counted by counters()"
        known = [number for number in numbers if number is not None]
        gaps = [ids.missed(one, two) for one, two in pairwise(known)]
        assert not known or any(gap > 0 for gap in gaps), "a frame with data missing was delivered"

    def test_start_delivers_no_frame_from_before(self) -> None:
        """What waited in the buffers at `stop` is not delivered after `start`."""
        with self._made() as camera:
            if camera.open().finite:
                return
            self._frames(camera, 1)
            time.sleep(0.1)  # time for frames to wait in the buffers
            camera.stop()
            began_ns = unix_ns()
            (frame,) = self._frames(camera, 1)
            assert frame.host_time_ns >= began_ns, (
                "the first frame after start() was received before it: empty the buffers"
            )

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

    # --- trigger

    def test_armed_trigger_is_kept_and_read_back(self) -> None:
        """`arm` returns the values that the camera keeps: near those asked for, and the same as
        `trigger_now`.
        """
        with self._made() as camera:
            camera.open()
            if not isinstance(camera, TriggeredCamera):
                return
            limits = camera.timing()
            assert isinstance(limits, CameraTiming), f"timing() returned {limits!r}"
            sources: tuple[Literal["free", "line"], ...] = ("free", "line")
            for source, exposure_us in product(sources, _EXPOSURES_US):
                wanted_us = float(
                    np.clip(exposure_us, limits.min_exposure_us, limits.max_exposure_us)
                )
                try:
                    armed = camera.arm(CameraTrigger(source, wanted_us))
                except InputError:
                    continue  # it cannot be triggered that way
                now = camera.trigger_now()
                assert (armed.source, now.source) == (source, source), (
                    f"armed to {source!r}, the trigger is {now.source!r}"
                )
                assert armed.exposure_us == now.exposure_us, (
                    f"arm() returned {armed.exposure_us} µs, trigger_now() {now.exposure_us} µs: "
                    "read it back"
                )
                off_us = abs(now.exposure_us - wanted_us)
                assert off_us <= max(limits.step_us, 0.01 * wanted_us), (
                    f"armed to {wanted_us} µs, the exposure is {now.exposure_us} µs"
                )
            camera.start()
            assert _refused(lambda: camera.arm(CameraTrigger("free", wanted_us))), (
                "arm() while started must raise RuntimeError"
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
            end_s = self.now_s() + self.lost_s
            waits_s = []
            try:
                while (began_s := self.now_s()) < end_s:
                    if camera.read(0.1) is None:
                        waits_s.append(self.now_s() - began_s)
            except CameraLost:
                camera.stop()
            else:
                raise AssertionError(
                    f"read() raised no CameraLost within {self.lost_s:g} s after unplug()"
                )
        fastest_s = min(waits_s, default=0.0)
        assert fastest_s < 0.1 + _GRACE_S, (
            f"read(0.1) without a frame takes {fastest_s:.2g} s: it must end at its timeout"
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


def _another(parameter: Parameter) -> Value | None:
    """Return another value of a setting; None if it has no other."""
    value, low, high = parameter.value, parameter.low, parameter.high
    if parameter.choices:
        return next((choice for choice in parameter.choices if choice != value), None)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    half, double = type(value)(value / 2), type(value)(2 * value)
    fitting = (
        other
        for other in (half, double)
        if other != value and (low is None or other >= low) and (high is None or other <= high)
    )
    return next(fitting, None)


def _refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except RuntimeError:
        return True
    return False


def _is_integer(value: object, low: int) -> bool:
    return type(value) is int and low <= value <= _MAX_INT
