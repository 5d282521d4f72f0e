"""A corpus of hostile files for every reader, and a program that lets the readers read them.

``python -m tests.hostile_files FOLDER SEED MUTATIONS`` prints a line of JSON for each file. It runs as a process of its
own, so that a reader that crashes, hangs or grows is seen from outside.
"""

from __future__ import annotations

import faulthandler
import io
import json
import os
import random
import resource
import shutil
import struct
import sys
import time
import traceback
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import scipy.io
import torch
from sci_stream_drivers.simulated.video import VideoScene

from sci_stream.cli.recording_tables import describe
from sci_stream.config import load_rig
from sci_stream.config.toml_text import table_text
from sci_stream.delivery.ledger import Ledger
from sci_stream.errors import SciStreamError
from sci_stream.nodes.acquire.spool.spool import Spool
from sci_stream.nodes.launcher.run import complete_summary
from sci_stream.nodes.sink.ledger_file import LedgerFile
from sci_stream.recon.denoisers.variants import variant_shape
from sci_stream.recon.denoisers.weights import FfdnetWeights, load_ffdnet, save_ffdnet
from sci_stream.security.keys import make_key_pair, read_allowed, read_key_pair
from sci_stream.storage.calibration_file import load_calibration, load_measured, save_calibration
from sci_stream.storage.calibration_import import ImportOptions, import_masks
from sci_stream.storage.hdf5 import LIBVER
from sci_stream.storage.journal import Journal, read_journal
from sci_stream.storage.matconvnet import read_matconvnet
from sci_stream.storage.measurement_file import load_measurement
from sci_stream.storage.recording import RecordingWriter
from sci_stream.storage.recording.inspection import inspect_recording
from sci_stream.storage.recording.repair import repair_recording
from sci_stream.storage.recording.series import RecordedSeries
from sci_stream.storage.recording.virtual_dataset import write_virtual_recording
from sci_stream.tools.compare import compare_recordings
from sci_stream.tools.export import ExportOptions, export
from sci_stream.tools.replay.many import read_manifest
from sci_stream.training.checkpoint import checkpoint_path, save_checkpoint
from sci_stream.training.export import export_weights
from sci_stream.training.images import load_images
from sci_stream.training.learner import Learner, initial_weights
from sci_stream.training.settings import TrainingSettings
from tests.e2e.kit import small_rig
from tests.series_fixtures import Series, make_series

SECRET = b"The bytes of a file that was not given. " * 200
"""Content of the file that hostile files refer to."""

_SLOW_S = 20.0


@dataclass(frozen=True)
class Reader:
    """A kind of file: ``make`` writes a valid one, ``read`` does what the commands do with it and returns its bytes."""

    suffix: str
    make: Callable[[Path], object]
    read: Callable[[Path], Any]


# --- readers


def read_recording(path: Path) -> bytes:
    """Do what inspect, export, compare, replay's camera and repair do."""
    list(describe(inspect_recording(path)))
    seen = b""
    with RecordedSeries(path) as series:
        for seq in series.seqs_with(raw=True).tolist()[:8]:
            seen += series.raw_of(seq).tobytes()
        for seq in series.seqs_with(video=True).tolist()[:8]:
            seen += series.video_of(seq).tobytes()
        for seq in series.seqs_with().tolist()[:8]:
            series.row(seq)
        for segment in series.segments:
            for seq in segment.seqs_with_outcome("reconstructed")[:8]:
                segment.report(seq)
            for seq in segment.settled_seqs[:8]:
                segment.outcome(seq)
        seen += series.table.tobytes() + series.info.rig_toml.encode()
        _ = series.parent, series.ledger, series.notes, series.solvers
    compare_recordings(path, path)
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
    """Take up the spool of another process."""
    found = Spool.reopen(path)
    if found is not None:
        spool, state = found
        sum(1 for _ in state.lost)
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
        writer.close({"acquired": 6, "reconstructed": 5, "raw_only": 0, "dropped": {"queue_full": 1}, "closed": True})
    else:
        content = path.read_bytes()
        writer.close()
        path.write_bytes(content)


def make_mat(path: Path) -> None:
    """Write a published measurement."""
    draw = np.random.default_rng(0)
    mask = draw.random((16, 24, 3)) > 0.5
    content = {"meas": draw.random((16, 24)), "mask": mask.astype(np.uint8), "orig": draw.random((16, 24, 3))}
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
    save_ffdnet(FfdnetWeights(kernels, (torch.zeros(8), torch.zeros(4)), gives_noise=False, origin="own"), path)


