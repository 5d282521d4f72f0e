"""Operate a rig under systemd and report as JSON: start it, kill a node, freeze one, stop it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

_PATIENCE_S = 120.0
_ALL = "sci-stream.target"
_UNITS = (
    "sci-stream-sink.service",
    "sci-stream-acquire.service",
    "sci-stream-reconstruct@0.service",
)


def systemctl(*words: str) -> str:
    """Run systemctl; return its output."""
    asked = subprocess.run(
        ["systemctl", "--user", *words], capture_output=True, text=True, check=False
    )
    if asked.returncode:
        raise SystemExit(f"systemctl {' '.join(words)}: {asked.stderr or asked.stdout}")
    return asked.stdout


def show(unit: str) -> dict[str, str]:
    """Return the properties of a unit."""
    names = "ActiveState,SubState,StatusText,NRestarts,MainPID,Result"
    return dict(
        line.split("=", 1) for line in systemctl("show", unit, f"--property={names}").splitlines()
    )


def wait_until(unit: str, **wanted: str) -> dict[str, str]:
    """Wait until a unit is in a state; return its properties."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while any((now := show(unit))[name] != value for name, value in wanted.items()):
        if time.monotonic() > deadline_s:
            raise SystemExit(
                f"{unit} is {now}, not {wanted}\n"
                + systemctl("status", "--no-pager", "--lines=50", unit)
            )
        time.sleep(0.2)
    return now


def main() -> None:
    """Run all steps; print the observations."""
    seen: dict[str, Any] = {}
    # Type=notify: this returns when each has said READY=1.
    systemctl("start", *_UNITS, _ALL)
    for unit in _UNITS:
        seen[unit] = wait_until(unit, ActiveState="active", StatusText="ready")
    reconstruct = _UNITS[2]
    os.kill(int(seen[reconstruct]["MainPID"]), signal.SIGKILL)
    seen["killed"] = wait_until(
        reconstruct, ActiveState="active", NRestarts="1", StatusText="ready"
    )
    # It hangs with work pending and cannot end by itself: only the watchdog gets it killed and
    # restarted.
    os.kill(int(seen["killed"]["MainPID"]), signal.SIGSTOP)
    seen["hung"] = wait_until(reconstruct, ActiveState="active", NRestarts="2", StatusText="ready")
    # All of them in one go, in their order.
    systemctl("stop", _ALL)
    seen["stopped"] = [wait_until(unit, ActiveState="inactive")["ActiveState"] for unit in _UNITS]
    print(json.dumps(seen), file=sys.stdout)


if __name__ == "__main__":
    main()
