"""Mutilated data is reconstructed right, named or refused; right data is never refused."""

from __future__ import annotations

import collections
from pathlib import Path

import cv2
import pytest

from tests.files.mutilations import Outcome, trial

FAULTS = {Outcome.SILENT, Outcome.FALSE_ALARM}
COUNT, MAX_SILENT = 200, 0.05


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("seed", range(12))
def test_mutilated_data_is_right_named_or_refused(seed: int, tmp_path: Path) -> None:
    outcome, text = trial(seed, tmp_path)
    assert outcome not in FAULTS, text


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.usefixtures("one_thread")
def test_of_many_mutilations_few_are_wrong_and_silent(tmp_path: Path, data_dir: Path) -> None:
    clips = []
    for path in sorted(data_dir.glob("video/*.*")):
        film, frames = cv2.VideoCapture(str(path)), []
        while len(frames) < 30 and (read := film.read())[0]:
            frames.append(cv2.cvtColor(read[1], cv2.COLOR_BGR2GRAY) / 255)
        clips.append(frames)
    outcomes = collections.defaultdict(list)
    for seed in range(COUNT):
        folder = tmp_path / str(seed)
        folder.mkdir()
        outcome, text = trial(seed, folder, clips if seed % 2 else ())
        outcomes[outcome].append(text)
    assert not outcomes[Outcome.FALSE_ALARM], "\n".join(outcomes[Outcome.FALSE_ALARM])
    silent = outcomes[Outcome.SILENT]
    assert len(silent) <= MAX_SILENT * COUNT, "\n".join(silent)
