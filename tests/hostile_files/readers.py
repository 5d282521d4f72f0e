"""Every reader of files, and a valid file for each."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import scipy.io
import torch

from sci_stream.cli.recording_tables import describe
from sci_stream.config import load_rig
from sci_stream.config.toml_text import table_text
from sci_stream.delivery.ledger import Ledger
from sci_stream.files.calibration_import import ImportOptions, import_masks
from sci_stream.files.measurement_file import load_measurement
from sci_stream.nodes.acquire.spool import Spool
from sci_stream.nodes.launcher.run import complete_summary
from sci_stream.nodes.sink.ledger_file import LedgerFile, SavedLedger
from sci_stream.recon.denoisers.weights import FfdnetWeights, load_ffdnet, save_ffdnet
from sci_stream.recording.calibration_file import load_calibration, load_measured, save_calibration
from sci_stream.recording.inspection import inspect_recording
from sci_stream.recording.repair import repair_recording
from sci_stream.recording.series import RecordedSeries
from sci_stream.recording.writer import RecordingWriter
from sci_stream.security.keys import make_key_pair, read_allowed, read_key_pair
from sci_stream.tools.export import ExportOptions, export
from sci_stream_drivers.simulated.video import VideoScene
from tests.e2e.kit import small_rig
from tests.series_fixtures import Series, make_series


@dataclass(frozen=True)
class Reader:
    """A kind of file: ``make`` writes a valid one, ``read`` reads it as the commands do and returns
    its bytes.
    """

    suffix: str
    make: Callable[[Path], object]
    read: Callable[[Path], Any]


# --- what commands do with a file


def read_recording(path: Path) -> bytes:
    """Do what inspect, export, replay's camera and repair do."""
    list(describe(inspect_recording(path)))
    seen = b""
    with RecordedSeries(path) as series:
        for seq in series.raw.seqs.tolist()[:8]:
            seen += series.frame_of("raw", seq).tobytes()
        for seq in series.video.seqs.tolist()[:8]:
            seen += series.frame_of("video", seq).tobytes()
        for seq in range(series.first_seq, series.first_seq + len(series.rows["state"]))[:8]:
            series.row(seq)
        for segment in series.segments:
            for seq in segment.seqs_with_outcome("reconstructed")[:8]:
                segment.report(seq)
            for seq in segment.settled_seqs[:8]:
                segment.outcome(seq)
        seen += series.table.tobytes() + series.info.rig_toml.encode()
        _ = series.parent, series.ledger, series.notes, series.solvers
    out = path.with_name("exported.tif")
    try:
        export(path, out, ExportOptions())
        seen += out.read_bytes()
    finally:
        out.unlink(missing_ok=True)
    return seen


def repair_copy(path: Path) -> None:
    """Repair the file itself: it is a copy."""
    repair_recording(path)


def read_calibration(path: Path) -> bytes:
    """Read a calibration with its measurements."""
    calibration = load_calibration(path)
    load_measured(path)
    return calibration.phi.tobytes()


def read_measurement(path: Path) -> bytes:
    """Read snapshots and masks, and masks alone."""
    found = load_measurement(path, path)
    return np.asarray(found.y).tobytes()


def read_masks(path: Path) -> bytes:
    """Import masks of another program."""
    return import_masks(path, ImportOptions()).phi.tobytes()


def read_weights(path: Path) -> None:
    """Read a network."""
    load_ffdnet(path)


def read_spool(path: Path) -> None:
    """Take up the spool of another process, one of whose files this is."""
    folder = write_spool(path.parent / "rig.spool")
    file = folder / path.suffix[1:]
    file.unlink()
    with contextlib.suppress(FileNotFoundError):
        path.rename(file)
    spool = Spool(path.parent, "rig")
    if spool.recovered is not None:
        sum(1 for _ in spool.recovered.lost)
    spool.close(over=False)


# --- valid files


def make_recording(path: Path, series: Series | None = None, *, finished: bool = True) -> None:
    """Write a recording of six snapshots."""
    series = make_series() if series is None else series
    writer = RecordingWriter(path, series.info, series.calibration)
    for seq in range(6):
        if seq == 4:
            writer.write_outcome(seq, "dropped", "queue_full")
        else:
            writer.write_raw(series.snapshot(seq))
            writer.write_reconstruction(series.reconstruction(seq))
    writer.flush()
    if finished:
        writer.close(
            {
                "acquired": 6,
                "reconstructed": 5,
                "raw_only": 0,
                "dropped": {"queue_full": 1},
                "closed": True,
            }
        )
    else:
        content = path.read_bytes()
        writer.close()
        path.write_bytes(content)


def make_mat(path: Path) -> None:
    """Write a published measurement."""
    draw = np.random.default_rng(0)
    mask = draw.random((16, 24, 3)) > 0.5
    content = {
        "meas": draw.random((16, 24)),
        "mask": mask.astype(np.uint8),
        "orig": draw.random((16, 24, 3)),
    }
    scipy.io.savemat(path, content, do_compression=True)


