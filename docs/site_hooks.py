"""Hooks of the documentation site.

Pages are written for a reader of the repository, with relative links such as
``../lab/research/noise.md`` or ``../CONTRIBUTING.md``. On the site, the root of the repository and
``docs/`` are one folder. Linked files outside ``docs/`` are added to the site, and links are
rewritten to match.
"""

from __future__ import annotations

import posixpath
import re
from collections import deque
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s#]+)([^)]*\))")
FENCE = re.compile(r"(^ *```.*?^ *```)", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace folders in the navigation by their pages."""
    config.nav = _expanded(config.nav)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add files of the repository that the navigation or a page names."""
    queue = deque(_in_repository(file.src_uri) for file in files.documentation_pages())
    queue.extend(_in_repository(page) for page in _pages(config.nav))
    seen = set()
    while queue:
        path = queue.popleft()
        if path in seen or not (ROOT / path).is_file():
            continue
        seen.add(path)
        if not path.startswith("docs/"):
            files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
        if path.endswith(".md"):
            queue.extend(_linked(path))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - called so
    """Rewrite links from the layout of the repository to the layout of the site."""
    here = page.file.src_uri
    source = _in_repository(here)

    def rewrite(link: re.Match[str]) -> str:
        before, target, after = link.groups()
        if ":" in target:
            return link[0]
        path = _resolve(source, target)
        if not (ROOT / path).is_file():  # a folder without a page: its name alone
            return before[1:-2]
        folder = posixpath.dirname(here) or "."
        return f"{before}{posixpath.relpath(path.removeprefix('docs/'), folder)}{after}"

    parts = FENCE.split(markdown)
    return "".join(
        LINK.sub(rewrite, part) if index % 2 == 0 else part for index, part in enumerate(parts)
    )


def _expanded(entry: Any) -> Any:
    """Return a navigation entry with folders ("lab/research/") replaced by lists of their pages."""
    if isinstance(entry, list):
        return [_expanded(item) for item in entry]
    if isinstance(entry, dict):
        return {title: _expanded(item) for title, item in entry.items()}
    if isinstance(entry, str) and entry.endswith("/"):
        folder = ROOT / "docs" / entry if (ROOT / "docs" / entry).is_dir() else ROOT / entry
        names = sorted(
            (path.name for path in folder.glob("*.md")),
            key=lambda name: (name != "README.md", name),
        )
        return [entry + name for name in names]
    return entry


def _pages(entry: Any) -> list[str]:
    """Return the pages that a navigation entry names."""
    if isinstance(entry, str):
        return [entry]
    items = entry.values() if isinstance(entry, dict) else entry
    return [page for item in items for page in _pages(item)]


def _in_repository(page: str) -> str:
    """Return the path in the repository of a file of the site."""
    return f"docs/{page}" if (ROOT / "docs" / page).is_file() else page


def _resolve(source: str, target: str) -> str:
    """Return the path in the repository of a link's target; of a folder, the path of its page."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    return f"{path}/README.md" if (ROOT / path).is_dir() else path


def _linked(source: str) -> list[str]:
    """Return the paths in the repository of the files that a page links to."""
    text = "".join(FENCE.split((ROOT / source).read_text())[::2])
    return [_resolve(source, link[2]) for link in LINK.finditer(text) if ":" not in link[2]]
