"""Bring checkpoints of any known layout into the own form, and say what one is."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from sci_stream.errors import ConfigError
from sci_stream.recon.denoisers.variants import NetworkShape, variant_of
from sci_stream.recon.denoisers.weights import FfdnetWeights, load_ffdnet, read_metadata, save_ffdnet
from sci_stream.storage.matconvnet import read_matconvnet
from sci_stream.training.checkpoint import write_atomically

_SAID_ALREADY = frozenset({"layout", "output", "layers", "channels", "variant"})
"""Metadata entries derived from the tensors."""


@dataclass(frozen=True, slots=True)
class WeightsDescription:
    """Description of a checkpoint: layout, size, work, what its last layer gives, its hash and what it says."""

    path: Path
    origin: str
    variant: str | None
    shape: NetworkShape
    gives: str
    sha256: str
    about: Mapping[str, str]

    def rows(self) -> list[tuple[str, str]]:
        """Return the description as names and values, for a table."""
        return [
            ("file", str(self.path)),
            ("layout", self.origin),
            ("network", f"{self.variant or 'FFDNet'}: {self.shape.layers} layers of {self.shape.channels} channels"),
            ("parameters", f"{self.shape.n_parameters}"),
            ("work", f"{self.shape.flop_per_pixel / 1e3:.1f} kFLOP a pixel"),
            ("gives", self.gives),
            ("SHA-256", self.sha256),
            *((key, value) for key, value in sorted(self.about.items()) if key not in _SAID_ALREADY),
        ]


def read_any(path: Path) -> FfdnetWeights:
    """Read weights of any layout: own, KAIR, IPOL, or MatConvNet by its ``.mat``.

    Raises
    ------
    WeightsError
        If the file is missing or of none of them.
    """
    return read_matconvnet(path) if path.suffix == ".mat" else load_ffdnet(path)


def describe_weights(path: Path) -> WeightsDescription:
    """Say what a checkpoint is.

    Raises
    ------
    WeightsError
        If it is missing or of no known layout.
    """
    weights = read_any(path)
    return WeightsDescription(
        path=path,
        origin=weights.origin,
        variant=variant_of(weights),
        shape=NetworkShape(weights.layers, weights.channels),
        gives="noise" if weights.gives_noise else "image",
        sha256=file_sha256(path),
        about=read_metadata(path) if path.suffix == ".safetensors" else {},
    )


def import_weights(source: Path, path: Path, *, licence: str = "not stated", force: bool = False) -> WeightsDescription:
    """Write a foreign checkpoint as own safetensors: shapes verified, normalisation folded, σ map last.

    Parameters
    ----------
    source
        In any known layout.
    path
        Where to, ``.safetensors``.
    licence
        Of the weights, kept in the file with the source's name and hash.
    force
        Replace a file that is there.

    Raises
    ------
    ConfigError
        If the path does not end in ``.safetensors``, or is there and not to be replaced.
    WeightsError
        If the source cannot be used.
    StorageError
        If the file cannot be written.
    """
    if path.suffix != ".safetensors":
        raise ConfigError("Weights are imported to safetensors", expected="a name ending in .safetensors", got=path)
    if path.exists() and not force:
        raise ConfigError(f"{path} exists", hint="Choose another name, or use --force to replace it.")
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
    weights: FfdnetWeights, path: Path, about: Mapping[str, str], *, kernel_dtype: torch.dtype = torch.float32
) -> None:
    """Write own safetensors, whole or not at all.

    Raises
    ------
    StorageError
        If it cannot be written.
    """
    with tempfile.TemporaryDirectory() as folder:
        staged = Path(folder) / path.name
        save_ffdnet(weights, staged, about=about, kernel_dtype=kernel_dtype)
        content = staged.read_bytes()
    write_atomically(path, lambda file: file.write(content))


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
