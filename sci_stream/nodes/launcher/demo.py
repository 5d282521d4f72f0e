"""``sci-stream demo``: write a rig that suits this machine."""

from __future__ import annotations

import contextlib
import random
import socket
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from sci_stream.config import load_rig
from sci_stream.config.toml_text import table_text
from sci_stream.errors import ConfigError, EnvironmentFault, SciStreamError
from sci_stream.nodes.runtime.runtime_folder import demo_rig_file, make_private_folder
from sci_stream.recon.backend.device import describe_device, pick_device
from sci_stream.recon.backend.half_precision import Precision
from sci_stream.recon.denoisers.registry import frame_network, make_denoiser
from sci_stream.recon.settings import default_settings
from sci_stream.web.control_client import RigControl

# Largest first: the demo shows the largest video that the device computes in time.
_SIZES_PX = (512, 384, 256)
_N_FRAMES = 8
# Target time of a reconstruction: the longest interval between two updates.
_SOLVE_S = 0.6
# Limit for the learned prior, whose better picture is worth a longer interval on slow devices.
_LONGEST_SOLVE_S = 2.0
# With our own network and warm starts; more do not help on a noisy camera
# (lab/research/schedule-research.md). Four warm iterations give 26.5 dB on the published Crash,
# hardly less than twelve: a slow device takes fewer before it takes TV.
_NETWORK_ITERATIONS: tuple[int, ...] = (12, 8, 6, 4)
# Camera rate as a share of the device's speed, since all nodes share the machine.
_RATE_MARGIN = 0.7
# Faster, the eye sees no difference and the recording grows.
_RATE_MAX_HZ = 30.0
# Minimum camera rate: on slower devices the budget reduces the iterations.
_RATE_MIN_HZ = 0.5
# The rate follows the median of the last solves, seen once a second, when it is wrong by so much:
# of three at least, so that it is right soon after the start, of eight at most.
_FEWEST_SOLVES, _PACED_OVER, _PACED_FROM = 3, 8, 0.3
_SCENE = "fast"
# A demo that is left running must not fill the disk.
_RECORD_MIB = 2048
_IN_WORDS = {
    "tv": "total variation (TV)",
    "ffdnet": "the learned prior FFDNet",
    "ffdnet-lite": "the learned prior ffdnet-lite",
}
# Below the ports that Linux gives to outgoing connections: nothing takes one while a node restarts.
_PORTS = (12_000, 32_000)
_MAX_TRIES = 1000
_PAGE_PORT = 8765


