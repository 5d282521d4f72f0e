"""``sci-stream demo``: write a rig that suits this machine."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from sci_stream.config import load_rig
from sci_stream.config.toml_text import table_text
from sci_stream.errors import ConfigError, EnvironmentFault, SciStreamError
from sci_stream.nodes.runtime.runtime_folder import demo_rig_file, make_private_folder
from sci_stream.parameters import DEMO
from sci_stream.recon.backend.device import describe_device, pick_device
from sci_stream.recon.backend.half_precision import Precision
from sci_stream.recon.denoisers.registry import frame_network, make_denoiser
from sci_stream.web.control_client import RigControl

# Largest first: the demo shows the largest video that the device computes in time.
_SIZES_PX = (512, 384, 256, 192, 128)
_USUAL_PX = 256
_N_FRAMES = 8
# Target time of a reconstruction: the longest interval between two updates.
_SOLVE_S = 0.6
# Warm iterations of our own network that a device has to have time for: six have 0.1 dB more than
# four in 1.4 of the time (lab/research/speed-cpu.md).
_NETWORK_ITERATIONS: tuple[int, ...] = (6, 4)
# A node spends up to so many while no snapshot waits.
_MAX_ITERATIONS = 12
# Share of its time in which the device solves. The other half is for the other nodes, the browser
# and programs that start later.
_LOAD = 0.5
# Faster, the eye sees no difference and the recording grows.
_RATE_MAX_HZ = 30.0
# The longest of these last solves counts: a busy machine's solves differ by a factor of two.
_PACED_OVER = 8
# A rate falls if it is a fifth too high, and rises if it is a third too low. With a fifth there,
# too, it changed 23 times in ten minutes and not 13 (solves that scatter by half, twenty runs).
_FALLS_FROM = 0.8
_RISES_FROM = 1.5
# Steps up: by a quarter, after a time without a step down that shows more than a lull.
_STEP_UP = 1.25
_CALM_S = 5.0
_POLL_S = 0.5
# Denoising passes whose mean counts: other programs slow down some of them.
_PASSES = 4
# Snapshots that wait while the camera slows down: those of some seconds.
_QUEUE = 64
_MAX_WAIT_S = 60.0
_SCENE = "splash"
# A demo that is left running must not fill the disk.
_RECORD_MIB = 2048
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
    """Prior, iterations and size that a device reconstructs in ``solve_s``."""

    prior: str
    iterations: int
    size_px: int
    solve_s: float


def _plan(
    device: torch.device, sizes_px: tuple[int, ...], report: Callable[[str], None]
) -> _DemoPlan:
    """Choose the best video that the device computes in time.

    The largest of the descending sizes that is solved in the target time, with six iterations or
    four; the least of them all.
    """
    prior = frame_network(device)
    measured_px = min(_USUAL_PX, sizes_px[0])
    once_s = _seconds_per_iteration(device, prior, measured_px, report)
    for px, iterations in itertools.product(sizes_px, _NETWORK_ITERATIONS):
        # A pass takes as long as it has pixels, or less.
        solve_s = iterations * once_s * (px / measured_px) ** 2
        if solve_s <= _SOLVE_S:
            break
    return _DemoPlan(prior, iterations, px, solve_s)


def _seconds_per_iteration(
    device: torch.device, prior: str, size: int, report: Callable[[str], None]
) -> float:
    """Time one denoising pass over the frames of a snapshot, which dominates an iteration."""
    denoise = make_denoiser(prior, device, None, Precision.AUTO)  # as in a reconstruct node
    generator = torch.Generator().manual_seed(0)
    frames = torch.rand((4 * _N_FRAMES, size // 2, size // 2), generator=generator).to(device)
    report(f"measuring {prior} at {size}×{size}")
    denoise(frames, 0.05)  # sets up libraries
    start_s = time.perf_counter()
    for _ in range(_PASSES):
        denoise(frames, 0.05)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return (time.perf_counter() - start_s) / _PASSES


def demo_rig(
    *,
    scene: str,
    size: int,
    device: str,
    record: bool,
    open_browser: bool,
    report: Callable[[str], None],
    solver: str = "",
    weights: Path | None = None,
) -> tuple[Path, str]:
    """Write a rig file that suits this machine; return its path and a sentence about the choice.

    ``scene`` is one of the simulated camera or a video file, empty for the default one; ``size`` is
    height and width, px, 0 for the largest that this device reconstructs in the target time;
    ``report`` receives a line before each measurement, which takes seconds on a busy machine;
    ``solver`` is one by name, empty for the one that suits the device, and ``weights`` its own.
    """
    chosen = pick_device(device)
    sizes_px = (size,) if size else _SIZES_PX
    if solver:  # the camera finds the rate, see `pace_camera`
        code = solver.rpartition(":")[0] or solver
        if Path(code).is_file():  # the rig file is in another folder
            solver = f"{Path(code).resolve()}{solver.removeprefix(code)}"
        plan = _DemoPlan(solver, 0, size or _USUAL_PX, _SOLVE_S)
    else:
        plan = _plan(chosen, sizes_px, report)
    prior, iterations, size_px, solve_s = plan
    rate_hz = rate_for(solve_s)
    solving = {
        "solver": prior,
        "iterations": iterations and _MAX_ITERATIONS,
        "weights": weights,
    }
    folder = Path(tempfile.mkdtemp(prefix="sci-stream-demo-"))
    path = folder / "demo.toml"
    scene_file = Path(scene)
    filmed = str(scene_file.resolve()) if scene and scene_file.exists() else scene or _SCENE
    recordings = Path("recordings").resolve()
    # Not the default ports: a demo must run next to a rig. Fixed ones: a restarted node must get
    # its port back.
    taken = set[int]()
    tables: dict[str, dict[str, object]] = {
        "rig": {"name": "demo"},
        "camera": {
            "driver": "simulated",
            "options": {
                "width_px": size_px,
                "height_px": size_px,
                "n_frames": _N_FRAMES,
                "snapshot_rate_hz": rate_hz,
                "truth": True,
                "scene": filmed,
            },
        },
        "reconstruct": {
            "devices": [device],
            **{key: value for key, value in solving.items() if value},
        },
        # It waits for a machine that became slow, until the camera is as slow.
        "policy": {"queue_snapshots": _QUEUE, "max_wait_s": _MAX_WAIT_S},
        "network": {
            name: f"tcp://127.0.0.1:{free_port(taken)}" for name in ("dispatch", "results", "taps")
        },
        "record": {"enabled": record, "folder": recordings, "stop_after_mib": _RECORD_MIB},
        "preview": {
            "port": free_port(taken, _PAGE_PORT),
            "open_browser": open_browser,
            # Without coloured fringes. It takes 9 ms of a core for eight frames of 256×256 pixels.
            "demosaic": "directional" if size_px <= _USUAL_PX else "bilinear",
        },
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
    speed = f", {iterations} iterations in {solve_s:.2f} s" if iterations else ""
    why = (
        f"{describe_device(chosen)}: {prior}{speed} at {size_px}×{size_px}\n"
        f"{rate_hz:g} exposures/s × {_N_FRAMES} = {rate_hz * _N_FRAMES:.2g} video frames/s\n"
        f"{recorded}\n"
        f"scene: {filmed}; others by --scene, or on the page: Instrument, Scene"
    )
    return path, why


class Pace:
    """The rate of a demo's camera: half of the machine's solves, down at once and up slowly.

    ``iterations`` shall fit: an overloaded node spends fewer, and one with time to spare more.
    """

    def __init__(self, rate_hz: float, iterations: int, now_s: float) -> None:
        self.rate_hz = rate_hz
        self._iterations = iterations
        self._recent_s = deque[float](maxlen=_PACED_OVER)
        self._solved = 0
        self._idle_s = now_s
        self._stepped_s = now_s

    def follow(self, status: Mapping[str, Any], now_s: float) -> float:
        """Take a status of the rig; return the rate for it, Hz."""
        ledger = status.get("ledger", {})
        solved = ledger.get("reconstructed", 0)
        if solved != self._solved:
            self._solved = solved
            self._idle_s = now_s
            share = self._iterations / max(1, status["iterations"]) if self._iterations else 1.0
            self._recent_s.append(status["solve_ms"] / 1e3 * share)
        if not ledger.get("in_flight"):
            self._idle_s = now_s
        if not self._recent_s:
            return self.rate_hz  # the node starts
        # A solve that goes on takes at least as long as it has taken.
        longest_s = max([now_s - self._idle_s, *self._recent_s])
        wanted_hz = rate_for(longest_s)
        if wanted_hz < self.rate_hz * _FALLS_FROM:
            self.rate_hz = wanted_hz
            self._stepped_s = now_s
        elif wanted_hz > self.rate_hz * _RISES_FROM and now_s - self._stepped_s > _CALM_S:
            self.rate_hz = min(wanted_hz, rounded(self.rate_hz * _STEP_UP))
            self._stepped_s = now_s
        return self.rate_hz


def pace_camera(path: Path, wait: Callable[[float], None] = time.sleep) -> None:
    """Keep the camera of a demo at the machine's speed, which other programs change; end once an
    operator sets it.
    """
    rig = load_rig(path)
    control = RigControl(f"http://127.0.0.1:{rig.preview.port}", who=DEMO)
    rate_hz = float(str(rig.camera.options["snapshot_rate_hz"]))
    fitting = _NETWORK_ITERATIONS[0] if rig.reconstruct.iterations else 0
    pace = Pace(rate_hz, fitting, time.monotonic())
    while True:
        wait(_POLL_S)
        try:
            now_hz = control.nodes()["acquire"].parameters["snapshot_rate_hz"].value
            if now_hz != rate_hz:
                return
            wanted_hz = pace.follow(control.status(), time.monotonic())
            if wanted_hz != rate_hz:
                control.set("acquire", snapshot_rate_hz=wanted_hz)
                rate_hz = wanted_hz
        except (SciStreamError, KeyError):
            continue  # it starts, or ends


def rate_for(solve_s: float) -> float:
    """Return the rate of a demo's camera on a device that solves a snapshot in this time, Hz."""
    return rounded(min(_RATE_MAX_HZ, _LOAD / solve_s))


def rounded(rate_hz: float) -> float:
    """Return a rate with two digits: more would be no information."""
    return float(f"{rate_hz:.2g}")
