"""Conventions of the source that no linter checks: unique class names, small folders, few untyped
dictionaries.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("sci_stream", "drivers/sci_stream_drivers")
TESTS = ("tests", "lab/tests", "drivers/gentl_sim/tests", "bridges/tests")
MAX_MODULES = 15
# Tables of a rig file hold values of any type, as do summaries.
MAX_UNTYPED = 50
MAX_NAME = 60


def _modules() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


def test_class_names_are_unique() -> None:
    places = defaultdict(list)
    for path in _modules():
        for name in re.findall(r"^ *class (\w+)[:(\[]", path.read_text(), re.MULTILINE):
            places[name].append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_folders_hold_at_most_fifteen_modules(package: str) -> None:
    modules: dict[Path, int] = defaultdict(int)
    for path in (ROOT / package).rglob("*.py"):
        modules[path.parent.relative_to(ROOT)] += path.name != "__init__.py"
    assert {str(folder): count for folder, count in modules.items() if count > MAX_MODULES} == {}


def test_texts_use_no_clause_as_a_noun() -> None:
    """Name the thing: "the residual", not "what is left". Questions are allowed."""
    clause = re.compile(r"\bwhat (?:is|are|the|it)\b(?! (?:not )?None)[^.?!|]*\??", re.IGNORECASE)
    places = []
    for folder in (
        "sci_stream",
        "drivers",
        "lab",
        "bridges",
        "testing",
        "tests",
        "docs",
        "deploy",
        "examples",
        ".",
    ):
        for path in sorted((ROOT / folder).glob("*" if folder == "." else "**/*")):
            if path.suffix in {".py", ".md", ".toml"} and path != Path(__file__):
                text = path.read_text()
                for found in clause.finditer(text):
                    if not found[0].endswith("?"):
                        line = text.count("\n", 0, found.start()) + 1
                        places.append(f"{path.relative_to(ROOT)}:{line}: {found[0][:60]!r}")
    assert not places, "\n".join(places)


def test_few_annotations_are_dictionaries_of_anything() -> None:
    """State has a type; dictionaries of anything stand at the edges alone, and have no alias."""
    pattern = re.compile(r"(?:dict|Mapping)\[str, (?:Any|object)\]")
    assert sum(len(pattern.findall(path.read_text())) for path in _modules()) <= MAX_UNTYPED


def test_documentation_includes_examples_that_exist() -> None:
    """A formatter of Markdown that takes the line for Python would break it: ``--8 < --``."""
    lines = [
        line
        for page in (ROOT / "docs").rglob("*.md")
        for line in page.read_text().splitlines()
        if "--8" in line
    ]
    included = [re.fullmatch(r'--8<-- "(examples/\w+\.py)"', line) for line in lines]
    assert lines
    assert [line for line, found in zip(lines, included, strict=True) if found is None] == []
    assert all((ROOT / found[1]).is_file() for found in included if found)


def test_test_names_have_at_most_sixty_characters() -> None:
    """A name is the first line of a failure: ``test_<unit>_<condition>_<result>``."""
    names = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
    paths = (path for folder in TESTS for path in (ROOT / folder).rglob("*.py"))
    found = [name for path in paths for name in names.findall(path.read_text())]
    assert [name for name in found if len(name) > MAX_NAME] == []