def free_port(taken: set[int], wish: int | None = None) -> int:
    """Return a free TCP port of this machine, if possible the wished one; it joins ``taken``, which
    are not returned.

    Raises `EnvironmentFault` if none is found.
    """
    for number in range(_MAX_TRIES):
        port = wish if wish and not number else random.SystemRandom().randrange(*_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in taken:
                taken.add(port)
                return port
    raise EnvironmentFault(
        "No free TCP port was found", expected=f"one from {_PORTS[0]} to {_PORTS[1]}"
    )


class _DemoPlan(NamedTuple):
    """Prior, iterations and size that a device reconstructs in ``solve_s``, and why they were
    chosen.
    """

    prior: str
    iterations: int
    size_px: int
    solve_s: float
    why: str


def _plan(
    device: torch.device, sizes_px: tuple[int, ...], report: Callable[[str], None]
) -> _DemoPlan:
    """Choose prior and size: a network unless even a few iterations take too long, otherwise total
    variation.

    The size is the largest of the descending ones that takes at most the target time, at least the
    last.
    """
    size_px = sizes_px[-1]
    prior, choices = frame_network(device), _NETWORK_ITERATIONS
    once_s = _seconds_per_iteration(device, prior, size_px, report)
    iterations = next((n for n in choices if n * once_s <= _LONGEST_SOLVE_S), choices[-1])
    why = ""
    if iterations * once_s > _LONGEST_SOLVE_S:
        why = (
            f"; {_IN_WORDS[prior]} would take {iterations * once_s:.1f} s for {iterations} "
            "iterations"
        )
        prior, iterations = "tv", default_settings(device, "tv").iterations
        once_s = _seconds_per_iteration(device, prior, size_px, report)
    # A pass takes as long as it has pixels, or less.
    times_s = {px: iterations * once_s * (px / size_px) ** 2 for px in sizes_px}
    size_px = next((px for px in sizes_px if times_s[px] <= _SOLVE_S), size_px)
    solve_s = times_s[size_px]
    if larger := [px for px in sizes_px if px > size_px]:
        why = f"; {larger[-1]}×{larger[-1]} would take {times_s[larger[-1]]:.1f} s{why}"
    why = (
        f"{_IN_WORDS[prior]}: {iterations} iterations take {solve_s:.2f} s at "
        f"{size_px}×{size_px}{why}"
    )
    return _DemoPlan(prior, iterations, size_px, solve_s, why)


def _seconds_per_iteration(
    device: torch.device, prior: str, size: int, report: Callable[[str], None]
) -> float:
    """Time one denoising pass over the frames of a snapshot, which dominates an iteration."""
    denoise = make_denoiser(prior, device, None, Precision.AUTO)  # as in a reconstruct node
    # The time in which this thread computes: other programs may be done soon, and `pace_camera`
    # follows them.
    clock = time.thread_time if device.type == "cpu" else time.perf_counter
    generator = torch.Generator().manual_seed(0)
    frames = torch.rand((4 * _N_FRAMES, size // 2, size // 2), generator=generator).to(device)
    best_s = float("inf")
    report(f"measuring {_IN_WORDS[prior]} at {size}×{size}")
    for _ in range(3):
        start_s = clock()
        denoise(frames, 0.05)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        # The best of three: the first call includes the set-up of libraries.
        best_s = min(best_s, clock() - start_s)
    return best_s


def demo_rig(
    *,
    scene: str,
    size: int,
    device: str,
    record: bool,
    open_browser: bool,
    report: Callable[[str], None],
) -> tuple[Path, str]:
    """Write a rig file that suits this machine; return its path and a sentence about the choice.

    ``scene`` is one of the simulated camera or a video file, empty for the default one; ``size`` is
    height and width, px, 0 for the largest that this device reconstructs in the target time;
    ``report`` receives a line before each measurement, which takes seconds on a busy machine.
    """
    chosen = pick_device(device)
    prior, iterations, size_px, solve_s, reason = _plan(
        chosen, (size,) if size else _SIZES_PX, report
    )
    rate_hz = rate_for(solve_s)
    folder = Path(tempfile.mkdtemp(prefix="sci-stream-demo-"))
    path = folder / "demo.toml"
    scene_file = Path(scene)
    filmed = str(scene_file.resolve()) if scene and scene_file.exists() else scene or _SCENE
    recordings = Path("recordings").resolve()
    # Not the default ports: a demo must run next to a rig. Fixed ones: a restarted node must get
    # its port back.
    taken: set[int] = set()
    tables: dict[str, dict[str, object]] = {
        "rig": {"name": "demo"},
        "camera": {
            "driver": "simulated",
            "options": {
                "width_px": size_px,
                "height_px": size_px,
                "n_frames": _N_FRAMES,
                "snapshot_rate_hz": round(rate_hz, 2),
                "truth": True,
                "scene": filmed,
            },
        },
        "reconstruct": {"denoiser": prior, "devices": [device], "iterations": iterations},
        "network": {
            name: f"tcp://127.0.0.1:{free_port(taken)}" for name in ("dispatch", "results", "taps")
        },
        "record": {"enabled": record, "folder": recordings, "stop_after_mib": _RECORD_MIB},
        "preview": {"port": free_port(taken, _PAGE_PORT), "open_browser": open_browser},
        "health": {
            name: free_port(taken) for name in ("acquire_port", "sink_port", "reconstruct_port")
        },
    }
    text = (
        "# Written by `sci-stream demo` for this machine; run it again with: sci-stream run "
        "THIS_FILE\n" + "\n".join(table_text(name, table) for name, table in tables.items())
    )
    try:
        path.write_text(text, "utf-8")
    except UnicodeEncodeError:
        raise ConfigError(
            "The name of this folder or of the scene is no Unicode, which a rig file needs",
            got=ascii(str(recordings)),
            hint="Start the demo in another folder.",
        ) from None
    with contextlib.suppress(OSError):  # only a shorter name for it
        make_private_folder(demo_rig_file().parent)
        demo_rig_file().write_text(text, "utf-8")
    recorded = (
        f"recording up to {_RECORD_MIB >> 10} GiB to {recordings}" if record else "no recording"
    )
    why = (
        f"{describe_device(chosen)}: {size_px}×{size_px} pixels, B = {_N_FRAMES}, Bayer; "
        f"{rate_hz:.1f} snapshots/s = "
        f"{rate_hz * _N_FRAMES:.0f} video frames/s; {recorded}\n"
        f"scene: {filmed}; others by --scene, or on the page: Instrument, Scene\n"
        f"chosen: {reason} (aim: {_SOLVE_S:g} s, at most {_LONGEST_SOLVE_S:g} s)"
    )
    return path, why


def pace_camera(path: Path, wait: Callable[[float], None] = time.sleep) -> None:
    """Keep the camera of a demo at the machine's speed, which other programs change; end once an
    operator sets it.
    """
    rig = load_rig(path)
    control = RigControl(f"http://127.0.0.1:{rig.preview.port}", who="the demo")
    recent_s: deque[float] = deque(maxlen=_PACED_OVER)
    paced_hz = 0.0
    while True:
        wait(1.0)
        try:
            status = control.status()
            solve_ms, iterations = status.get("solve_ms"), status.get("iterations")
            camera = control.nodes().get("acquire")
            if not (
                isinstance(solve_ms, float) and isinstance(iterations, int) and camera is not None
            ):
                continue
            # Under load there are fewer iterations: all of them shall fit.
            recent_s.append(
                solve_ms / 1e3 * max(1.0, (rig.reconstruct.iterations or iterations) / iterations)
            )
            now_hz = float(camera.parameters["snapshot_rate_hz"].value)
            if now_hz != (paced_hz := paced_hz or now_hz):
                return
            wanted_hz = round(rate_for(statistics.median(recent_s)), 2)
            if len(recent_s) >= _FEWEST_SOLVES and abs(wanted_hz - now_hz) > _PACED_FROM * now_hz:
                control.set("acquire", snapshot_rate_hz=wanted_hz)
                paced_hz = wanted_hz
                recent_s.clear()
        except (SciStreamError, KeyError):
            continue  # it starts, or ends


def rate_for(solve_s: float) -> float:
    """Return the rate of a demo's camera on a device that solves a snapshot in this time, Hz."""
    return max(_RATE_MIN_HZ, min(_RATE_MAX_HZ, _RATE_MARGIN / solve_s))
