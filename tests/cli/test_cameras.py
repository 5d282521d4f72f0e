"""``sci-stream cameras`` on the producer in the genicam wheel."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import pytest

from sci_stream.cli import app, main
from sci_stream.cli.cameras import _print_found
from sci_stream.errors import SciStreamError
from sci_stream.model import FoundProducer
from sci_stream.tools.cameras import FoundDriver
from tests.drivers.harvesters.kit import wheel_producer

pytestmark = pytest.mark.rig

Cameras = Callable[..., "subprocess.CompletedProcess[str]"]
RIG = """
[camera]
driver = "harvesters"
[camera.options]
cti = ["{producer}"]
features = [["PixelFormat", "Mono8"], ["Width", 160], ["Height", 120], ["AcquisitionFrameRate", 200.0]]
chunks = ["NrBounces"]
[camera.options.selector]
serial = "1"
"""


def test_driver_that_found_no_camera_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    _print_found([FoundDriver("aravis", (FoundProducer("aravis", "Aravis", "", "", ()),))])
    printed = capsys.readouterr().out
    assert "Aravis" in printed
    assert "no camera" in printed


@pytest.fixture
def producer() -> Path:
    return wheel_producer()


@pytest.fixture
def cameras(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    log_as_it_was: None,
) -> Cameras:
    """Return a function that runs the command in a separate folder, without any producer in the
    environment.
    """

    def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("GENICAM_GENTL64_PATH", raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["sci-stream", "cameras", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capfd.readouterr()
        return subprocess.CompletedProcess(
            sys.argv, int(ended.value.code or 0), printed.out, printed.err
        )

    return run


@pytest.fixture
def log_as_it_was() -> Iterator[None]:
    """Restore the logging configuration after a command in this process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_list_uses_the_environment(cameras: Cameras, producer: Path) -> None:
    done = cameras("list", GENICAM_GENTL64_PATH=str(producer.parent))
    assert done.returncode == 0, done.stderr
    for words in ("VikyTL_DEV_red", "VikyTL_DEV_blue", "free"):
        assert words in done.stdout
    assert re.search("[34] cameras", done.stdout), (
        "three, and perhaps the fake GigE camera of another test"
    )


def test_cameras_json_has_producers_interfaces_and_cameras(
    cameras: Cameras, producer: Path
) -> None:
    done = cameras("list", "--json", "--cti", producer)
    found = next(each for each in json.loads(done.stdout) if each["driver"] == "harvesters")
    (interface,) = found["producers"][0]["interfaces"]
    assert interface["transport"] == "Custom"
    assert [camera["serial"] for camera in interface["cameras"]] == ["0", "1", "2"]


def test_cameras_without_producer_says_where_to_set_one(cameras: Cameras) -> None:
    pytest.importorskip("genicam", reason="genicam is not installed: pip install '.[genicam]'")
    done = cameras("list", COLUMNS="400")
    assert done.returncode == 0, done.stderr
    for words in ('driver = "simulated"', 'driver = "replay"'):
        assert words in done.stdout
    listed = {
        each["driver"]: each["producers"] for each in json.loads(cameras("list", "--json").stdout)
    }
    (missing,) = listed["harvesters"]
    assert "No GenTL producer is known" in missing["problem"]
    assert "GENICAM_GENTL64_PATH" in missing["problem"]
    required = cameras("list", "--driver", "harvesters")
    assert required.returncode == 2
    assert "error: No GenTL producer is known" in required.stderr


def test_broken_producer_is_listed_with_the_others(
    cameras: Cameras, producer: Path, tmp_path: Path
) -> None:
    (tmp_path / "broken.cti").write_text("no library")
    done = cameras("list", "--json", "--cti", tmp_path, "--cti", producer)
    assert done.returncode == 0
    found = next(each for each in json.loads(done.stdout) if each["driver"] == "harvesters")
    broken, good = found["producers"]
    assert "cannot be loaded" in broken["problem"]
    assert good["interfaces"]


def test_features_are_shown(cameras: Cameras, producer: Path) -> None:
    done = cameras("features", "1", "--cti", producer)
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if " AcquisitionFrameRate " in line)
    for words in ("float", "RW", "20.0", "1 … 200", "Hz"):
        assert words in line


def test_grab_writes_frames_and_reports_timing(
    cameras: Cameras, producer: Path, tmp_path: Path
) -> None:
    (tmp_path / "rig.toml").write_text(RIG.format(producer=producer))
    done = cameras("grab", "--rig", "rig.toml", "-n", "20", "--out", "frames", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["frames"] == report["counters"]["delivered"] == 20
    assert report["host"]["median_s"] > 0
    written = sorted((tmp_path / "frames").glob("*.tiff"))
    assert len(written) == 20
    assert cv2.imread(str(written[0]), cv2.IMREAD_UNCHANGED).shape == (120, 160)
    header, *rows = (tmp_path / "frames" / "frames.csv").read_text().splitlines()
    assert header.endswith("host_time_ns,NrBounces")
    assert all(row.rsplit(",", 1)[1].isdigit() for row in rows), "each frame has its chunk data"


def test_grab_uses_the_camera_of_a_rig(cameras: Cameras, tmp_path: Path) -> None:
    (tmp_path / "rig.toml").write_text(
        "[camera.options]\nwidth_px = 32\nheight_px = 32\nsnapshots = 3\n"
    )
    done = cameras("grab", "--rig", "rig.toml", "-n", "5")
    assert done.returncode == 0, done.stderr
    assert "0 in 0 gaps" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["grab"], 2, "No camera selected"),
        (["grab", "--rig", "rig.toml", "--cti", "PRODUCER"], 2, "No camera selected"),
        (["features", "--rig", "rig.toml", "--driver", "simulated"], 2, "or --rig alone"),
        (["grab", "9", "--cti", "PRODUCER"], 3, "There is no camera '9'. Found:"),
        (
            ["grab", "1", "--cti", "PRODUCER"],
            3,
            "RGBa8, which is not supported; expected one of Mono8",
        ),
        (["grab", "1", "--cti", "none.cti"], 2, "There is no GenTL producer none.cti"),
        (["list", "--driver", "simulated"], 2, "The driver simulated cannot look for cameras"),
        (["list", "--driver", "harvester"], 2, "Did you mean harvesters?"),
    ],
)
def test_invalid_request_is_one_error(
    log_as_it_was: None, producer: Path, arguments: list[str], status: int, words: str
) -> None:
    given = [str(producer) if each == "PRODUCER" else each for each in arguments]
    with pytest.raises(SciStreamError) as caught:
        app(["cameras", *given], standalone_mode=False)
    assert caught.value.exit_status == status
    assert words in str(caught.value)
