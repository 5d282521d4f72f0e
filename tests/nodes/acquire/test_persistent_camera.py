"""A camera that is handed from series to series stays open, unless it fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from sci_stream_drivers.simulated import SimulatedCamera

from sci_stream.errors import CameraError, CameraLost, InputError
from sci_stream.nodes.acquire.persistent_camera import PersistentCamera, kept_open
from sci_stream.ports import Camera
from tests.drivers.camera_kit import SHOTS, frames, simulated


class HealthReporter(SimulatedCamera):
    """Counts how often it is opened and closed for real."""

    opens = closes = 0

    def open(self):  # type: ignore[no-untyped-def]
        self.opens += not self._bench
        return super().open()

    def close(self) -> None:
        self.closes += bool(self._bench)
        super().close()


def watched(**options: object) -> HealthReporter:
    return HealthReporter(simulated(**options)._options)


def test_it_is_a_camera() -> None:
    assert isinstance(PersistentCamera(simulated()), Camera)


def test_series_after_series_opens_it_once_and_closes_it_at_the_end() -> None:
    camera = watched()
    with kept_open(camera) as kept:
        for _ in range(3):
            received = frames(kept)
            assert [frame.frame_id for frame in received] == list(range(SHOTS))
            assert kept.exhausted
            kept.stop()
            kept.close()
        assert (camera.opens, camera.closes) == (1, 0)
        assert kept.counters()["delivered"] == 3 * SHOTS
    assert (camera.opens, camera.closes) == (1, 1)


def test_one_that_is_lost_is_closed_so_that_it_can_be_opened_anew() -> None:
    camera = watched(faults={"disconnect_after": 2})
    with kept_open(camera) as kept:
        assert len(frames(kept, 2)) == 2
        with pytest.raises(CameraLost):
            kept.read(1.0)
        kept.stop()
        kept.close()
        assert camera.closes == 1
        assert len(frames(kept, 2)) == 2
        assert camera.opens == 2


def test_one_that_cannot_be_opened_is_closed_all_the_same() -> None:
    camera = watched(faults={"disconnect_after": 1, "return_after_s": 60.0})
    with kept_open(camera) as kept:
        frames(kept, 1)
        with pytest.raises(CameraLost):
            kept.read(1.0)
        kept.close()
        with pytest.raises(CameraError):
            kept.open()
        kept.close()


def test_what_is_set_holds_for_the_series_that_follow_also_after_the_camera_was_lost() -> None:
    camera = watched(snapshots=0, snapshot_rate_hz=1000.0, faults={"disconnect_after": 3})
    with kept_open(camera) as kept:
        frames(kept, 1)
        kept.set("snapshot_rate_hz", 500.0)
        kept.close()
        assert kept.open().frame_period_ns == 2_000_000, "the next series"
        kept.start()
        for _ in range(2):  # the first of three was read above
            kept.read(5.0)
        with pytest.raises(CameraLost):
            kept.read(5.0)
        kept.close()
        assert kept.open().frame_period_ns == 2_000_000, "opened for real, and set again"
    assert camera.opens == 2


def test_a_camera_without_settings_has_none() -> None:
    kept = PersistentCamera(PlainCamera())  # type: ignore[arg-type]
    assert kept.settings() == ()
    with pytest.raises(InputError, match="no adjustable settings"):
        kept.set("exposure", 1.0)


class PlainCamera:
    """Nothing that can be set."""


def exposure(camera: PersistentCamera) -> object:
    return next(entry.value for entry in camera.settings() if entry.name == "exposure")


def test_what_was_set_outlives_the_process_while_its_series_goes_on(tmp_path: Path) -> None:
    memory = tmp_path / "rig.settings"
    for _ in range(2):
        killed = PersistentCamera(simulated(), memory)  # nothing of it is ended in order
        killed.open()
        killed.set("exposure", 0.5)
    with kept_open(simulated(), memory, resume=True) as kept:
        kept.open()
        assert exposure(kept) == 0.5
    assert list(tmp_path.iterdir()) == [], "it ended in order"


def test_what_was_set_for_a_series_that_is_over_is_forgotten(tmp_path: Path) -> None:
    memory = tmp_path / "rig.settings"
    memory.write_text('{"exposure": 0.5}')
    with kept_open(simulated(), memory) as kept:
        kept.open()
        assert exposure(kept) == 0.9


@pytest.mark.parametrize("content", ["", "{", '{"exposure": [1]}', '{"exposure": -7.0}', '{"gone": 1}'])
def test_a_memory_that_makes_no_sense_does_not_keep_the_camera_from_being_opened(tmp_path: Path, content: str) -> None:
    memory = tmp_path / "rig.settings"
    memory.write_text(content)
    with kept_open(simulated(), memory, resume=True) as kept:
        kept.open()
        assert exposure(kept) == 0.9
