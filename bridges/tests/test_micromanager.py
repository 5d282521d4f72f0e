"""The demo camera of Micro-Manager is the camera of a rig, by way of pymmcore-plus."""

from __future__ import annotations

import contextlib
import runpy
import threading
from pathlib import Path

import numpy as np
import pytest

from sci_stream_drivers.push import PushCamera, PushOptions

pytestmark = pytest.mark.filterwarnings("ignore")  # of Micro-Manager's own dependencies
pymmcore_plus = pytest.importorskip("pymmcore_plus", exc_type=ModuleNotFoundError)
adapters = pytest.importorskip("mm_test_adapters", exc_type=ModuleNotFoundError)
EXAMPLE = Path(__file__).parents[2] / "examples" / "push_micromanager.py"


def test_frames_of_the_demo_camera_arrive_in_order(tmp_path: Path) -> None:
    core = pymmcore_plus.CMMCorePlus()
    core.setDeviceAdapterSearchPaths([str(adapters.device_adapter_path())])
    core.loadDevice("Camera", "DemoCamera", "DCam")
    core.initializeDevice("Camera")
    core.setCameraDevice("Camera")
    core.setProperty("Camera", "PixelType", "16bit")
    core.setExposure(5.0)
    options = PushOptions(
        height_px=core.getImageHeight(),
        width_px=core.getImageWidth(),
        bit_depth=core.getImageBitDepth(),
        address=f"ipc://{tmp_path}/frames",
    )
    example = runpy.run_path(str(EXAMPLE))
    with contextlib.closing(PushCamera(options)) as camera:
        camera.open()
        camera.start()
        program = threading.Thread(target=example["send"], args=(core, options.address, 5))
        program.start()
        frames = [camera.read(10.0) for _ in range(5)]
        program.join()
    numbers = [frame.frame_id for frame in frames if frame is not None]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == 5
    assert frames[0] is not None
    assert frames[0].counts.shape == (512, 512)
    assert np.ptp(frames[0].counts) > 0
