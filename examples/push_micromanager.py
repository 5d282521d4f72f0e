"""Send the frames of a Micro-Manager camera to a rig with ``[camera] driver = "push"``.

Needs pymmcore-plus and a configuration file of Micro-Manager::

    python push_micromanager.py MMConfig.cfg tcp://127.0.0.1:5710
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import zmq
from pymmcore_plus import CMMCorePlus


def send(core: CMMCorePlus, address: str, frames: int | None = None) -> None:
    """Send a sequence of the camera, endless unless ``frames`` are given."""
    context = zmq.Context()
    socket = context.socket(zmq.REQ)
    socket.setsockopt(zmq.REQ_RELAXED, 1)  # go on after an answer that never came
    socket.setsockopt(zmq.REQ_CORRELATE, 1)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(address)
    core.startContinuousSequenceAcquisition(0)
    sent = 0
    while frames is None or sent < frames:
        if not core.getRemainingImageCount():
            time.sleep(0.001)
            continue
        image, metadata = core.popNextImageAndMD()
        # Frames that overflow the buffer of Micro-Manager have numbers, too: the rig counts them.
        number = int(metadata["ImageNumber"])
        time_ns = round(float(metadata["ElapsedTime-ms"]) * 1e6)
        header = json.dumps({"frame": number, "time_ns": time_ns}).encode()
        socket.send_multipart([header, np.ascontiguousarray(image)])
        sent += 1
        if socket.poll(1000):
            answer = json.loads(socket.recv())
            if "error" in answer:
                sys.exit(f"frame {number} was refused: {answer['error']}")
    core.stopSequenceAcquisition()
    context.destroy()


if __name__ == "__main__":
    microscope = CMMCorePlus()
    microscope.loadSystemConfiguration(sys.argv[1])
    send(microscope, sys.argv[2])
