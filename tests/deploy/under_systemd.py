"""Run commands under a separate systemd user manager in separate namespaces.

``unshare --mount --pid --fork --mount-proc python under_systemd.py FOLDER COMMAND…`` starts the
manager with the units of FOLDER/systemd/user, then the command, ends all, and exits with the
command's status.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

_PATIENCE_S = 60.0


def main() -> int:
    """Return the status of the command, or 77 if no manager can be started."""
    folder, *command = sys.argv[1:]
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    runtime = Path("/run/user/0")
    for path in (Path("/run/systemd/system"), runtime):
        path.mkdir(parents=True, mode=0o700)
    environment = {
        **os.environ,
        "XDG_RUNTIME_DIR": str(runtime),
        "XDG_CONFIG_HOME": folder,
        "SYSTEMD_LOG_TARGET": "console",
    }
    with (Path(folder) / "manager.log").open("w") as log:
        manager = subprocess.Popen(
            ["/lib/systemd/systemd", "--user"],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    deadline_s = time.monotonic() + _PATIENCE_S
    asked = ["systemctl", "--user", "show-environment"]
    while subprocess.run(asked, env=environment, capture_output=True, check=False).returncode:
        if manager.poll() is not None or time.monotonic() > deadline_s:
            print((Path(folder) / "manager.log").read_text())
            return 77
        time.sleep(0.1)
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
