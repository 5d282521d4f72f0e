"""Hostile files for the laboratory: ``python -m lab.tests.training.hostile_files FOLDER SEED
MUTATIONS``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import cv2
import h5py
import numpy as np
import torch

from sci_stream_lab.training.checkpoint import checkpoint_path, save_checkpoint
from sci_stream_lab.training.export import export_weights
from sci_stream_lab.training.images import load_images
from sci_stream_lab.training.learner import FfdnetLearner, initial_weights
from sci_stream_lab.training.matconvnet import read_matconvnet
from sci_stream_lab.training.settings import TrainingSettings
from sci_stream_lab.training.variants import variant_shape
from tests.hostile_files.__main__ import main
from tests.hostile_files.corpus import SECRET, huge_png, with_data_elsewhere
from tests.hostile_files.readers import Reader


def make_photographs(path: Path) -> None:
    """Write a picture."""
    done, encoded = cv2.imencode(
        path.suffix, np.arange(24 * 32 * 3, dtype=np.uint8).reshape(24, 32, 3)
    )
    assert done
    path.write_bytes(encoded.tobytes())


def read_photographs(path: Path) -> bytes:
    """Read a folder that holds this picture alone."""
    folder = path.with_name(f"photographs-{path.name}")
    folder.mkdir()
    (folder / path.name).symlink_to(path)
    return b"".join(image.tobytes() for image in load_images(folder, memory_bytes=1 << 24).items)


def make_training(path: Path) -> None:
    """Write the checkpoint of a training that has not taken a step."""
    settings = TrainingSettings()
    weights = initial_weights(variant_shape(settings.variant), 0)
    learner = FfdnetLearner(weights, torch.device("cpu"), settings.ema_decay)
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
            kernel = file.create_dataset(
                f"#refs#/k{number}", data=np.ones((n_out, n_in, 3, 3), np.float32)
            )
            bias = file.create_dataset(f"#refs#/b{number}", data=np.zeros(n_out, np.float32))
            group.create_dataset("weights", data=np.array([kernel.ref, bias.ref], h5py.ref_dtype))
            layers.append(group.ref)
        file.create_dataset("net/layers", data=np.array(layers, h5py.ref_dtype))


READERS = {
    "MatConvNet network": Reader(".mat", make_matconvnet, read_matconvnet),
    "photograph": Reader(".png", make_photographs, read_photographs),
    "training": Reader(".pt", make_training, export_training),
}


def crafted(folder: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield a photograph that declares more than it holds, and such trainings."""
    yield "photograph of 900 megapixels", huge_png(folder), "photograph"
    yield from _crafted_trainings(folder)
    yield from _crafted_matconvnet(folder)


def _crafted_matconvnet(folder: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield networks that show the content of another file."""
    kind, secret = "MatConvNet network", folder / "secret.bin"
    secret.write_bytes(SECRET)
    with h5py.File(secret.with_suffix(".h5"), "w") as file:
        file["#refs#/k0"] = np.zeros((8, 5, 3, 3), np.float32)
    yield from with_data_elsewhere(folder, secret, kind, READERS[kind], "#refs#/k0")
    path = folder / "unlinked.mat"
    make_matconvnet(path)
    with h5py.File(path, "r+") as file:  # only a reference names it
        node = file.create_dataset(
            "hidden", (8, 5, 3, 3), np.float32, external=[(str(secret), 0, 1 << 20)]
        )
        file["#refs#/0/weights"][0] = node.ref
        del file["hidden"]
    yield "external storage behind a reference", path, kind


def _crafted_trainings(folder: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield checkpoints of trainings whose values are of other kinds, or declare more than they
    hold.
    """
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
        "a session in words": {
            "sessions": [{"device": "CPU", "torch": "2", "steps": 1, "minutes": "two"}]
        },
        "a time in words": {"elapsed_s": "long"},
        "a learner without tensors": {"learner": {"parameters": "none", "gives_noise": True}},
        "a learner that holds itself": {"learner": {"parameters": nested}},
        "tensors of one number, repeated": {
            "learner": {"parameters": [torch.ones(1).expand(1 << 40)]}
        },
        "lists of the same lists": {"learner": {"parameters": laughs}},
    }
    for number, (name, change) in enumerate(changes.items()):
        content = torch.load(valid, weights_only=True)
        path = folder / f"training-{number}.pt"
        torch.save({**content, **change}, path)
        yield f"training with {name}", path, "training"


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), READERS, crafted)
