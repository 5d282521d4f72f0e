"""Hostile files: no reader crashes, hangs, grows, or shows what another file holds; each says why
it refuses.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kit import ROOT, environment

pytestmark = pytest.mark.rig(seconds=30)

_MAX_GROWTH_MIB = 100


def read_all(
    folder: Path, seed: int, mutations: int, timeout_s: float, corpus: str = "tests.hostile_files"
) -> list[dict[str, Any]]:
    """Let every reader read its hostile files in a process of its own; return what came of each."""
    done = subprocess.run(
        [sys.executable, "-m", corpus, str(folder), str(seed), str(mutations)],
        cwd=ROOT,
        env={
            **environment(),
            "PYTHONPATH": f"{ROOT}:{ROOT / 'drivers'}:{ROOT / 'lab'}:{ROOT / 'bridges'}",
        },
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"ended in: {reports[-1:]}\n{done.stderr[-3000:]}"
    return [report for report in reports if report["outcome"] != "begun"]


@pytest.mark.parametrize(
    ("seed", "mutations"),
    [(1, 24), *(pytest.param(seed, 500, marks=pytest.mark.slow) for seed in (2, 3))],
)
@pytest.mark.timeout(1800)
def test_hostile_files_are_refused_in_words(tmp_path: Path, seed: int, mutations: int) -> None:
    reports = read_all(tmp_path, seed, mutations, 1700)
    assert len(reports) > mutations + 140
    assert_refused_in_words(reports)
    for report in reports:
        made = (
            ".jpg",
            ".bmp",
            "external link",
            "virtual dataset",
            "bomb",
            "pipe",
            "/dev/zero",
            "folder",
        )
        is_put_aside = report["name"].endswith(("saved ledger", "spool", "spooled snapshot"))
        if report["name"].startswith(made) and not is_put_aside:
            assert report["outcome"] == "refused", report


def assert_refused_in_words(reports: list[dict[str, Any]]) -> None:
    """Assert that no reader crashed, leaked or grew, and that each refusal has its reason."""
    crashed = [report for report in reports if report["outcome"] == "crashed"]
    assert not crashed, json.dumps(crashed[:3], indent=1)
    assert not [report["name"] for report in reports if report["leaked"]]
    assert not [report for report in reports if report["grew_mib"] > _MAX_GROWTH_MIB]
    refused = {
        report["name"]: report["said"] for report in reports if report["outcome"] == "refused"
    }
    assert all(refused.values())
