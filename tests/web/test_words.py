"""Every word of the page is in one file, in every language."""

from __future__ import annotations

import re
from pathlib import Path

from sci_stream.quantities import page_texts
from sci_stream.reports import CalibrationHealth, SolveReport
from sci_stream.web import app

STATIC = Path(app.__file__).parent / "static"


def words(language: str) -> dict[str, str]:
    text = (STATIC / "words.js").read_text()
    block = text[text.index(f"const {language} = {{") :]
    block = block[: block.index("\n};")]
    return {match[1]: match[2] for match in re.finditer(r"(\w+): \"((?:[^\"\\]|\\.)*)\"", block)}


def test_languages_have_the_same_words() -> None:
    english, german = words("en"), words("de")
    assert len(english) > 200
    assert english.keys() == german.keys()
    for key, text in english.items():
        assert set(re.findall(r"\{\w+\}", text)) == set(re.findall(r"\{\w+\}", german[key])), key


def test_every_word_used_is_known() -> None:
    page = (STATIC / "index.html").read_text()
    used = set(re.findall(r"data-(?:t|title|label)=\"(\w+)\"", page))
    for script in STATIC.glob("*.js"):
        used |= set(re.findall(r"\bt\(\"(\w+)\"", script.read_text()))
    assert used <= words("en").keys()


def test_page_has_no_words_of_its_own() -> None:
    page = (STATIC / "index.html").read_text()
    body = re.sub(
        r"<noscript>.*?</noscript>|<title>.*?</title>|<svg.*?</svg>|<!.*?>",
        "",
        page,
        flags=re.DOTALL,
    )
    texts = {text.strip() for text in re.findall(r">([^<>]*)<", body)}
    proper = re.compile(
        r"^(sci_stream|/\S+|REC|p50|p99|ms|\d+ fps|inferno|viridis|turbo|bone|0\.0 EV)$"
    )
    assert [text for text in texts if re.search("[a-zA-Z]", text) and not proper.match(text)] == []


def test_quantities_on_the_page_are_declared() -> None:
    page, readouts = (STATIC / "index.html").read_text(), (STATIC / "readouts.js").read_text()
    used = re.findall(r"data-quantity=\"(\w+)\"", page) + re.findall(
        r"(?:shown|title)\(\"(\w+)\"", readouts
    )
    declared = {
        text["key"] for report in (SolveReport, CalibrationHealth) for text in page_texts(report)
    }
    assert len(used) > 3
    assert set(used) <= declared
