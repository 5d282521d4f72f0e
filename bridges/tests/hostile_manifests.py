"""Hostile manifests of a batch: ``python -m bridges.tests.hostile_manifests FOLDER SEED
MUTATIONS``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from sci_stream_bridges.batch_jobs import read_manifest
from tests.hostile_files.__main__ import main
from tests.hostile_files.readers import Reader, make_recording


def make_manifest(path: Path) -> None:
    """Write a list of recordings."""
    make_recording(path.with_name("listed.h5"))
    path.write_text("# recordings\nlisted.h5\nlisted*.h5\n", encoding="utf-8")


READERS = {"manifest": Reader(".txt", make_manifest, read_manifest)}


def crafted(folder: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield manifests of impossible paths, of none, and of no text."""
    for number, text in enumerate((b"\0\n", b"~unknown-user-name/x\n", b"#\n", b"\xff\xfe")):
        path = folder / f"text-{number}.txt"
        path.write_bytes(text)
        yield f"text {number} as manifest", path, "manifest"


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), READERS, crafted)
