"""``sci-stream check`` compares the masks of the calibration with snapshots of the camera."""

from __future__ import annotations

import io
import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

from sci_stream.config import load_rig
from sci_stream.devices.camera_drivers import make_camera
from sci_stream.errors import ConfigError
from sci_stream.optics.calibration import Calibration
from sci_stream.recon.denoisers.registry import DENOISERS
from sci_stream.recording.calibration_file import save_calibration
from sci_stream.security.keys import make_key_pair
from sci_stream.tools.preflight import Finding, _Checks, check_rig, junit_report, print_finding

pytestmark = pytest.mark.usefixtures("one_thread")

CAMERA = (
    '[camera.options]\nscene = "fast"\nmask = "random"\nbayer = "none"\nwidth_px = '
    "128\nheight_px = 128\n"
)
SOLVER = '[reconstruct]\ndenoiser = "tv"\niterations = 2\nmin_iterations = 1\ndevices = ["cpu"]\n'


def masks_finding(folder: Path, options: str = "", order: slice | np.ndarray = np.s_[:]) -> Finding:
    """Check a rig whose calibration holds the camera's masks, changed by an index; do not measure
    its speed.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sci_stream.tools.preflight._Checks._check_speed", lambda _: "not measured")
        return findings_of(folder, options, order)["masks"]


def findings_of(
    folder: Path, options: str = "", order: slice | np.ndarray = np.s_[:]
) -> dict[str, Finding]:
    """Return all findings of that check, by component."""
    path = folder / "rig.toml"
    path.write_text(CAMERA + options)
    camera = make_camera(load_rig(path, {}))
    try:
        camera.open()
        own = camera.calibration()
    finally:
        camera.close()
    assert isinstance(own, Calibration)
    save_calibration(folder / "masks.h5", replace(own, phi=np.ascontiguousarray(own.phi[order])))
    path.write_text(CAMERA + options + '[calibration]\nfile = "masks.h5"\n' + SOLVER)
    return {finding.what: finding for finding in check_rig(path)}


def test_check_right_masks_gives_their_match(tmp_path: Path) -> None:
    findings = findings_of(tmp_path, "snapshot_rate_hz = 0.5\n")
    assert findings["masks"].exit_status == 0
    plain = findings["masks"].to_json()
    assert (plain["check"], plain["state"], plain["text"]) == (
        "masks",
        "ok",
        findings["masks"].text,
    )
    assert findings["masks"].text.startswith("match 0.9")
    assert findings["speed"].text.endswith("the camera's 0.5/s: it keeps up")
    assert not findings["speed"].warning
    # 128×128 pixels of two bytes, and eight frames of float16, every two seconds.
    assert findings["recording"].text.endswith("h of 0.147 MB/s if all is reconstructed")


def test_check_slow_machine_warns_how_much_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sci_stream.tools.preflight._WAIT_S", 0.5)
    monkeypatch.setattr(
        "sci_stream.recon.engine.Engine.fault", "operations are not fused: no compiler"
    )
    speed = findings_of(tmp_path, "snapshot_rate_hz = 100000.0\n")["speed"]
    assert speed.warning
    assert "(operations are not fused: no compiler)" in speed.text
    assert "% of the snapshots are dropped" in speed.text
    # Two iterations of TV are the least: only a slower camera fits.
    assert speed.edit["camera.options"]["snapshot_rate_hz"] < 100_000
    assert "fits: ffdnet-lite with 6 iterations at" in speed.text
    assert "; or this solver as it is at " in speed.text


def test_check_measures_no_speed_without_reconstruct_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "SOLVER", "[reconstruct]\nnodes = 0\n[record]\nvideo = false\n")
    findings = findings_of(tmp_path, "snapshot_rate_hz = 20.0\n")
    speed = findings["speed"]
    assert "nodes = 0" in speed.text
    assert not speed.warning
    assert not speed.edit
    # 128×128 pixels of two bytes, 20 times a second.
    assert findings["recording"].text.endswith("h of 0.655 MB/s")


def test_check_coarse_masks_take_the_iterations_of_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Calibration, "fineness", 0.5)
    monkeypatch.setitem(globals(), "SOLVER", '[reconstruct]\ndenoiser = "tv"\ndevices = ["cpu"]\n')
    count = 2 * DENOISERS["tv"].defaults.iterations
    findings = findings_of(tmp_path, "snapshot_rate_hz = 0.5\n")
    assert f"up to {count} iterations" in findings["solver"].text
    assert f"with {count} iterations" in findings["speed"].text


def test_check_names_a_health_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        finding = findings_of(tmp_path, f"[health]\nsink_port = {port}\n")["addresses"]
    assert finding.exit_status == 3
    assert f"health endpoints of sink ([health]) cannot listen on 127.0.0.1:{port}" in finding.text


def test_junit_report_has_a_test_for_each_finding(tmp_path: Path) -> None:
    findings = [
        Finding("camera", "there"),
        Finding("speed", "<slow>", warning=True),
        Finding("disk", "full", exit_status=3),
    ]
    suite = ElementTree.fromstring(junit_report(tmp_path / "rig.toml", findings))
    assert (suite.get("tests"), suite.get("failures")) == ("3", "1")
    assert [case[0].tag for case in suite] == ["system-out", "skipped", "failure"]
    assert suite[1][0].get("message") == "<slow>"


def test_finding_is_printed_one_fact_a_line() -> None:
    console = Console(file=io.StringIO(), width=60)
    print_finding(Finding("speed", "2/s; the camera's 10/s; fits: tv", warning=True), console)
    lines = console.file.getvalue().splitlines()
    assert lines == [
        "warn speed       2/s",
        " " * 17 + "the camera's 10/s",
        " " * 17 + "fits: tv",
    ]


def test_check_other_masks_are_refused(tmp_path: Path) -> None:
    finding = masks_finding(tmp_path, order=np.s_[:, ::-1])
    assert finding.exit_status == 2
    assert "explain nothing" in finding.text


@pytest.mark.parametrize(
    ("modulator", "words"),
    [
        ('driver = "simulated"\npatterns = "none.npy"\n', "There are no patterns"),
        ('driver = "simulated"\n', "The rig does not name its masks"),
        ('driver = "missing"\n', "Unknown modulator driver"),
    ],
)
def test_check_names_the_modulator_and_not_the_camera(
    tmp_path: Path, modulator: str, words: str
) -> None:
    path = tmp_path / "rig.toml"
    path.write_text(f"{CAMERA}[modulator]\n{modulator}{SOLVER}")
    findings = {finding.what: finding for finding in check_rig(path)}
    assert findings["camera"].exit_status == 0
    assert words in findings["modulator"].text
    assert findings["masks"].text.startswith("not compared")


def test_check_camera_without_frames_is_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sci_stream.tools.preflight._WAIT_S", 0.3)
    finding = masks_finding(tmp_path, 'trigger = "software"\n')
    assert (finding.exit_status, finding.warning) == (0, True)
    assert "wait for a trigger" in finding.text


@pytest.mark.parametrize("own", [True, False])
def test_check_key_of_a_node_here_is_that_of_this_machine(tmp_path: Path, own: bool) -> None:
    public, other = make_key_pair(tmp_path / "key"), make_key_pair(tmp_path / "other")
    sink_key = public if own else other
    path = tmp_path / "rig.toml"
    path.write_text(
        f'[security]\nencryption = "on"\nkey = "key"\nacquire_key = "{public}"\nsink_key = '
        f'"{sink_key}"\n'
        '[calibration]\nfile = "missing.h5"\n[preview]\nenabled = false\n'
    )
    finding = next(finding for finding in check_rig(path) if finding.what == "encryption")
    assert finding.exit_status == (0 if own else 2)
    assert own or "sink_key is not the key of this machine" in finding.text


def test_check_refuses_more_numbers_than_a_message_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = SimpleNamespace(units=dict.fromkeys(map(str, range(25)), ""))
    monkeypatch.setattr("sci_stream.tools.preflight.Analyses", lambda _names: figures)
    path = tmp_path / "rig.toml"
    path.write_text(CAMERA + SOLVER)
    with pytest.raises(ConfigError, match="at most 24 names; got 25: 0, 1, 10"):
        _Checks(load_rig(path))._check_solver()
    del figures.units["24"]
    assert "up to 2 iterations" in _Checks(load_rig(path))._check_solver()
    monkeypatch.setattr(
        "sci_stream.tools.preflight.Analyses", Mock(side_effect=ConfigError("not installed"))
    )
    with pytest.raises(ConfigError, match="not installed"):
        _Checks(load_rig(path))._check_solver()
    monkeypatch.setattr(
        "sci_stream.config.Rig.spans_machines", True
    )  # they may be installed on the others only
    assert "up to 2 iterations" in _Checks(load_rig(path))._check_solver()
