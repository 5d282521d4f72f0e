"""Build the producer, render its frames, score a recording:
``python -m sci_stream_gentl_sim -h``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sci_stream.errors import SciStreamError
from sci_stream_gentl_sim.accuracy import score
from sci_stream_gentl_sim.build import FOLDER, build
from sci_stream_gentl_sim.render import read_options, render


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m sci_stream_gentl_sim", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    building = verbs.add_parser("build", help="compile the producer, if its sources are newer")
    building.add_argument("--sanitize", action="store_true", help="with AddressSanitizer and UBSan")
    rendering = verbs.add_parser("render", help="render frames, calibration and truth")
    rendering.add_argument(
        "--rig", type=Path, help="rig of the simulated camera that defines the scene"
    )
    rendering.add_argument(
        "--snapshots", type=int, default=32, help="number of snapshots to loop over (default: 32)"
    )
    rendering.add_argument(
        "--serial", default="SIM0001", help="serial number of the camera (default: SIM0001)"
    )
    for verb in (building, rendering):
        verb.add_argument(
            "-o", "--folder", type=Path, default=FOLDER, help=f"output folder (default: {FOLDER})"
        )
    scoring = verbs.add_parser("score", help="PSNR of a recording's video")
    scoring.add_argument("recording", type=Path)
    scoring.add_argument(
        "--truth", type=Path, default=FOLDER / "truth.npy", help="truth written by render"
    )
    return parser


def main() -> None:
    """Run a command; errors of this project become a message and their exit status."""
    given = _parser().parse_args()
    try:
        if given.verb == "build":
            print(build(given.folder, sanitize=given.sanitize))
        elif given.verb == "render":
            options = read_options(given.rig) if given.rig else {}
            done = render(options, given.folder, snapshots=given.snapshots, serial=given.serial)
            print(done.frames, done.calibration, done.truth, sep="\n")
        else:
            found = score(given.recording, given.truth)
            print(
                f"PSNR {sum(found.values()) / len(found):.2f} dB, mean over {len(found)} snapshots"
            )
    except SciStreamError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_status)


if __name__ == "__main__":
    main()
