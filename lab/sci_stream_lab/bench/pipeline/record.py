"""``sci-stream bench stream --record``: recording rate, of the recorder alone and of the whole
pipeline.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np

from sci_stream.clock import unix_ns
from sci_stream.config import RecordSection
from sci_stream.model import Policy, SeriesInfo, Snapshot, SnapshotId
from sci_stream.nodes.runtime.runtime_folder import MEMORY
from sci_stream.nodes.sink.recorder import Recorder
from sci_stream.recording.layout import Compression
from sci_stream.recording.series import RecordedSeries
from sci_stream_lab.bench.pipeline.stream import CHUNKS, RAW_ONLY, LoopCamera, run_part
from sci_stream_lab.bench.pipeline.zmq_baseline import StreamPart

# A full queue holds 256 MiB: it does not run empty meanwhile.
_FULL_S = 0.001
# Rate of the part without reconstruct nodes, Hz: that of common cameras.
_RAW_HZ = 100.0


def bench_record(
    folder: Path, *, snapshots: int, height_px: int, width_px: int, rate_hz: float
) -> list[StreamPart]:
    """Measure recording of 12-bit noise, which is harder to compress than any scene.

    Six parts: h5py alone, which writes one chunk a snapshot; a rig without reconstruct nodes; the
    recorder alone, uncompressed and compressed; then camera, worker, sink and recorder as in a rig,
    at a given rate and at full speed. ``lost`` counts snapshots acquired whose raw counts cannot be
    read from the recording afterwards.
    """
    shape = (height_px, width_px)
    raw_only = _pipeline(folder, shape, snapshots, _RAW_HZ, RAW_ONLY, nodes=0)
    first = [chunks_alone(folder, shape, snapshots), raw_only]
    parts = [recorder_alone(folder, shape, snapshots, compression) for compression in Compression]
    parts.append(_pipeline(folder, shape, snapshots, rate_hz, f"recorded, {rate_hz:g}/s"))
    parts.append(_pipeline(folder, shape, snapshots, 0.0, "recorded, loaded"))
    return first + parts


def chunks_alone(folder: Path, shape: tuple[int, int], snapshots: int) -> StreamPart:
    """Measure h5py alone: one direct chunk a snapshot, without a row or a flush."""
    camera = LoopCamera(shape, 0.0)
    frames = [frame.counts for _ in range(16) if (frame := camera.read(0.0)) is not None]
    with tempfile.TemporaryDirectory(prefix="sci-stream-bench-", dir=folder) as scratch:
        began_s, before_s = time.perf_counter(), time.process_time()
        with h5py.File(Path(scratch) / "chunks.h5", "w", libver="latest") as file:
            node = file.create_dataset("raw", (snapshots, *shape), np.uint16, chunks=(1, *shape))
            for seq in range(snapshots):
                node.id.write_direct_chunk((seq, 0, 0), frames[seq % len(frames)])
        seconds, used_s = time.perf_counter() - began_s, time.process_time() - before_s
    used = {"recorder": used_s}
    return StreamPart.measured(
        RAW_ONLY + CHUNKS, camera.frame_bytes, snapshots, seconds, used, through=snapshots, lost=0
    )


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
    folder: Path,
    shape: tuple[int, int],
    snapshots: int,
    rate_hz: float,
    name: str,
    *,
    nodes: int = 1,
) -> StreamPart:
    memory = MEMORY if MEMORY.is_dir() else folder
    with (
        tempfile.TemporaryDirectory(prefix="sci-stream-bench-", dir=folder) as scratch,
        tempfile.TemporaryDirectory(prefix="sci-stream-bench-", dir=memory) as spool,
    ):
        record = {"folder": "recordings", "video": False, "min_free_mib": 0}
        part, acquired = run_part(
            name,
            Path(scratch),
            LoopCamera(shape, rate_hz),
            snapshots,
            record=record,
            # As under a supervisor.
            policy={"spool": spool},
            nodes=nodes,
        )
        held = _held(Path(scratch) / "recordings")
    return dataclasses.replace(part, lost=acquired - held)


def _held(folder: Path) -> int:
    """Return the number of snapshots with raw counts in the recording in a folder."""
    (first,) = sorted(folder.glob("*.h5"), key=lambda path: len(path.name))[:1]
    with RecordedSeries(first) as series:
        return len(series.raw)
