"""Settings of the solver and their defaults."""

from __future__ import annotations

import pytest
import torch

from sci_stream.errors import ConfigError
from sci_stream.recon.denoisers.registry import DENOISERS
from sci_stream.recon.settings import SolverSettings, default_settings


@pytest.mark.parametrize("denoiser", sorted(DENOISERS))
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_denoiser_has_defaults_on_every_device(denoiser: str, device: str) -> None:
    settings = default_settings(torch.device(device), denoiser)
    assert 1 <= settings.min_iterations <= settings.iterations


def test_slow_prior_has_fewer_iterations_on_slow_device() -> None:
    cpu, cuda = (default_settings(torch.device(name), "ffdnet") for name in ("cpu", "cuda"))
    assert cpu.iterations < cuda.iterations


def test_single_frame_denoisers_run_along_time_by_default() -> None:
    along_time = {
        name for name in DENOISERS if default_settings(torch.device("cpu"), name).along_time
    }
    assert along_time == DENOISERS.keys() - {"identity"}


def test_unknown_denoiser_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=rf"{', '.join(sorted(DENOISERS))}.*'bm3d'"):
        default_settings(torch.device("cpu"), "bm3d")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"iterations": 3, "min_iterations": 4}, "min_iterations = 4"),
        ({"min_iterations": 0}, "min_iterations = 0"),
        ({"sigma_first": 50.0}, "0–255 scale"),
        ({"sigma_first": 0.01, "sigma_last": 0.02}, "sigma_last = 0.02"),
        ({"sigma_last": 0.0}, "sigma_last = 0.0"),
        ({"sigma_first": float("nan")}, "nan"),
        ({"relaxation": 2.0}, "relaxation.*2.0"),
        ({"correlated": -1}, ">= 0.*-1"),
    ],
)
def test_value_out_of_range_is_named(wrong: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        SolverSettings(**wrong)  # type: ignore[arg-type]  # the values are of mixed types, one a case
