"""The scripts, texts and elements of the page fit each other, and its size has a bound."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

from sci_stream.quantities import page_texts
from sci_stream.reports import CalibrationHealth, SolveReport
from sci_stream.web import app

STATIC = Path(app.__file__).parent / "static"
PAGE = (STATIC / "index.html").read_text()
SCRIPTS = {path.name: path.read_text() for path in STATIC.glob("*.js")}
# The page as it is sent, with the film that a demo plays until it has a picture.
MAX_BYTES = 135_000


def test_page_has_every_element_that_a_script_uses() -> None:
    used = {
        name
        for script, text in SCRIPTS.items()
        if script != "calibration.js"
        for name in re.findall(r"\b(?:el|put|tag|showRows)\(\"([\w-]+)\"", text)
    }
    assert len(used) > 100
    assert used <= set(re.findall(r"\bid=\"([\w-]+)\"", PAGE))


def test_page_has_its_words_before_scripts_run() -> None:
    buttons = re.findall(r"<button[^>]*>(.*?)</button>", PAGE, flags=re.DOTALL)
    assert len(buttons) > 30
    assert [text for text in buttons if not re.sub(r"<i[^>]*></i>", "", text).strip()] == []


def test_page_and_its_scripts_stay_small() -> None:
    files = [path for path in STATIC.iterdir() if path.stem not in {"calibration", "token"}]
    assert sum(len(gzip.compress(path.read_bytes())) for path in files) < MAX_BYTES


def test_quantities_on_the_page_are_declared() -> None:
    used = re.findall(r"data-quantity=\"(\w+)\"", PAGE) + re.findall(
        r"(?:shown|title)\(\"(\w+)\"", SCRIPTS["readouts.js"]
    )
    declared = {
        text["key"] for report in (SolveReport, CalibrationHealth) for text in page_texts(report)
    }
    assert len(used) > 3
    assert set(used) <= declared