def make_mat73(path: Path) -> None:
    """Write a published measurement as HDF5."""
    with h5py.File(path, "w") as file:
        file["meas"] = np.ones((24, 16))
        file["mask"] = np.ones((3, 24, 16))


def make_npz(path: Path) -> None:
    """Write snapshots and masks."""
    np.savez_compressed(path, y=np.ones((2, 16, 24)), masks=np.ones((3, 16, 24)))


def make_npy(path: Path) -> None:
    """Write masks."""
    np.save(path, np.ones((3, 16, 24), np.float32))


def make_tiff(path: Path) -> None:
    """Write masks as pages."""
    done = cv2.imwritemulti(str(path), [np.full((16, 24), 100 + n, np.uint8) for n in range(3)])
    assert done


def make_video(path: Path) -> None:
    """Write a film."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 10, (32, 32))
    for n in range(6):
        writer.write(np.full((32, 32, 3), 20 * n, np.uint8))
    writer.release()


def make_weights(path: Path) -> None:
    """Write a small network."""
    kernels = (torch.ones(8, 5, 3, 3), torch.ones(4, 8, 3, 3))
    save_ffdnet(
        FfdnetWeights(kernels, (torch.zeros(8), torch.zeros(4)), gives_noise=False, origin="own"),
        path,
    )


def make_checkpoint(path: Path) -> None:
    """Write a small network as a pickle."""
    torch.save(
        {"model.0.weight": torch.ones(8, 5, 3, 3), "model.2.weight": torch.ones(4, 8, 3, 3)}, path
    )


def make_rig(path: Path) -> None:
    """Write a rig."""
    path.write_text("\n".join(table_text(name, table) for name, table in small_rig().items()))


def make_summary(path: Path) -> None:
    """Write the summary of a run."""
    ledger = {
        "acquired": 3,
        "reconstructed": 3,
        "raw_only": 0,
        "dropped": {},
        "closed": True,
        "in_flight": 0,
        "camera_missed": 0,
    }
    rest = {
        "frame_faults": {},
        "psnr_db": None,
        "iterations": {"mean": 3.0},
        "latency_ms": {},
        "recording": {},
        "earlier": [],
    }
    path.write_text(json.dumps({"ledger": ledger, **rest}))


def write_spool(folder: Path) -> Path:
    """Write a spool with three snapshots; return its folder."""
    shutil.rmtree(folder, ignore_errors=True)
    series = make_series()
    spool = Spool(folder.parent, folder.stem)
    spool.begin(series.info, limit_bytes=1 << 16)
    for seq in range(3):
        spool.keep(series.snapshot(seq), 0)
    spool.close(over=False)
    return folder


def make_spool(path: Path) -> None:
    """Write a file of a spool, named by its suffix."""
    shutil.copyfile(write_spool(path.parent / "rig.spool") / path.suffix[1:], path)


def make_ledger(path: Path) -> None:
    """Write a saved ledger."""
    LedgerFile(path).write(SavedLedger("run-1", recording=True, ledger=Ledger().state()))


READERS = {
    "recording": Reader(".h5", make_recording, read_recording),
    "crashed recording": Reader(
        ".h5", lambda path: make_recording(path, finished=False), read_recording
    ),
    "recording to repair": Reader(
        ".h5", lambda path: make_recording(path, finished=False), repair_copy
    ),
    "calibration": Reader(
        ".h5", lambda path: save_calibration(path, make_series().calibration), read_calibration
    ),
    "published measurement": Reader(".mat", make_mat, load_measurement),
    "measurement of MATLAB 7.3": Reader(".mat", make_mat73, load_measurement),
    "arrays": Reader(".npz", make_npz, load_measurement),
    "array": Reader(".npy", make_npy, read_masks),
    "array of snapshots": Reader(".npy", make_npy, read_measurement),
    "TIFF": Reader(".tif", make_tiff, read_masks),
    "video": Reader(
        ".mp4", make_video, lambda path: VideoScene(str(path), (16, 24), 1.0).render(2.5)
    ),
    "weights": Reader(".safetensors", make_weights, read_weights),
    "checkpoint": Reader(".pth", make_checkpoint, read_weights),
    "key": Reader("", make_key_pair, read_key_pair),
    "allowed keys": Reader("", lambda path: path.write_text(f"{'a' * 40} lab\n"), read_allowed),
    "rig": Reader(".toml", make_rig, lambda path: load_rig(path, overrides={})),
    "summary": Reader(".json", make_summary, lambda path: complete_summary(path, 0)),
    "saved ledger": Reader(".ledger", make_ledger, lambda path: LedgerFile(path).read("run-1")),
    "spool": Reader(".series", make_spool, read_spool),
    "spooled snapshot": Reader(".1", make_spool, read_spool),
}
