"""The weights that ship with the product, by the name of their network."""

from __future__ import annotations

from pathlib import Path

from sci_stream.errors import ConfigError, WeightsError

_WEIGHTS_FOLDER = Path(__file__).parent / "weights_data"

MOSAIC = "-mosaic"
"""End of the names of networks of Bayer mosaics, after that of their grey siblings."""

# The shipped networks, each with the command that trains it.
_TRAINED_BY = {
    "ffdnet": "`sci-stream train PHOTOS RUN --variant ffdnet --minutes 60`",
    "ffdnet-lite": "`sci-stream train PHOTOS RUN --variant ffdnet-lite --minutes 60`",
    "ffdnet-mosaic": "`sci-stream train PHOTOS RUN --variant ffdnet-mosaic --minutes 60`",
    "ffdnet-lite-mosaic": "`sci-stream train PHOTOS RUN --variant ffdnet-lite-mosaic --minutes 60`",
    "unrolled": "`sci-stream train PHOTOS RUN --variant unrolled --clips CLIPS`, which takes days",
}


def has_weights(name: str) -> bool:
    """Return whether weights of this network ship with the product."""
    return (_WEIGHTS_FOLDER / f"{name}.safetensors").is_file()


def shipped_weights(name: str) -> Path:
    """Return the checkpoint of a variant that ships with the product; its model card has the same
    name (``.md``).

    Raises `ConfigError` if there is no such variant; `WeightsError` if its weights did not come
    with this installation.
    """
    if name not in _TRAINED_BY:
        raise ConfigError(
            "Unknown network", expected=f"one of {', '.join(_TRAINED_BY)}", got=repr(name)
        )
    path = _WEIGHTS_FOLDER / f"{name}.safetensors"
    if not path.is_file():
        raise WeightsError(
            f"This installation has no weights for {name!r}",
            expected=str(path),
            got="no such file",
            hint=f"Set the path of a checkpoint, or train one: {_TRAINED_BY[name]}, then "
            "`sci-stream weights export`.",
        )
    return path
