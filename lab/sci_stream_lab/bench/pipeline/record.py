"""``sci-stream bench stream --record``: recording rate, of the recorder alone and of the whole
pipeline.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from pathlib import Path

from sci_stream.clock import unix_ns
from sci_stream.config import RecordSection
from sci_stream.model import Policy, SeriesInfo, Snapshot, SnapshotId
from sci_stream.nodes.sink.recorder import Recorder
from sci_stream.recording.layout import Compression
from sci_stream.recording.series import RecordedSeries
from sci_stream_lab.bench.pipeline.stream import LoopCamera, run_part
from sci_stream_lab.bench.pipeline.zmq_baseline import StreamPart

# A full queue holds 256 MiB: it does not run empty meanwhile.
_FULL_S = 0.001


def bench_record(
    folder: Path, *, snapshots: int, height_px: int, width_px: int, rate_hz: float
) -> list[StreamPart]:
    """Measure recording of 12-bit noise, which is harder to compress than any scene.

    Four parts: the recorder alone, uncompressed and compressed; then camera, worker, sink and
    recorder as in a rig, at a given rate and at full speed. ``lost`` counts snapshots acquired
    whose raw counts cannot be read from the recording afterwards.
    """
    shape = (height_px, width_px)
    parts = [recorder_alone(folder, shape, snapshots, compression) for compression in Compression]
    parts.append(_pipeline(folder, shape, snapshots, rate_hz, f"recorded, {rate_hz:g}/s"))
    parts.append(_pipeline(folder, shape, snapshots, 0.0, "recorded, loaded"))
    return parts


def recorder_alone(
    folder: Path, shape: tuple[int, int], snapshots: int, compression: Compression
) -> StreamPart:
    """Measure the recorder alone: raw snapshots at full speed, until its last flush ends."""
    camera = LoopCamera(shape, 0.0)
    calibration = camera.calibration()
    info = SeriesInfo(
        "bench", 0, "bench", Policy.RECORD, "bench", "0", *shape, "Mono12", 12, 1, calibration.hash
    )
    with tempfile.TemporaryDirectory(prefix="sci-stream-bench-", dir=folder) as scratch:
        options = RecordSection(
            folder=Path(scratch), video=False, compression=compression.value, min_free_mib=0
        )
        recorder = Recorder(info, calibration, options)
        recorder.start()
        camera.start()
        frames = [frame.counts for _ in range(16) if (frame := camera.read(0.0)) is not None]
        began_s, before_s = time.perf_counter(), time.process_time()
        for seq in range(snapshots):
            counts = frames[seq % len(frames)]
            snapshot = Snapshot(SnapshotId("bench", 0, seq), counts, calibration.hash, 1, unix_ns())
            while recorder.is_full:
                time.sleep(_FULL_S)
            recorder.submit(snapshot)
        recorder.close({"acquired": snapshots, "closed": True})
        seconds, used_s = time.perf_counter() - began_s, time.process_time() - before_s
        held = _held(Path(scratch))
    name = "recorder alone" + (", LZ4" if compression is Compression.BITSHUFFLE_LZ4 else "")
    used = {"recorder": used_s}
    return StreamPart.measured(
        name, camera.frame_bytes, snapshots, seconds, used, through=held, lost=snapshots - held
    )


def _pipeline(
    folder: Path, shape: tuple[int, int], snapshots: int, rate_hz: float, name: str
) -> StreamPart:
    with tempfile.TemporaryDirectory(prefix="sci-stream-bench-", dir=folder) as scratch:
        record = {"folder": "recordings", "video": False, "min_free_mib": 0}
        part, acquired = run_part(
            name, Path(scratch), LoopCamera(shape, rate_hz), snapshots, record=record
        )
        held = _held(Path(scratch) / "recordings")
    return dataclasses.replace(part, lost=acquired - held)


def _held(folder: Path) -> int:
    """Return the number of snapshots with raw counts in the recording in a folder."""
    (first,) = sorted(folder.glob("*.h5"), key=lambda path: len(path.name))[:1]
    with RecordedSeries(first) as series:
        return len(series.raw)
