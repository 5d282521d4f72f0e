"""Compile the producer with one call of a C++ compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from sci_stream.errors import EnvironmentFault, StorageError

NAME = "sci_camera.cti"
SANITIZED_NAME = "sci_camera_sanitized.cti"
_INSTALLED = Path(__file__).parent / "producer"
SOURCES = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).parents[2] / "gentl_sim"
"""The C++ sources: beside this module in an installed wheel, `drivers/gentl_sim` in a checkout."""
FOLDER = Path("build") / "gentl"
"""Where `make gentl` builds, from the project's folder."""

_FLAGS = ("-std=c++17", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden", "-pthread")
_RELEASE = ("-O3",)
_SANITIZE = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined")
# The library stays mapped once loaded: a thread that a consumer has not stopped must not find its code gone.
_LINK = ("-shared", "-pthread", "-Wl,-z,nodelete", "-Wl,--no-undefined", "-ldl")


def find_compiler() -> str | None:
    """Return the C++ compiler that CXX names, or the system's, or None if there is none."""
    wanted = os.environ.get("CXX")
    return shutil.which(wanted) if wanted else next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), None)


def build(folder: Path = FOLDER, *, sanitize: bool = False) -> Path:
    """Build the producer, unless it is there and newer than its sources.

    Parameters
    ----------
    folder
        Where the .cti goes; made if it is missing.
    sanitize
        With AddressSanitizer and UndefinedBehaviorSanitizer, whose runtime the consuming process must preload.

    Returns
    -------
    The path of the .cti, absolute.

    Raises
    ------
    EnvironmentFault
        If there is no compiler, or it fails.
    StorageError
        If the folder cannot be made or written.
    """
    target = folder.absolute() / (SANITIZED_NAME if sanitize else NAME)
    files = sorted((*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h")))
    if target.exists() and target.stat().st_mtime >= max(file.stat().st_mtime for file in (*files, Path(__file__))):
        return target
    compiler = find_compiler()
    if compiler is None:
        raise EnvironmentFault(
            "The simulated GenTL camera cannot be built",
            expected=f"a C++17 compiler: {os.environ.get('CXX') or 'g++ or clang++'}",
            got="none on the PATH",
            hint="Install one (Debian: apt install g++), or name one in CXX.",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as scratch:
            built = Path(scratch) / target.name
            _compile(compiler, built, sanitize)
            built.replace(target)  # whole or not at all: a consumer may be loading it
    except OSError as error:
        raise StorageError(f"The folder {folder} cannot be written", got=error) from error
    return target


def _compile(compiler: str, target: Path, sanitize: bool) -> None:
    """Compile all sources as one unit: less than half the time, since each would read the same headers again."""
    unit = "".join(f'#include "{source}"\n' for source in sorted(SOURCES.glob("*.cpp")))
    command = [compiler, *_FLAGS, *(_SANITIZE if sanitize else _RELEASE), "-x", "c++", "-", *_LINK, "-o", str(target)]
    done = subprocess.run(command, input=unit, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EnvironmentFault(
            f"The compiler failed (status {done.returncode}):\n{' '.join(command)}\n{done.stderr.strip()}\n",
            hint="This producer needs Linux and a compiler of C++17.",
        )