def make_checkpoint(path: Path) -> None:
    """Write a small network as a pickle."""
    torch.save({"model.0.weight": torch.ones(8, 5, 3, 3), "model.2.weight": torch.ones(4, 8, 3, 3)}, path)


def make_photographs(path: Path) -> None:
    """Write a picture."""
    done, encoded = cv2.imencode(path.suffix, np.arange(24 * 32 * 3, dtype=np.uint8).reshape(24, 32, 3))
    assert done
    path.write_bytes(encoded.tobytes())


def read_photographs(path: Path) -> bytes:
    """Read a folder that holds this picture alone."""
    folder = path.with_name(f"photographs-{path.name}")
    folder.mkdir()
    (folder / path.name).symlink_to(path)
    return b"".join(image.tobytes() for image in load_images(folder, memory_bytes=1 << 24).images)


def make_training(path: Path) -> None:
    """Write the checkpoint of a training that has not taken a step."""
    settings = TrainingSettings()
    learner = Learner(initial_weights(variant_shape(settings.variant), 0), torch.device("cpu"), settings.ema_decay)
    run = path.with_name(f"trained-{path.name}")
    save_checkpoint(
        run,
        {
            "settings": asdict(settings),
            "data_id": "0123456789abcdef",
            "n_images": 4,
            "clips": [],
            "steps": 10,
            "elapsed_s": 1.5,
            "sessions": [{"device": "CPU", "torch": "2.13.0", "steps": 0, "minutes": 0.1}],
            "begun_with": "",
            "learner": learner.state(),
        },
    )
    checkpoint_path(run).replace(path)


def export_training(path: Path) -> None:
    """Export the network of this checkpoint."""
    run = path.with_name(f"run-{path.name}")
    run.mkdir()
    checkpoint_path(run).symlink_to(path)
    export_weights(run, run / "out.safetensors", data=["made by the test"], licence="none")


def make_matconvnet(path: Path) -> None:
    """Write a network that MATLAB could have written."""
    with h5py.File(path, "w") as file:
        layers = []
        for number, (n_out, n_in) in enumerate(((8, 5), (4, 8))):
            group = file.create_group(f"#refs#/{number}")
            group["type"] = np.array([ord(c) for c in "conv"], np.uint16)
            kernel = file.create_dataset(f"#refs#/k{number}", data=np.ones((n_out, n_in, 3, 3), np.float32))
            bias = file.create_dataset(f"#refs#/b{number}", data=np.zeros(n_out, np.float32))
            group.create_dataset("weights", data=np.array([kernel.ref, bias.ref], h5py.ref_dtype))
            layers.append(group.ref)
        file.create_dataset("net/layers", data=np.array(layers, h5py.ref_dtype))


def make_rig(path: Path) -> None:
    """Write a rig."""
    path.write_text("\n".join(table_text(name, table) for name, table in small_rig().items()))


def make_journal(path: Path) -> None:
    """Write a journal."""
    with Journal(path) as journal:
        for n in range(20):
            journal.append("segment", {"number": n})


def make_summary(path: Path) -> None:
    """Write the summary of a run."""
    ledger = {"acquired": 3, "reconstructed": 3, "raw_only": 0, "dropped": {}, "closed": True, "in_flight": 0}
    rest = {"psnr_db": None, "iterations": {"mean": 3.0}, "latency_ms": {}, "recording": {}}
    path.write_text(json.dumps({"ledger": ledger, **rest}))


def make_spool(path: Path) -> None:
    """Write a spool with three snapshots."""
    series = make_series()
    spool = Spool.create(path, series.info, most_bytes=16 * 24 * 4, limit_bytes=1 << 16)
    for seq in range(3):
        spool.keep(series.snapshot(seq), 0)
    spool.close(over=False)


def make_ledger(path: Path) -> None:
    """Write a saved ledger."""
    LedgerFile(path).write("run-1", Ledger(), recording=True)


def make_manifest(path: Path) -> None:
    """Write a list of recordings."""
    make_recording(path.with_name("listed.h5"))
    path.write_text("# recordings\nlisted.h5\nlisted*.h5\n")


