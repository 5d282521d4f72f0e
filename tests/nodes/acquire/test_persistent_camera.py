"""A persistent camera stays open across series unless it fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from sci_stream_drivers.simulated import SimulatedCamera

from sci_stream.errors import CameraError, CameraLost
from sci_stream.nodes.acquire.persistent_camera import PersistentCamera, kept_open
from sci_stream.ports import Camera
from tests.drivers.camera_kit import SHOTS, frames, simulated


class CountingCamera(SimulatedCamera):
    """Counts how often it is opened and closed for real."""

    opens = closes = 0
    is_open = False

    def open(self):  # type: ignore[no-untyped-def]
        self.opens += not self.is_open
        self.is_open = True
        return super().open()

    def close(self) -> None:
        self.closes += self.is_open
        self.is_open = False
        super().close()


def counting_camera(**options: object) -> CountingCamera:
    return CountingCamera(simulated(**options)._options)


def test_persistent_camera_satisfies_the_port() -> None:
    assert isinstance(PersistentCamera(simulated()), Camera)


def test_camera_is_opened_once_for_several_series() -> None:
    camera = counting_camera()
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


def test_lost_camera_is_closed_and_reopened() -> None:
    camera = counting_camera(faults={"disconnect_after": 2})
    with kept_open(camera) as kept:
        assert len(frames(kept, 2)) == 2
        with pytest.raises(CameraLost):
            kept.read(1.0)
        kept.stop()
        kept.close()
        assert camera.closes == 1
        assert len(frames(kept, 2)) == 2
        assert camera.opens == 2


def test_camera_that_cannot_be_opened_is_closed() -> None:
    camera = counting_camera(faults={"disconnect_after": 1, "return_after_s": 60.0})
    with kept_open(camera) as kept:
        frames(kept, 1)
        with pytest.raises(CameraLost):
            kept.read(1.0)
        kept.close()
        with pytest.raises(CameraError):
            kept.open()
        kept.close()


def test_settings_persist_across_series_and_reconnects() -> None:
    camera = counting_camera(snapshots=0, snapshot_rate_hz=1000.0, faults={"disconnect_after": 3})
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
        assert kept.open().frame_period_ns == 2_000_000, "reopened, and set again"
    assert camera.opens == 2


def exposure(camera: PersistentCamera) -> object:
    return next(entry.value for entry in camera.settings() if entry.name == "exposure")


def test_settings_survive_a_crash_within_a_series(tmp_path: Path) -> None:
    memory = tmp_path / "rig.settings"
    for _ in range(2):
        killed = PersistentCamera(simulated(), memory)  # as in a crash, nothing is closed
        killed.open()
        killed.set("exposure", 0.5)
    with kept_open(simulated(), memory, resume=True) as kept:
        kept.open()
        assert exposure(kept) == 0.5
    assert list(tmp_path.iterdir()) == [], "it ended cleanly"


def test_settings_of_a_finished_series_are_discarded(tmp_path: Path) -> None:
    memory = tmp_path / "rig.settings"
    memory.write_text('{"exposure": 0.5}')
    with kept_open(simulated(), memory) as kept:
        kept.open()
        assert exposure(kept) == 0.9


@pytest.mark.parametrize("content", ["", "{", '{"exposure": [1]}', '{"exposure": -7.0}', '{"gone": 1}'])
def test_damaged_settings_file_does_not_prevent_opening(tmp_path: Path, content: str) -> None:
    memory = tmp_path / "rig.settings"
    memory.write_text(content)
    with kept_open(simulated(), memory, resume=True) as kept:
        kept.open()
        assert exposure(kept) == 0.9
