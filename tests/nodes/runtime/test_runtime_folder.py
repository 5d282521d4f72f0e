"""Folders of runs: which runs live."""

from __future__ import annotations

import os
from pathlib import Path

from sci_stream.nodes.runtime.runtime_folder import RunFolder, running_rigs


def test_running_rigs_are_those_whose_process_lives() -> None:
    with RunFolder.in_memory() as run:
        rig = run.path / "rig.toml"
        assert rig not in running_rigs(), "its rig file is not there yet"
        rig.touch()
        assert rig in running_rigs()
    assert rig not in running_rigs()


def test_folder_that_is_deleted_twice_closes_no_other_file(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "runs")
    folder.delete()
    with (tmp_path / "other").open("w") as other:  # it gets the number that is free now
        folder.delete()
        assert os.fstat(other.fileno())
