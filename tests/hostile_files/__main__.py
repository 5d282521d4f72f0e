"""Let the readers read the hostile files: ``python -m tests.hostile_files FOLDER SEED MUTATIONS``.

Prints a line of JSON for each file. It runs as a process of its own, so that a reader that crashes,
hangs or grows is seen from outside.
"""

from __future__ import annotations

import faulthandler
import json
import resource
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path

from sci_stream.errors import SciStreamError
from tests.hostile_files.corpus import SECRET, Craft, crafted, hostile_files
from tests.hostile_files.readers import READERS, Reader

_SLOW_S = 20.0


def main(
    folder: Path, seed: int, mutations: int, readers: Mapping[str, Reader], crafted: Craft
) -> None:
    """Read every hostile file and print what came of it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for (
        reader
    ) in readers.values():  # once, so that libraries that the readers load do not count as growth
        warm = folder / f"warm-up{reader.suffix}"
        reader.make(warm)
        reader.read(warm)
        warm.unlink(missing_ok=True)
    for name, path, kind in hostile_files(folder, seed, mutations, readers, crafted):
        before = _peak_mib()
        print(json.dumps({"name": name, "outcome": "begun"}), flush=True)
        faulthandler.dump_traceback_later(_SLOW_S, exit=True)
        began_s = time.monotonic()
        seen, said = b"", ""
        try:
            result = readers[kind].read(path)
            seen = result if isinstance(result, bytes) else b""
            outcome = "read"
        except SciStreamError as error:
            outcome, said = "refused", str(error)
        except Exception as error:
            outcome, said = "crashed", "".join(traceback.format_exception(error)[-6:])
        faulthandler.cancel_dump_traceback_later()
        leaked = SECRET[:40] in seen
        report = {
            "name": name,
            "outcome": outcome,
            "said": said,
            "leaked": leaked,
            "grew_mib": _peak_mib() - before,
        }
        print(json.dumps({**report, "took_s": round(time.monotonic() - began_s, 3)}), flush=True)


def _peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), READERS, crafted)
