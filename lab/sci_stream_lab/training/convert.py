"""Import checkpoints of any known layout, and describe them."""

from __future__ import annotations

import dataclasses
import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch

from sci_stream.errors import ConfigError
from sci_stream.recon.denoisers.weights import (
    UNROLLED_LAYOUT,
    FfdnetWeights,
    Stage,
    is_unrolled,
    load_ffdnet,
    load_unrolled,
    read_metadata,
    save_ffdnet,
)
from sci_stream_lab.training.checkpoint import write_atomically
from sci_stream_lab.training.matconvnet import read_matconvnet
from sci_stream_lab.training.unrolled.network import UnrolledShape
from sci_stream_lab.training.variants import NetworkShape, variant_of

# Metadata entries that are derived from the tensors.
_DERIVED = frozenset({"layout", "output", "layers", "channels", "variant"})


@dataclass(frozen=True, slots=True)
class WeightsDescription:
    """Description of a checkpoint: layout, size, work per pixel, output of the last layer, hash and
    metadata.
    """

    path: Path
    origin: str
    variant: str | None
    shape: NetworkShape | UnrolledShape
    gives: str
    sha256: str
    about: Mapping[str, str]

    def rows(self) -> list[tuple[str, str]]:
        """Return the description as names and values, for a table."""
        return [
            ("file", str(self.path)),
            ("layout", self.origin),
            (
                "network",
                f"{self.variant or 'FFDNet'}: {self.shape.layers} layers of {self.shape.channels} "
                "channels",
            ),
            ("parameters", f"{self.shape.n_parameters}"),
            ("work", f"{self.shape.flop_per_pixel / 1e3:.1f} kFLOP a pixel"),
            ("gives", self.gives),
            ("SHA-256", self.sha256),
            *((key, value) for key, value in sorted(self.about.items()) if key not in _DERIVED),
        ]


def read_any(path: Path) -> FfdnetWeights:
    """Read weights of any layout: own, KAIR, IPOL, or MatConvNet (``.mat``).

    Raises
    ------
    WeightsError
        If the file is missing or has another layout.
    """
    return read_matconvnet(path) if path.suffix == ".mat" else load_ffdnet(path)


def describe_weights(path: Path) -> WeightsDescription:
    """Describe a checkpoint.

    Raises
    ------
    WeightsError
        If it is missing or has no known layout.
    """
    if is_unrolled(path):
        shape = UnrolledShape.of(load_unrolled(path))
        about = {**read_metadata(path), "stages": str(shape.stages)}
        return WeightsDescription(path, "own", "unrolled", shape, "video", file_sha256(path), about)
    weights = read_any(path)
    return WeightsDescription(
        path=path,
        origin=weights.origin,
        variant=variant_of(weights),
        shape=NetworkShape.of(weights),
        gives="noise" if weights.gives_noise else "image",
        sha256=file_sha256(path),
        about=read_metadata(path) if path.suffix == ".safetensors" else {},
    )


def import_weights(
    source: Path, path: Path, *, licence: str = "not stated", force: bool = False
) -> WeightsDescription:
    """Convert a checkpoint to own safetensors: shapes verified, normalisation folded, σ map last.

    Parameters
    ----------
    source
        Checkpoint in any known layout.
    path
        Output file, ``.safetensors``.
    licence
        Licence of the weights, stored in the file with the source's name and hash.
    force
        Replace an existing file.

    Raises
    ------
    ConfigError
        If the path does not end in ``.safetensors``, or exists and is not to be replaced.
    WeightsError
        If the source is unusable.
    StorageError
        If the file cannot be written.
    """
    if path.suffix != ".safetensors":
        raise ConfigError(
            "Weights are imported to safetensors",
            expected="a name ending in .safetensors",
            got=path,
        )
    if path.exists() and not force:
        raise ConfigError(
            f"{path} exists", hint="Choose another name, or use --force to replace it."
        )
    weights = read_any(source)
    about = {
        "imported_from": source.name,
        "imported_layout": weights.origin,
        "imported_sha256": file_sha256(source),
        "licence": licence,
    }
    write_own(weights, path, about)
    return describe_weights(path)


def write_own(
    weights: FfdnetWeights | Sequence[Stage],
    path: Path,
    about: Mapping[str, str],
    *,
    kernel_dtype: torch.dtype = torch.float32,
) -> None:
    """Write own safetensors, complete or not at all.

    Raises
    ------
    StorageError
        If writing fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        staged = Path(folder) / path.name
        if isinstance(weights, FfdnetWeights):
            save_ffdnet(weights, staged, about=about, kernel_dtype=kernel_dtype)
        else:
            save_unrolled(weights, staged, about=about, kernel_dtype=kernel_dtype)
        content = staged.read_bytes()
    write_atomically(path, lambda file: file.write(content))


def save_unrolled(
    stages: Sequence[Stage],
    path: Path,
    *,
    about: Mapping[str, str],
    kernel_dtype: torch.dtype = torch.float32,
) -> None:
    """Write unrolled stages as own safetensors; the metadata keep ``about`` and the shape."""
    tensors: dict[str, torch.Tensor] = {}
    for k, stage in enumerate(stages):
        tensors[f"stage.{k}.step"] = stage.step
        for n, (kernel, bias) in enumerate(zip(stage.kernels, stage.biases, strict=True)):
            tensors[f"stage.{k}.conv.{n}.weight"] = kernel.to(kernel_dtype)
            tensors[f"stage.{k}.conv.{n}.bias"] = bias
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    shape = {
        name: str(value) for name, value in dataclasses.asdict(UnrolledShape.of(stages)).items()
    }
    safetensors.torch.save_file(tensors, path, {**about, "layout": UNROLLED_LAYOUT, **shape})


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