READERS = {
    "recording": Reader(".h5", make_recording, read_recording),
    "crashed recording": Reader(".h5", lambda path: make_recording(path, finished=False), read_recording),
    "recording to repair": Reader(".h5", lambda path: make_recording(path, finished=False), repair_copy),
    "calibration": Reader(".h5", lambda path: save_calibration(path, make_series().calibration), read_calibration),
    "published measurement": Reader(".mat", make_mat, load_measurement),
    "measurement of MATLAB 7.3": Reader(".mat", make_mat73, load_measurement),
    "arrays": Reader(".npz", make_npz, load_measurement),
    "array": Reader(".npy", make_npy, read_masks),
    "array of snapshots": Reader(".npy", make_npy, read_measurement),
    "TIFF": Reader(".tif", make_tiff, read_masks),
    "video": Reader(".mp4", make_video, lambda path: VideoScene(str(path), (16, 24), 1.0).render(2.5)),
    "weights": Reader(".safetensors", make_weights, read_weights),
    "checkpoint": Reader(".pth", make_checkpoint, read_weights),
    "photograph": Reader(".png", make_photographs, read_photographs),
    "training": Reader(".pt", make_training, export_training),
    "MatConvNet network": Reader(".mat", make_matconvnet, read_matconvnet),
    "key": Reader("", make_key_pair, read_key_pair),
    "allowed keys": Reader("", lambda path: path.write_text(f"{'a' * 40} lab\n"), read_allowed),
    "rig": Reader(".toml", make_rig, lambda path: load_rig(path, overrides={})),
    "manifest": Reader(".txt", make_manifest, read_manifest),
    "journal": Reader(".jsonl", make_journal, read_journal),
    "summary": Reader(".json", make_summary, lambda path: complete_summary(path, 0)),
    "saved ledger": Reader(".ledger", make_ledger, lambda path: LedgerFile(path).read("run-1")),
    "spool": Reader(".spool", make_spool, read_spool),
}


# --- hostile files


def mutated(content: bytes, draw: random.Random) -> bytes:
    """Damage a file at one to eight places: bits, ranges, numbers, lengths, pieces moved or repeated."""
    data = bytearray(content)
    for _ in range(draw.randint(1, 8)):
        if not data:
            break
        at = draw.randrange(len(data))
        size = draw.choice((1, 2, 4, 8, 64, 512))
        match draw.randrange(8):
            case 0:
                data[at] ^= 1 << draw.randrange(8)
            case 1:
                data[at : at + size] = draw.randbytes(size)
            case 2:
                data[at : at + size] = b"\xff" * min(size, 8)
            case 3:
                data[at : at + size] = bytes(min(size, 8))
            case 4:
                del data[at:]
            case 5:
                del data[at : at + size]
            case 6:
                source = draw.randrange(len(data))
                data[at:at] = data[source : source + size]
            case _:
                number = draw.choice((2**63 - 1, 2**32 - 1, 2**31, 2**48, 1 << 20))
                data[at : at + 8] = number.to_bytes(8, "little")
    return bytes(data)


def _recording_with(path: Path, change: Callable[[h5py.File], None]) -> None:
    make_recording(path)
    with h5py.File(path, "r+", libver=LIBVER) as file:
        change(file)


def _replace(file: h5py.File, name: str, **how: Any) -> None:
    shape, dtype = file[name].shape, file[name].dtype
    del file[name]
    file.create_dataset(name, **{"shape": shape, "dtype": dtype, **how})


def _elsewhere(kind: str, secret: Path, name: str) -> Callable[[h5py.File], None]:
    """Return a change that lets a dataset show the content of another file."""

    def change(file: h5py.File) -> None:
        shape, dtype = file[name].shape, file[name].dtype
        if kind == "external storage":
            _replace(file, name, external=[(str(secret), 0, h5py.h5f.UNLIMITED)])
        elif kind == "external link":
            del file[name]
            file[name] = h5py.ExternalLink(str(secret.with_suffix(".h5")), name)
        else:
            del file[name]
            layout = h5py.VirtualLayout(shape, dtype)
            layout[...] = h5py.VirtualSource(str(secret.with_suffix(".h5")), name, shape=shape, dtype=dtype)
            file.create_virtual_dataset(name, layout)

    return change


