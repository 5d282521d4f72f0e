"""Hostile files: the laboratory's readers refuse them in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.files.test_hostile_files import assert_refused_in_words, read_all


@pytest.mark.timeout(600)
def test_hostile_files_of_the_laboratory_are_refused_in_words(tmp_path: Path) -> None:
    reports = read_all(tmp_path, 1, 8, 500, "lab.tests.training.hostile_files")
    assert len(reports) > 25
    assert_refused_in_words(reports)
    trainings = [
        report
        for report in reports
        if report["name"].startswith(("training with", "pipe", "folder"))
    ]
    assert {report["outcome"] for report in trainings} == {"refused"}
