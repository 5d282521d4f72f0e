"""Every text file is read and written as UTF-8, whatever the locale of the machine."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("sci_stream", "drivers", "lab", "bridges", "testing", "examples")
MODULES = sorted(
    path
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.py")
    if "tests" not in path.parts and "research" not in path.parts
)
# Calls of other packages that take no encoding: of images, of videos, of archives.
OTHER_OPEN = {"av", "Image", "archive", "os", "webbrowser", "opener", "zipfile"}


def without_encoding(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of calls that read or write text in the encoding of the locale."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or any(word.arg == "encoding" for word in node.keywords):
            continue
        words = {word.arg: word.value for word in node.keywords}
        match node.func:
            case ast.Attribute(attr="read_text") if not node.args:
                yield node.lineno
            case ast.Attribute(attr="write_text") if len(node.args) < 2:
                yield node.lineno
            case ast.Attribute(attr="open" | "fdopen", value=value):
                is_fdopen = node.func.attr == "fdopen"
                if isinstance(value, ast.Name) and value.id in OTHER_OPEN and not is_fdopen:
                    continue
                modes = [*node.args[is_fdopen:][:1], words.get("mode")]
                if any(isinstance(mode, ast.Constant) and is_text(mode.value) for mode in modes):
                    yield node.lineno
            case ast.Name(id="open"):
                modes = [*node.args[1:2], words.get("mode")]
                if all(mode is None or is_text(getattr(mode, "value", "")) for mode in modes):
                    yield node.lineno
            case ast.Attribute(attr="run" | "Popen" | "check_output") if "text" in words:
                yield node.lineno


def is_text(mode: object) -> bool:
    return isinstance(mode, str) and "b" not in mode and set(mode) <= set("rwax+t")


def test_modules_name_the_encoding_of_their_texts() -> None:
    places = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in MODULES
        for line in without_encoding(ast.parse(path.read_text("utf-8")))
    ]
    assert places == []


@pytest.mark.parametrize(
    "call",
    [
        "path.read_text()",
        "path.write_text(text)",
        'path.open("w", newline="")',
        "open(path)",
        'open(path, mode="a")',
        'os.fdopen(number, "a")',
        "subprocess.run(words, text=True)",
    ],
)
def test_call_without_encoding_is_recognised(call: str) -> None:
    assert list(without_encoding(ast.parse(call))) == [1]
