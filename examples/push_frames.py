"""Send frames to a rig with ``[camera] driver = "push"``.

Run it beside the rig. Frames come from ``expose``: put your camera there.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator

import numpy as np
import zmq


def expose(height_px: int, width_px: int) -> Iterator[np.ndarray]:
    """Yield frames without end, 20 per second."""
    rng = np.random.default_rng(1)
    while True:
        time.sleep(0.05)
        yield rng.integers(0, 4096, (height_px, width_px), np.uint16)


def send(address: str, frames: Iterator[np.ndarray]) -> None:
    """Send each frame with its number and time. A frame is skipped while no answer comes."""
    context = zmq.Context()
    socket = context.socket(zmq.REQ)
    socket.setsockopt(zmq.REQ_RELAXED, 1)  # go on after an answer that never came
    socket.setsockopt(zmq.REQ_CORRELATE, 1)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(address)
    for number, frame in enumerate(frames):
        header = {"frame": number, "time_ns": time.monotonic_ns()}
        socket.send_multipart([json.dumps(header).encode(), np.ascontiguousarray(frame)])
        if not socket.poll(1000):
            print(f"frame {number}: no answer from {address}", file=sys.stderr)
            continue
        answer = json.loads(socket.recv())
        if "error" in answer:
            sys.exit(f"frame {number} was refused: {answer['error']}")
    context.destroy()


if __name__ == "__main__":
    send("tcp://127.0.0.1:5710", expose(256, 256))
