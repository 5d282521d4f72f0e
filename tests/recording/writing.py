"""A process that writes a recording until it is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

WRITE_FOR_EVER = """
    import sys
    from pathlib import Path
    import numpy as np
    from sci_stream.recording.writer import RecordingWriter
    from sci_stream.model import Policy, SeriesInfo, Snapshot, SnapshotId
    from sci_stream.optics.calibration import Calibration
    calibration = Calibration(phi=np.full((2, 64, 64), 0.5, np.float32))
    camera = "m", "1", 64, 64, "Mono16", 16
    info = SeriesInfo("s", 0, "rig", Policy.RECORD, *camera, 2, calibration.hash)
    writer = RecordingWriter(Path(sys.argv[1]), info, calibration)
    every = int(sys.argv[2])
    for seq in range(1 << 16):
        counts = np.full((64, 64), seq, np.uint16)
        writer.write_raw(Snapshot(SnapshotId("s", 0, seq), counts, calibration.hash, 2, seq))
        if seq % every == every - 1:
            writer.flush()
            print(seq + 1, flush=True)
"""


def start_writer(path: Path, every: int) -> subprocess.Popen[str]:
    """Start it; after each flush, of ``every`` snapshots, it prints how many it has written."""
    code = textwrap.dedent(WRITE_FOR_EVER)
    return subprocess.Popen(
        [sys.executable, "-c", code, str(path), str(every)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