def _bomb(name: str, shape: tuple[int, ...], chunks: tuple[int, ...] | None) -> Callable[[h5py.File], None]:
    """Return a change that lets a dataset declare more than it stores."""

    def change(file: h5py.File) -> None:
        dtype = file[name].dtype
        del file[name]
        node = file.create_dataset(name, shape, dtype, chunks=chunks, compression="gzip" if chunks else None)
        if chunks:
            packed = zlib.compressobj(9)
            block = bytes(1 << 20)
            chunk_bytes = int(np.prod(chunks)) * dtype.itemsize
            data = b"".join(packed.compress(block) for _ in range(chunk_bytes >> 20)) + packed.flush()
            node.id.write_direct_chunk((0,) * len(shape), data)

    return change


def crafted(folder: Path) -> Iterator[tuple[str, Path, str]]:
    """Write files made to do harm; yield name, path and the reader that gets them."""
    secret = folder / "secret.bin"
    secret.write_bytes(SECRET)
    make_recording(secret.with_suffix(".h5"))
    for kind in ("external storage", "external link", "virtual dataset"):
        for name in ("raw", "video", "rows/state", "ledger", "calibration/phi", "rig_toml"):
            path = folder / f"{kind}-{name.replace('/', '-')}.h5".replace(" ", "-")
            try:
                _recording_with(path, _elsewhere(kind, secret, name))
            except (TypeError, ValueError, RuntimeError):  # a scalar has no external storage
                continue
            yield f"{kind} as {name}", path, "recording"
    for name, shape, chunks in (
        ("raw", (6, 16, 24 << 22), None),
        ("rows/state", (1 << 40,), (1 << 20,)),
        ("ledger", (1 << 40,), (1 << 20,)),
        ("calibration/phi", (4096, 4096, 4096), None),
        ("calibration/phi", (3, 1 << 14, 1 << 15), (1, 1 << 14, 1 << 15)),
    ):
        path = folder / f"bomb-{name.replace('/', '-')}-{len(chunks or ())}.h5"
        _recording_with(path, _bomb(name, shape, chunks))
        yield f"bomb as {name} in chunks {chunks}", path, "recording"
    yield from _crafted_hdf5(folder, secret)
    yield from _crafted_texts(folder)
    yield from _crafted_arrays(folder)
    yield from _crafted_images(folder)
    yield from _no_files(folder)


