"""Bad input is reported once and before the run: its place, the expected and the actual value.

Each case is a rig with one error, the exit status, and words that the message must contain. `check`
and `run` report it alike.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import torch

from sci_stream.config import load_rig
from sci_stream.errors import StorageError
from sci_stream.nodes.launcher.supervisor import Supervisor
from sci_stream.optics.calibration import Calibration
from sci_stream.recording.calibration_file import save_calibration
from tests.conftest import RigMaker
from tests.e2e.conftest import CommandHere
from tests.e2e.kit import Ended, assert_accounted_for, camera_of, sci_stream, write_rig
from tests.rig_in_process import RunningRigSolvedHere

pytestmark = pytest.mark.rig(seconds=40)

Check = Callable[[Path], Ended]

INPUT, WORLD = 2, 3
"""Exit statuses: bad input; something is missing or does not work."""


@dataclass(frozen=True)
class Case:
    """``prepare(folder)`` creates the files and returns the changes to a valid rig.

    `check` covers every case, `run` by default those that it reports before it starts a node.
    """

    name: str
    status: int
    words: tuple[str, ...]
    prepare: Callable[[Path], dict[str, Any]]


def given(**tables: dict[str, Any]) -> Callable[[Path], dict[str, Any]]:
    return lambda _folder: tables


def calibration(shape: tuple[int, int, int]) -> Callable[[Path], dict[str, Any]]:
    def prepare(folder: Path) -> dict[str, Any]:
        phi = np.random.default_rng(0).random(shape, dtype=np.float32)
        dark = np.zeros(shape[1:], np.float32)
        save_calibration(folder / "masks.h5", Calibration(phi=phi, dark=dark, full_scale_dn=500.0))
        return {"calibration": {"file": "masks.h5"}}

    return prepare


def replay(
    name: str, content: Callable[[Path], None] | None = None
) -> Callable[[Path], dict[str, Any]]:
    def prepare(folder: Path) -> dict[str, Any]:
        if content is not None:
            content(folder / name)
        return {"camera": camera_of("replay", path=name)}

    return prepare


def corrupt_mat(path: Path) -> None:
    scipy.io.savemat(path, {"meas": np.ones((8, 8, 2)), "mask": np.ones((8, 8, 2))})
    path.write_bytes(path.read_bytes()[:-300])


def mat_without_masks(path: Path) -> None:
    scipy.io.savemat(path, {"meas": np.ones((8, 8, 2))})


def weights(
    make: Callable[[Path], object] | None, denoiser: str = "ffdnet"
) -> Callable[[Path], dict[str, Any]]:
    def prepare(folder: Path) -> dict[str, Any]:
        if make is not None:
            make(folder / "network.pth")
        return {"reconstruct": {"solver": denoiser, "weights": "network.pth"}}

    return prepare


def foreign_network(path: Path) -> None:
    torch.save({"conv.weight": torch.zeros(8, 3, 3, 3)}, path)


def folder_that_is_a_file(folder: Path) -> dict[str, Any]:
    (folder / "recordings").write_text("not a folder")
    return {}


IN_RIG_FILE = [
    Case(
        "a key that does not exist",
        INPUT,
        ("policy", "mod", "did you mean", "mode"),
        given(policy={"mod": "live"}),
    ),
    Case("a table that does not exist", INPUT, ("recrod", "record"), given(recrod={"raw": True})),
    Case(
        "a number in quotes",
        INPUT,
        ("[network] heartbeat_s", "number", "fast"),
        given(network={"heartbeat_s": "fast"}),
    ),
    Case(
        "a number out of range",
        INPUT,
        ("[reconstruct] credit", "0"),
        given(reconstruct={"credit": 0}),
    ),
    Case(
        "two nodes at one address",
        INPUT,
        ("network.results", "same address"),
        given(network={"dispatch": "tcp://127.0.0.1:12345", "results": "tcp://127.0.0.1:12345"}),
    ),
    Case(
        "a camera driver that is not installed",
        INPUT,
        ("driver", "simulatd", "did you mean", "simulated"),
        given(camera={"driver": "simulatd"}),
    ),
    Case(
        "an option that the camera does not know",
        INPUT,
        ("[camera.options]", "widht_px", "width_px"),
        given(camera={"options": {"widht_px": 64}}),
    ),
    Case(
        "a Bayer sensor of odd width",
        INPUT,
        ("[camera.options]", "even", "63"),
        given(camera={"options": {"width_px": 63}}),
    ),
]
"""Reported before any node starts."""

OF_A_NODE = [
    Case(
        "a scene that is not there",
        INPUT,
        ("./nothing.mp4",),
        given(camera={"options": {"scene": "./nothing.mp4"}}),
    ),
    Case(
        "a calibration that is not there",
        INPUT,
        ("masks.h5",),
        given(calibration={"file": "masks.h5"}),
    ),
    Case(
        "a calibration of another size",
        INPUT,
        ("masks.h5", "64×64", "32×32"),
        calibration((4, 32, 32)),
    ),
    Case(
        "a calibration of another B",
        INPUT,
        ("masks.h5", "B = 4", "B = 6"),
        calibration((6, 64, 64)),
    ),
    Case("a measurement that is not there", INPUT, ("gone.mat",), replay("gone.mat")),
    Case("a measurement that was cut short", INPUT, ("torn.mat",), replay("torn.mat", corrupt_mat)),
    Case(
        "a measurement without masks",
        INPUT,
        ("bare.mat", "mask"),
        replay("bare.mat", mat_without_masks),
    ),
    Case(
        "a measurement that is text",
        INPUT,
        ("text.mat",),
        replay("text.mat", lambda path: path.write_text("x" * 500)),
    ),
    Case(
        "a denoiser that does not exist",
        INPUT,
        ("tvv", "ffdnet"),
        given(reconstruct={"solver": "tvv"}),
    ),
    Case(
        "weights for what takes none",
        INPUT,
        ("network.pth", "takes no weights"),
        weights(foreign_network, "tv"),
    ),
    Case("weights that are not there", INPUT, ("network.pth",), weights(None)),
    Case(
        "weights that are text",
        INPUT,
        ("network.pth",),
        weights(lambda path: path.write_text("weights")),
    ),
    Case("weights of another network", INPUT, ("network.pth",), weights(foreign_network)),
    Case(
        "a folder for recordings that is a file",
        WORLD,
        ("[record] folder", "recordings"),
        folder_that_is_a_file,
    ),
    Case(
        "a folder for recordings that cannot be created",
        WORLD,
        ("[record] folder", "/proc/recordings"),
        given(record={"folder": "/proc/recordings"}),
    ),
    Case(
        "a disk without room",
        WORLD,
        ("recordings", "free"),
        given(record={"min_free_mib": 10**9}),
    ),
]

if not torch.cuda.is_available():
    OF_A_NODE.append(
        Case("a GPU that is not there", WORLD, ("cuda",), given(reconstruct={"devices": ["cuda"]}))
    )


@pytest.fixture
def check(command_here: CommandHere) -> Check:
    """Return ``sci-stream check``."""
    return lambda path: command_here("check", path, cwd=path.parent)


def assert_said_well(output: str, words: tuple[str, ...]) -> None:
    """Assert that the output reports the error once, with every word and no traceback.

    A report is a line, with the indented lines below it.
    """
    assert "Traceback" not in output, output
    reports = re.sub(r"\n {8,}", " ", output).splitlines()
    telling = [
        report for report in reports if all(word.lower() in report.lower() for word in words)
    ]
    assert telling, f"no report says {words}:\n{output}"
    assert len(telling) == 1, f"reported more than once:\n{output}"


@pytest.mark.parametrize("case", IN_RIG_FILE, ids=lambda case: case.name)
def test_run_with_error_in_rig_file_starts_no_node(
    tmp_path: Path, command_here: CommandHere, monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    monkeypatch.setattr(Supervisor, "run", lambda _: pytest.fail("nodes are started"))
    path = write_rig(tmp_path, case.prepare(tmp_path))
    ended = command_here("run", path, "--snapshots", "3", cwd=tmp_path)
    assert_said_well(ended.output, case.words)
    assert ended.status == case.status, ended.output


@pytest.mark.slow  # `tests/nodes/launcher/test_supervisor.py` has nodes that fail
@pytest.mark.parametrize("case", OF_A_NODE, ids=lambda case: case.name)
def test_run_with_bad_input_of_a_node_reports_and_exits(tmp_path: Path, case: Case) -> None:
    path = write_rig(tmp_path, case.prepare(tmp_path))
    ended = sci_stream("run", path, "--snapshots", "3", cwd=tmp_path)
    assert_said_well(ended.output, case.words)
    assert ended.status == case.status, ended.output


@pytest.mark.parametrize("case", [*IN_RIG_FILE, *OF_A_NODE], ids=lambda case: case.name)
def test_check_reports_bad_input(tmp_path: Path, check: Check, case: Case) -> None:
    path = write_rig(tmp_path, case.prepare(tmp_path))
    ended = check(path)
    assert_said_well(ended.output, case.words)
    assert ended.status == case.status, ended.output


@contextmanager
def taken(port: int) -> Iterator[None]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        yield


def rig_with_a_port_taken(folder: Path, name: str) -> tuple[Path, int]:
    path = write_rig(folder, {"preview": {"enabled": True}})
    rig = load_rig(path, overrides={})
    port = rig.preview.port if name == "preview" else getattr(rig.network, name).rpartition(":")[2]
    return path, int(port)


@pytest.mark.parametrize("name", ["dispatch", "results", "taps", "preview"])
def test_check_names_port_in_use(tmp_path: Path, check: Check, name: str) -> None:
    path, port = rig_with_a_port_taken(tmp_path, name)
    with taken(port):
        ended = check(path)
    assert_said_well(ended.output, (str(port), "in use", name))
    assert ended.status == WORLD, ended.output


@pytest.mark.parametrize(
    "name",
    [
        "dispatch",
        pytest.param("results", marks=pytest.mark.slow),
        pytest.param("taps", marks=pytest.mark.slow),
        pytest.param("preview", marks=pytest.mark.slow),
    ],
)
def test_run_names_port_in_use_and_exits(tmp_path: Path, name: str) -> None:
    path, port = rig_with_a_port_taken(tmp_path, name)
    with taken(port):
        ended = sci_stream("run", path, cwd=tmp_path)
    assert_said_well(ended.output, (str(port), "in use", name))
    assert ended.status == WORLD, ended.output
    assert list(tmp_path.glob("recordings/*.h5")) == [], "it is reported before the run"


def test_check_of_valid_rig_passes(tmp_path: Path, check: Check) -> None:
    # A camera as fast as it is read: a busy machine keeps up with it.
    free = {"camera": {"options": {"snapshot_rate_hz": 0.0}}, "preview": {"enabled": True}}
    ended = check(write_rig(tmp_path, free))
    assert ended.status == 0, ended.output
    lines = ended.output.splitlines()
    assert len(lines) == 11
    assert all(line.startswith("ok ") for line in lines), ended.output


@pytest.mark.parametrize("command", ["run", "acquire", "reconstruct", "sink"])
def test_missing_rig_file_is_named(tmp_path: Path, command_here: CommandHere, command: str) -> None:
    ended = command_here(command, "rgi.toml", cwd=tmp_path)
    assert_said_well(ended.output, ("rgi.toml", "config init"))
    assert ended.status == INPUT


def test_invalid_toml_is_reported_with_line(tmp_path: Path, check: Check) -> None:
    (tmp_path / "rig.toml").write_text('[rig]\nname = "a"\n[camera\n')
    ended = check(tmp_path / "rig.toml")
    assert_said_well(ended.output, ("rig.toml", "TOML", "line 3"))
    assert ended.status == INPUT


def test_invalid_environment_override_is_named(
    tmp_path: Path, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCI_STREAM_RIG__POLICY__MODE", "recrod")
    ended = check(write_rig(tmp_path))
    assert_said_well(ended.output, ("SCI_STREAM_RIG__POLICY__MODE", "recrod", "record"))
    assert ended.status == INPUT


def test_unwritable_summary_fails_before_run(tmp_path: Path, command_here: CommandHere) -> None:
    ended = command_here("run", write_rig(tmp_path), "--summary", "nowhere/out.json", cwd=tmp_path)
    assert_said_well(ended.output, ("nowhere/out.json",))
    assert ended.status == INPUT


@pytest.mark.parametrize("policy", [pytest.param("live", marks=pytest.mark.slow), "record"])
def test_full_disk_during_run_keeps_recorded_data(tmp_path: Path, policy: str) -> None:
    # A limit on file size simulates a full disk: writes beyond it fail in the same way.
    changes = {"policy": {"mode": policy}}
    with RunningRigSolvedHere(
        tmp_path, changes, "--snapshots", "40", limit_file_bytes=3 << 19
    ) as rig:
        status = rig.wait()
        assert "Traceback" not in rig.output, rig.output
        summary = rig.summary()
        ledger = assert_accounted_for(summary)
        assert ledger["acquired"] == 40
        assert ledger["reconstructed"] >= 5
        # A snapshot that arrives before the next segment begins is lost. On a busy machine none does.
        assert set(ledger["dropped"]) <= {"not_recorded"}
        assert bool(summary["recording"]["incomplete"]) == bool(ledger["dropped"])
        assert summary["recording"]["unreadable"] == ""
        assert status == (WORLD if ledger["dropped"] else 0)
        with rig.recordings() as recordings:
            seqs = [seq for recording in recordings for seq in recording.video_seqs]
            assert len(set(seqs)) == len(seqs) == ledger["reconstructed"]
            for recording in recordings:
                assert all(recording.video(seq).any() for seq in recording.video_seqs)


def test_summary_that_becomes_unwritable_fails_the_sink(
    tmp_path: Path, rig_in_process: RigMaker
) -> None:
    rig = rig_in_process()
    rig.reconstruct()
    (tmp_path / "summary.json").unlink()  # written when the series began
    (tmp_path / "summary.json").mkdir()
    rig.nodes["acquire"].stop()
    with pytest.raises(StorageError, match=r"summary\.json cannot be written"):
        rig.nodes["sink"].stop()
    with rig.recordings() as (recording,):
        assert recording.clean
        assert recording.video_seqs
