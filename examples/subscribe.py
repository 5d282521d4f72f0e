"""Receive reconstructed video from a running rig::

python examples/subscribe.py tcp://127.0.0.1:5703 10
"""

from __future__ import annotations

import itertools
import sys

import sci_stream


def main(taps: str, count: str = "10") -> None:
    """Print the shape and mean brightness of some reconstructions; a slow reader gets the newest
    ones.
    """
    for reconstruction in itertools.islice(sci_stream.subscribe(taps, timeout_s=30.0), int(count)):
        # (B, H, W), 0–1; a Bayer mosaic if reconstruction.bayer is set
        video = reconstruction.video
        print(f"snapshot {reconstruction.id.seq}: {video.shape}, mean {video.mean():.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
