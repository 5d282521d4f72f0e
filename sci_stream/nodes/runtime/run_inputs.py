"""The inputs of a run, copied and hashed when it begins: a restarted node takes the same."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sci_stream.config import Rig, load_rig
from sci_stream.devices import analyses
from sci_stream.nodes.runtime.runtime_folder import RIG_COPY
from sci_stream.recon.denoisers.plugin_code import (
    DENOISERS,
    MAX_BYTES,
    code_of,
    files_of,
    sha256,
    size_of,
    source_of,
    use_copies,
)

log = logging.getLogger(__name__)

FROZEN_VARIABLE = "SCI_STREAM_FROZEN"
"""Folder with copies of the rig file and the other inputs as they were when the run began."""
_LIST = "inputs.json"
_FILES = "inputs"
_PACKAGES = "packages"
_HASH_DIGITS = 16
_MAX_NAME = 64


class _Copy(NamedTuple):
    source: Path
    copy: Path
    sha256: str


def freeze(rig: Rig, path: Path, folder: Path) -> None:
    """Copy a rig file, its calibration, patterns and weights, and the code of its denoisers and
    analyses.

    Raises OSError if they cannot be copied.
    """
    shutil.copyfile(path, folder / RIG_COPY)
    packages = _packages(rig)
    copies = []
    for number, source in enumerate(_inputs(rig)):
        if not source.exists():  # the node reports one that is missing
            continue
        if size_of(source) > MAX_BYTES:
            log.warning("%s is large and not copied: do not change it during the run", source)
            continue
        # By its name: messages show it, and Python finds packages by it.
        place = _PACKAGES if source in packages else f"{_FILES}/{number}"
        copy = folder / place / source.name
        for file in files_of(source):
            target = copy / file.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
        copies.append([str(source), str(copy), sha256(copy)])
    (folder / _LIST).write_text(json.dumps(copies), "utf-8")


def load_rig_of_run(path: Path) -> Rig:
    """Return a node's rig as it was when its run began, where there is a supervisor; its other
    inputs are read from their copies, and those that have changed since are named.

    Raises `ConfigError` if the rig file is wrong.
    """
    folder = Path(os.environ[FROZEN_VARIABLE]) if FROZEN_VARIABLE in os.environ else None
    if folder is None or not (folder / RIG_COPY).is_file():
        return load_rig(path)
    rig = load_rig(path, text_from=folder / RIG_COPY)
    entries = json.loads((folder / _LIST).read_text("utf-8"))
    copies = [_Copy(Path(source), Path(copy), digest) for source, copy, digest in entries]
    for source, _, digest in copies:
        if sha256(source) != digest:
            log.warning(
                "%s has changed since the run began: the run goes on with its copy from then; "
                "start another run to use the change",
                source,
            )
    use_copies({source: copy for source, copy, _ in copies})
    if (folder / _PACKAGES).is_dir():
        sys.path.insert(0, str(folder / _PACKAGES))
    return rig


def input_versions(rig: Rig) -> dict[str, str]:
    """Return the hashes of patterns and code of a rig by file name, for the record of a series."""
    patterns = rig.modulator.patterns
    sources = [*_code(rig), *([] if patterns is None else [patterns])]
    return {
        source.name[:_MAX_NAME]: f"sha256 {sha256(source_of(source))[:_HASH_DIGITS]}"
        for source in sources
        if source.exists()
    }


def _inputs(rig: Rig) -> Iterator[Path]:
    for source in (rig.calibration.file, rig.modulator.patterns, rig.reconstruct.weights):
        if source is not None:
            yield source
    yield from _code(rig)


def _code(rig: Rig) -> list[Path]:
    solver = code_of(rig.reconstruct.solver, DENOISERS)
    found = [solver, *(code_of(name, analyses.GROUP) for name in rig.reconstruct.analyses)]
    return list(dict.fromkeys(code for code in found if code is not None))


def _packages(rig: Rig) -> list[Path]:
    """Return the code that Python imports: modules and packages, not files by their path."""
    place = rig.reconstruct.solver.rpartition(":")[0] or rig.reconstruct.solver
    return [code for code in _code(rig) if code != Path(place)]