def _crafted_hdf5(folder: Path, secret: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield HDF5 files of other kinds that show other files, and one recording over false segments each."""
    for number, names in enumerate((["../secret.h5"], [str(secret.with_suffix(".h5"))], ["other.h5"], ["shows.h5"])):
        path = folder / f"whole-{number}" / "run.h5"
        path.parent.mkdir()
        make_recording(path)
        path = write_virtual_recording(path)
        _recording_with(path.with_name("shows.h5"), _elsewhere("external storage", secret, "raw"))
        other = make_series()
        make_recording(path.with_name("other.h5"), Series(replace(other.info, series="another"), other.calibration))
        with h5py.File(path, "r+") as file:
            shape = file["raw"].shape
            del file["raw"]
            layout = h5py.VirtualLayout(shape, np.uint16)
            layout[...] = h5py.VirtualSource(names[0], "raw", shape=shape, dtype=np.uint16)
            file.create_virtual_dataset("raw", layout)
            file.attrs["segments"] = names
        yield f".nxs over {names[0]}", path, "recording"
    parts = {"measurement of MATLAB 7.3": "meas", "MatConvNet network": "#refs#/k0", "calibration": "phi"}
    for kind, name in parts.items():
        for how in ("external storage", "virtual dataset", "external link"):
            path = folder / f"{how}-{kind}{READERS[kind].suffix}".replace(" ", "-")
            READERS[kind].make(path)
            with h5py.File(path, "r+") as file:
                _elsewhere(how, secret, name)(file)
            yield f"{how} in {kind}", path, kind
    path = folder / "unlinked.mat"
    make_matconvnet(path)
    with h5py.File(path, "r+") as file:  # only a reference names it
        node = file.create_dataset("hidden", (8, 5, 3, 3), np.float32, external=[(str(secret), 0, 1 << 20)])
        file["#refs#/0/weights"][0] = node.ref
        del file["hidden"]
    yield "external storage behind a reference", path, "MatConvNet network"


def _crafted_texts(folder: Path) -> Iterator[tuple[str, Path, str]]:
    deep = "[" * 30_000
    texts = {
        "rig": (f"a = {deep}", "[rig]\nname = 'a\\u0000'", "x" * (1 << 20), "\ud800".encode("utf-8", "surrogatepass")),
        "summary": (deep, "[]", '{"ledger": 5}', '{"ledger": {"dropped": []}}', "1e999999"),
        "journal": (deep + "\n" + deep, "\0" * 100, "null\nnull\n"),
        "manifest": ("\0\n", "~unknown-user-name/x\n", "#\n", b"\xff\xfe"),
        "saved ledger": (deep, "[]", '{"series": "run-1", "recording": 1, "ledger": {"acquired": 1e400}}'),
        "key": ("public a\nsecret b", "public\n", "x" * (1 << 20), b"\xff\xfe"),
        "allowed keys": (b"\xff\xfe", "x" * (1 << 21)),
        "video": ("#EXTM3U\n#EXTINF:1,\nsecret.bin\n", "ffconcat version 1.0\nfile secret.bin\n", "v=0\r\no=- 0 0\r\n"),
    }
    for kind, entries in texts.items():
        for number, text in enumerate(entries):
            path = folder / f"text-{kind.replace(' ', '-')}-{number}{READERS[kind].suffix}"
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
            path.chmod(0o600)
            yield f"text {number} as {kind}", path, kind


def _crafted_arrays(folder: Path) -> Iterator[tuple[str, Path, str]]:
    def header(shape: str, dtype: str = "<f4") -> bytes:
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(head, {"descr": dtype, "fortran_order": False, "shape": (1,)})
        return head.getvalue().replace(b"(1,)", shape.encode())

    for number, shape in enumerate(("(1<<40,)", "(99999999999,)", "(-1,)", "(4294967296, 4294967296)", "(1,)")):
        path = folder / f"npy-{number}.npy"
        path.write_bytes(header(shape) + bytes(64))
        yield f".npy of shape {shape}", path, "array"
    pickled = folder / "pickled.npy"
    np.save(pickled, np.array([{}], object), allow_pickle=True)
    yield "pickled .npy", pickled, "array"
    bomb = folder / "bomb.npz"
    with (
        zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("y.npy", "w", force_zip64=True) as file,
    ):
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": (1 << 30, 1)})
        file.write(head.getvalue())
        for _ in range(1 << 10):
            file.write(bytes(1 << 20))
    yield "bomb as .npz", bomb, "arrays"
    lies = folder / "lies.npz"
    with zipfile.ZipFile(lies, "w") as archive:
        archive.writestr("y.npy", header("(1<<40,)"))
        archive.writestr("masks.npy", header("(99999999999, 1, 1)"))
    yield ".npz with false headers", lies, "arrays"
    repeated = folder / "repeated.pth"
    torch.save({"model.0.weight": torch.ones(1).expand(1 << 16, 5 << 8, 3, 3)}, repeated)
    yield "checkpoint of one number, repeated", repeated, "checkpoint"
    yield from _crafted_trainings(folder)


def _crafted_trainings(folder: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield checkpoints of trainings whose values are of other kinds, or declare more than they hold."""
    valid = folder / "valid.pt"
    make_training(valid)
    nested: list[object] = []
    nested.append(nested)
    laughs: list[object] = [torch.ones(1)]
    for _ in range(64):
        laughs = [laughs, laughs]
    changes: dict[str, dict[str, object]] = {
        "settings in a list": {"settings": [1]},
        "settings of unknown names": {"settings": {"variant": "ffdnet-lite", "colour": 1}},
        "settings of odd values": {"settings": {"variant": 7, "batch": "many"}},
        "sessions of numbers": {"sessions": [1, 2]},
        "a session in words": {"sessions": [{"device": "CPU", "torch": "2", "steps": 1, "minutes": "two"}]},
        "a time in words": {"elapsed_s": "long"},
        "a learner without tensors": {"learner": {"parameters": "none", "gives_noise": True}},
        "a learner that holds itself": {"learner": {"parameters": nested}},
        "tensors of one number, repeated": {"learner": {"parameters": [torch.ones(1).expand(1 << 40)]}},
        "lists of the same lists": {"learner": {"parameters": laughs}},
    }
    for number, (name, change) in enumerate(changes.items()):
        content = torch.load(valid, weights_only=True)
        path = folder / f"training-{number}.pt"
        torch.save({**content, **change}, path)
        yield f"training with {name}", path, "training"


def _crafted_images(folder: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield images that declare more than they hold."""
    path = folder / "huge.tif"
    make_tiff(path)
    content = bytearray(path.read_bytes())
    (at,) = struct.unpack_from("<I", content, 4)
    for index in range(struct.unpack_from("<H", content, at)[0]):
        tag_at = at + 2 + 12 * index
        if struct.unpack_from("<H", content, tag_at)[0] in (256, 257):
            struct.pack_into("<HII", content, tag_at + 2, 4, 1, 30_000)
    path.write_bytes(content)
    yield "TIFF of 900 megapixels", path, "TIFF"
    loop = folder / "loop.tif"
    make_tiff(loop)
    content = bytearray(loop.read_bytes())
    (entries,) = struct.unpack_from("<H", content, at)
    struct.pack_into("<I", content, at + 2 + 12 * entries, at)
    loop.write_bytes(content)
    yield "TIFF whose pages form a loop", loop, "TIFF"
    png = folder / "huge.png"
    done, encoded = cv2.imencode(".png", np.zeros((8, 8), np.uint8))
    assert done
    raw = bytearray(encoded.tobytes())
    struct.pack_into(">II", raw, 16, 30_000, 30_000)
    struct.pack_into(">I", raw, 29, zlib.crc32(bytes(raw[12:29])))
    png.write_bytes(raw)
    yield "PNG of 900 megapixels", png, "TIFF"
    yield "photograph of 900 megapixels", png, "photograph"
    mat = folder / "bomb.mat"
    packed = zlib.compress(struct.pack("<II", 14, 1 << 30) + bytes(1 << 24), 9)
    mat.write_bytes(b"x" * 124 + struct.pack("<H", 0x0100) + b"IM" + struct.pack("<II", 15, len(packed)) + packed)
    yield "bomb as .mat", mat, "published measurement"


def _no_files(folder: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield what is no regular file for each reader: nothing, an empty file, a pipe, a folder, an endless device."""
    for kind, reader in READERS.items():
        stem = kind.replace(" ", "-")
        yield f"nothing as {kind}", folder / f"none-{stem}{reader.suffix}", kind
        empty = folder / f"empty-{stem}{reader.suffix}"
        empty.touch(mode=0o600)
        yield f"empty file as {kind}", empty, kind
        pipe = folder / f"pipe-{stem}{reader.suffix}"
        os.mkfifo(pipe, 0o600)
        yield f"pipe as {kind}", pipe, kind
        place = folder / f"folder-{stem}{reader.suffix}"
        place.mkdir()
        yield f"folder as {kind}", place, kind
        endless = folder / f"zero-{stem}{reader.suffix}"
        endless.symlink_to("/dev/zero")
        yield f"/dev/zero as {kind}", endless, kind


def hostile_files(folder: Path, seed: int, mutations: int) -> Iterator[tuple[str, Path, str]]:
    """Yield every hostile file: the crafted ones, and ``mutations`` damaged ones, shared out among the readers."""
    yield from crafted(folder)
    draw = random.Random(seed)
    kinds = sorted(READERS)
    for number in range(mutations):
        kind = kinds[number % len(kinds)]
        reader = READERS[kind]
        place = folder / f"mutated-{number}"
        place.mkdir()
        path = place / f"file{reader.suffix}"
        reader.make(path)
        path.write_bytes(mutated(path.read_bytes(), draw))
        yield f"mutation {number} of {kind}", path, kind
        shutil.rmtree(place)


def main(folder: Path, seed: int, mutations: int) -> None:
    """Read every hostile file and print what came of it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for reader in READERS.values():  # once, so that what the readers load does not count as growth
        warm = folder / f"warm-up{reader.suffix}"
        reader.make(warm)
        reader.read(warm)
        warm.unlink(missing_ok=True)
    for name, path, kind in hostile_files(folder, seed, mutations):
        before = _peak_mib()
        print(json.dumps({"name": name, "outcome": "begun"}), flush=True)
        faulthandler.dump_traceback_later(_SLOW_S, exit=True)
        began_s = time.monotonic()
        seen, said = b"", ""
        try:
            result = READERS[kind].read(path)
            seen = result if isinstance(result, bytes) else b""
            outcome = "read"
        except SciStreamError as error:
            outcome, said = "refused", str(error)
        except Exception as error:
            outcome, said = "crashed", "".join(traceback.format_exception(error)[-6:])
        faulthandler.cancel_dump_traceback_later()
        leaked = SECRET[:40] in seen
        report = {"name": name, "outcome": outcome, "said": said, "leaked": leaked, "grew_mib": _peak_mib() - before}
        print(json.dumps({**report, "took_s": round(time.monotonic() - began_s, 3)}), flush=True)


def _peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
