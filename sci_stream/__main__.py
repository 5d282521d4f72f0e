"""The program ``sci-stream``, also ``python -m sci_stream``."""

from __future__ import annotations

import atexit
import gc
import io
import sys


def main() -> None:
    """Run the command line; `demo` prints a line before its libraries load, which takes seconds on
    a busy machine.
    """
    # Imports create a hundred thousand objects that stay. With Python's threshold of 700, the
    # search for garbage among them takes an eighth of the start of every process.
    gc.set_threshold(10_000)
    # At its end Python looks for garbage among all objects of all modules, with torch for 0.4 s.
    atexit.register(gc.freeze)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal in another language, or a name that is no Unicode, is no error.
            stream.reconfigure(errors="replace")
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    if command == "demo" and "--help" not in sys.argv:
        print("measuring this machine …", file=sys.stderr, flush=True)
    from sci_stream.cli import main as run_command_line  # noqa: PLC0415 - see above

    run_command_line()


if __name__ == "__main__":
    main()
