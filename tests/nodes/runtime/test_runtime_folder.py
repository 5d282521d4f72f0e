"""Folders of runs: which runs live."""

from __future__ import annotations

from sci_stream.nodes.runtime.runtime_folder import RunFolder, running_rigs


def test_running_rigs_are_those_whose_process_lives() -> None:
    with RunFolder.in_memory() as run:
        rig = run.path / "rig.toml"
        assert rig not in running_rigs(), "its rig file is not there yet"
        rig.touch()
        assert rig in running_rigs()
    assert rig not in running_rigs()
