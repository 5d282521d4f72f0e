"""The sizes in which FFDNet comes, by name."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from sci_stream.errors import ConfigError
from sci_stream.recon.denoisers.variants import MOSAIC
from sci_stream.recon.denoisers.weights import FRAME_INPUTS, SUBPIXELS, FfdnetWeights


@dataclass(frozen=True, slots=True)
class NetworkShape:
    """Numbers of 3×3 convolutions of a grey FFDNet and of channels between them; ``layers`` ≥ 2."""

    layers: int
    channels: int

    @classmethod
    def of(cls, weights: FfdnetWeights) -> NetworkShape:
        """Return the shape of a network."""
        return cls(weights.layers, weights.channels)

    @property
    def convolutions(self) -> tuple[tuple[int, int], ...]:
        """Channels in and out of each layer: from four sub-pixels and σ to four sub-pixels."""
        return tuple(
            itertools.pairwise((FRAME_INPUTS, *[self.channels] * (self.layers - 1), SUBPIXELS))
        )

    @property
    def n_parameters(self) -> int:
        """Kernel entries and biases."""
        return sum(9 * c_in * c_out + c_out for c_in, c_out in self.convolutions)

    @property
    def flop_per_pixel(self) -> float:
        """Multiplications and additions for a pixel of the full-resolution frame; biases and ReLU
        not counted.
        """
        return sum(2 * 9 * c_in * c_out for c_in, c_out in self.convolutions) / SUBPIXELS


VARIANTS: dict[str, NetworkShape] = {
    "ffdnet": NetworkShape(layers=15, channels=64),
    # A tenth of the work. Channels in sixteens fill a vector register: 24 would cost a CPU the same
    # time as 32.
    "ffdnet-lite": NetworkShape(layers=7, channels=32),
}
"""The published network, and a small one for CPUs and small GPUs."""


def variant_shape(name: str) -> NetworkShape:
    """Look a variant up; those for mosaics have the shapes of the grey ones.

    Raises
    ------
    ConfigError
        If there is none of this name.
    """
    try:
        return VARIANTS[name.removesuffix(MOSAIC)]
    except KeyError:
        raise ConfigError(
            "Unknown network", expected=f"one of {', '.join(VARIANTS)}", got=repr(name)
        ) from None


def variant_of(weights: FfdnetWeights) -> str | None:
    """Name the variant that a network is of; None if it is of none."""
    shape = NetworkShape.of(weights)
    name = next((name for name, variant in VARIANTS.items() if variant == shape), None)
    return name + MOSAIC if name and weights.mosaic else name
