"""``sci-stream demo``: write a rig that suits this machine."""

from __future__ import annotations

import socket
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import torch

from sci_stream.recon.backend.device import describe_device, pick_device
from sci_stream.recon.denoisers.half_precision import Precision
from sci_stream.recon.denoisers.registry import make_denoiser
from sci_stream.recon.engine import default_settings

_SIZES_PX = (512, 384, 256)
_N_FRAMES = 8
# Target time of a reconstruction: the longest interval between two updates.
_SOLVE_S = 0.6
# Limit for the learned prior, whose better picture is worth a longer interval on slow devices.
_PATIENT_S = 2.0
# With our own network and warm starts; more do not help on a noisy camera (research/schedule-research.md).
_NETWORK_ITERATIONS = 12
# Camera rate as a share of the device's speed, since all nodes share the machine.
_RATE_MARGIN = 0.7
_RATE_MOST_HZ = 30.0
# Minimum camera rate: on slower devices the budget reduces the iterations.
_RATE_LEAST_HZ = 0.5
_SCENE = "fast"
_IN_WORDS = {"tv": "TV", "ffdnet": "FFDNet", "ffdnet-lite": "ffdnet-lite"}


def free_port() -> int:
    """Return a free TCP port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class _DemoPlan(NamedTuple):
    """Prior, iterations and size that a device reconstructs within the target time."""

    prior: str
    iterations: int
    size_px: int
    solve_s: float


def _plan(device: torch.device, weights: Path | None, sizes_px: tuple[int, ...]) -> _DemoPlan:
    """Choose prior and size: a network if the device is fast enough, otherwise total variation."""
    if weights is not None:
        return _largest_in_time(device, "ffdnet", weights, default_settings(device, "ffdnet").iterations, sizes_px)
    learnt = _largest_in_time(device, "ffdnet-lite", None, _NETWORK_ITERATIONS, sizes_px)
    if learnt.solve_s <= _PATIENT_S:
        return learnt
    return _largest_in_time(device, "tv", None, default_settings(device, "tv").iterations, sizes_px)


def _seconds_per_iteration(device: torch.device, prior: str, weights: Path | None, size: int) -> float:
    """Time one denoising pass over the frames of a snapshot, which dominates an iteration."""
    denoise = make_denoiser(prior, device, weights, Precision.AUTO)  # as in a reconstruct node
    generator = torch.Generator().manual_seed(0)
    frames = torch.rand((4 * _N_FRAMES, size // 2, size // 2), generator=generator).to(device)
    best_s = float("inf")
    for _ in range(3):
        start_s = time.perf_counter()
        denoise(frames, 0.05)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        # The best of three: the first call includes the set-up of libraries.
        best_s = min(best_s, time.perf_counter() - start_s)
    return best_s


def _largest_in_time(
    device: torch.device, prior: str, weights: Path | None, iterations: int, sizes_px: tuple[int, ...]
) -> _DemoPlan:
    """Return the largest of the descending sizes within the target time, at least the last, with its time."""
    for size_px in reversed(sizes_px):
        candidate_s = iterations * _seconds_per_iteration(device, prior, weights, size_px)
        if size_px != sizes_px[-1] and candidate_s > _SOLVE_S:
            break
        plan = _DemoPlan(prior, iterations, size_px, candidate_s)
    return plan


def _toml_string(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def demo_rig(
    *, scene: str, weights: Path | None, size: int, device: str, record: bool, open_browser: bool
) -> tuple[Path, str]:
    """Write a rig file that suits this machine; return its path and a sentence about the choice.

    Parameters
    ----------
    scene
        A scene of the simulated camera or a video file; empty for the default one.
    weights
        FFDNet checkpoint; None for our own small network, or the TV prior on a device that is too slow for it.
    size
        Height and width in pixels; 0 for the largest that this device reconstructs in the target time.
    device, record, open_browser
        As in the rig.
    """
    chosen = pick_device(device)
    prior, iterations, size_px, solve_s = _plan(chosen, weights, (size,) if size else _SIZES_PX)
    rate_hz = max(_RATE_LEAST_HZ, min(_RATE_MOST_HZ, _RATE_MARGIN / solve_s))
    folder = Path(tempfile.mkdtemp(prefix="sci-stream-demo-"))
    path = folder / "demo.toml"
    # Not the defaults: a demo must run next to a rig on the same machine.
    ports = {name: free_port() for name in ("dispatch", "results", "taps")}
    scene_file = Path(scene)
    filmed = str(scene_file.resolve()) if scene and scene_file.exists() else scene or _SCENE
    lines = [
        "# Written by `sci-stream demo` for this machine; run it again with: sci-stream run THIS_FILE",
        '[rig]\nname = "demo"\n',
        '[camera]\ndriver = "simulated"\n',
        "[camera.options]",
        f"width_px = {size_px}\nheight_px = {size_px}\nn_frames = {_N_FRAMES}",
        f"snapshot_rate_hz = {rate_hz:.2f}\ntruth = true",
        f"scene = {_toml_string(filmed)}\n",
        f'[reconstruct]\ndenoiser = "{prior}"\ndevices = ["{device}"]\niterations = {iterations}',
        f"weights = {_toml_string(str(weights.resolve()))}\n" if weights else "",
        "[network]",
        *(f'{name} = "tcp://127.0.0.1:{port}"' for name, port in ports.items()),
        f"\n[record]\nenabled = {str(record).lower()}\nfolder = {_toml_string(str(Path('recordings').resolve()))}\n",
        f"[preview]\nport = 0\nopen_browser = {str(open_browser).lower()}\n",
        "[health]\nacquire_port = 0\nsink_port = 0\nreconstruct_port = 0",
    ]
    path.write_text("\n".join(line for line in lines if line) + "\n")
    why = (
        f"{describe_device(chosen)}: {size_px}×{size_px} pixels, B = {_N_FRAMES}, Bayer; {_IN_WORDS[prior]} prior, "
        f"up to {iterations} iterations, {rate_hz:.1f} snapshots/s = {rate_hz * _N_FRAMES:.0f} video frames/s"
    )
    return path, why
