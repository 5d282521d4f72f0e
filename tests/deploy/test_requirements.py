"""The ranges in pyproject.toml, the versions that are tested, and the versions that are installed
agree.
"""

from __future__ import annotations

import itertools
import re
import tomllib

from packaging.requirements import Requirement
from packaging.version import Version

from tests.e2e.kit import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OTHERS = [
    tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
    for folder in ("bridges", "drivers/cameras", "drivers/modulators")
]
OPTIONAL = {
    name: lines
    for project in (PROJECT, *OTHERS)
    for name, lines in project["optional-dependencies"].items()
}
# These bring an application or a framework each: `make test-bridges` runs with the pinned versions.
UNTESTED = (
    "dev",
    "docs",
    "napari",
    "micromanager",
    "ophyd",
    "deepinv",
    *OTHERS[-1]["optional-dependencies"],
)
EXTRAS = {name: lines for name, lines in OPTIONAL.items() if name not in UNTESTED}
LINES = sorted({*PROJECT["dependencies"], *(line for lines in EXTRAS.values() for line in lines)})
NEEDED = [needed for line in LINES if (needed := Requirement(line)).name != PROJECT["name"]]
ALL = [
    needed
    for line in sorted({*PROJECT["dependencies"], *itertools.chain(*OPTIONAL.values())})
    if (needed := Requirement(line)).name != PROJECT["name"]
]


def pins(name: str) -> dict[str, Version]:
    """Return the versions that a constraints file pins, by package."""
    lines = (
        line.split("#")[0].split("\\")[0].strip() for line in (ROOT / name).read_text().splitlines()
    )
    pairs = (line.split("==") for line in lines if "==" in line)
    return {
        package.strip().lower().replace("_", "-"): Version(version) for package, version in pairs
    }


def test_lowest_tested_versions_are_the_stated_bounds() -> None:
    tested = pins("constraints-lowest.txt")
    assert {needed.name for needed in NEEDED} <= set(tested), (
        "constraints-lowest.txt lacks packages"
    )
    for needed in NEEDED:
        (bound,) = needed.specifier
        assert bound.operator == ">=", str(needed)
    differing = {
        str(needed): str(tested[needed.name])
        for needed in NEEDED
        for bound in needed.specifier
        if not str(tested[needed.name]).startswith(bound.version)
        and tested[needed.name] != Version(bound.version)
    }
    assert differing == {}


def test_installed_versions_are_pinned_and_in_range() -> None:
    pinned = pins("constraints.txt")
    assert {needed.name for needed in ALL} <= set(pinned), "constraints.txt lacks packages"
    outside = {
        str(needed): str(pinned[needed.name])
        for needed in ALL
        if pinned[needed.name] not in needed.specifier
    }
    assert outside == {}


def test_notice_names_every_package() -> None:
    notice = (ROOT / "NOTICE.md").read_text()
    rows = {
        name.strip()
        for row in re.findall(r"^\| ([^|]+) \|", notice, re.MULTILINE)
        for name in row.split(",")
    }
    extras = [lines for name, lines in OPTIONAL.items() if name not in ("dev", "docs")]
    needed = {
        Requirement(line).name for lines in [PROJECT["dependencies"], *extras] for line in lines
    }
    assert needed - {PROJECT["name"]} <= rows


def test_licences_are_declared_with_their_texts() -> None:
    assert PROJECT["license"] == "Apache-2.0 AND CC-BY-SA-4.0"
    files = [path for pattern in PROJECT["license-files"] for path in ROOT.glob(pattern)]
    texts = " ".join(path.read_text() for path in files)
    assert "Apache License" in texts
    assert "Attribution-ShareAlike 4.0 International" in texts
    cards = list((ROOT / "sci_stream" / "recon" / "denoisers" / "weights_data").glob("*.md"))
    found = {
        card.stem: re.search(r"Licence of the weights: (\S+)\.\n", card.read_text())
        for card in cards
    }
    licences = {name: match[1] for name, match in found.items() if match}
    assert licences == dict.fromkeys(("ffdnet", "ffdnet-lite", "unrolled"), "CC-BY-SA-4.0")
