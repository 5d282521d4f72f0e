"""The public names: examples and guides need no others, and each other user is listed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import sci_stream
from sci_stream import plugins

ROOT = Path(__file__).parents[1]
PUBLIC = {
    "sci_stream",
    "sci_stream.errors",
    "sci_stream.plugins",
    "sci_stream_drivers.genicam",
    "sci_stream_testing",
}
# Internal modules that the other distributions of this repository import.
INTERNALS = {
    "drivers/sci_stream_drivers": {"file_guard", "files", "optics", "parameters", "recording"},
    "drivers/cameras/sci_stream_cameras": set[str](),
    "drivers/modulators/sci_stream_modulators": {
        "cli",
        "config",
        "devices",
        "nodes",
        "security",
        "transport",
    },
    "drivers/gentl_sim/sci_stream_gentl_sim": {"file_guard", "recording"},
    "bridges/sci_stream_bridges": {
        "cli",
        "file_guard",
        "model",
        "nodes",
        "recording",
        "security",
        "tools",
        "transport",
        "web",
    },
    "testing/sci_stream_testing": {"config", "nodes"},
}
GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def imported(source: str) -> Iterator[tuple[str, str]]:
    """Yield module and name of each import of this project in a program."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sci_stream"):
            yield from ((str(node.module), alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            names = (alias.name for alias in node.names)
            yield from ((name, "") for name in names if name.startswith("sci_stream"))


def programs(page: Path) -> Iterator[str]:
    """Yield the programs in a page, without those that it includes or that are no whole ones."""
    for program in re.findall(r"```(?:python|py)\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
        try:
            ast.parse(program)
        except SyntaxError:
            continue
        yield program


def is_public(module: str, name: str) -> bool:
    if module in {"sci_stream", "sci_stream.plugins"}:
        return not name or name in sys.modules[module].__all__ or f"{module}.{name}" in PUBLIC
    return any(module == known or module.startswith(f"{known}.") for known in PUBLIC)


def test_examples_import_public_names_only() -> None:
    imports = {(path.name, *one) for path in EXAMPLES for one in imported(path.read_text("utf-8"))}
    assert len(imports) > len(EXAMPLES)
    assert [one for one in sorted(imports) if not is_public(*one[1:])] == []


def test_guides_import_public_names_only() -> None:
    imports = {
        (page.name, *one)
        for page in GUIDES
        for program in programs(page)
        for one in imported(program)
    }
    others = [one for one in sorted(imports) if not is_public(*one[1:])]
    assert len(imports) > 5
    assert [one for one in others if not one[1].startswith("sci_stream_bridges")] == []


@pytest.mark.parametrize("package", INTERNALS)
def test_distribution_imports_the_internals_listed_for_it(package: str) -> None:
    imports = {
        module
        for path in (ROOT / package).rglob("*.py")
        for module, _ in imported(path.read_text("utf-8"))
        if module.startswith("sci_stream.") and module not in PUBLIC
    }
    others = {module for module in imports if module.split(".")[1] not in INTERNALS[package]}
    assert others == set(), "import sci_stream.plugins, or add them to INTERNALS"


def test_directory_of_a_public_module_lists_its_public_names() -> None:
    for module in (sci_stream, plugins):
        assert dir(module) == sorted(module.__all__)
        assert all(getattr(module, name) is not None for name in module.__all__)


def test_index_of_the_pages_lists_the_public_modules() -> None:
    table = (ROOT / "docs" / "api" / "index.md").read_text("utf-8")
    assert set(re.findall(r"^\| `([\w.]+)` \|", table, re.MULTILINE)) == PUBLIC


def test_page_of_plugins_names_each_interface() -> None:
    page = (ROOT / "docs" / "api" / "plugins.md").read_text("utf-8")
    ports = [name for name in plugins.__all__ if "sci_stream.ports" in str(getattr(plugins, name))]
    assert [name for name in ports if f"`{name}`" not in page] == []


def test_plugins_of_cameras_load_no_torch() -> None:
    program = "import sys, sci_stream.plugins; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
