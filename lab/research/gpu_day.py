"""Parts of lab/research/gpu_day.sh: the environment, a profile of warm snapshots, and the report."""

from __future__ import annotations

import argparse
import collections
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sci_stream.model import Snapshot
from sci_stream.optics.calibration import Calibration
from sci_stream.recon.algorithms.schedule import Budget
from sci_stream.recon.backend.device import describe_device, pick_device
from sci_stream.recon.backend.half_precision import Precision
from sci_stream.recon.denoisers.registry import make_denoiser
from sci_stream.recon.engine import Engine
from sci_stream.recon.settings import default_settings
from sci_stream_lab.bench.environment import environment
from sci_stream_lab.training.checkpoint import load_checkpoint

ITERATIONS = 8
# Marks of the GPU path: the quantity and its bound.
LEAST_MATRIX_RATE, GOOD_MATRIX_RATE = 0.5, 0.7
LEAST_BAYER_PER_S, LEAST_SMALL_PER_S = 25.0, 300.0
MAX_LARGE_MIB = 24e9 / 2**20
MAX_LAUNCHES, MAX_WAITS = 200, 2
MAX_QUALITY_LOSS_DB = 0.1
# Minutes of the sessions that train `video` once its pace is known, and the share of them that is planned with.
VIDEO_MINUTES_LEFT, VIDEO_SHARE_PLANNED = 16.0, 0.93
# Beginnings of the calls to CUDA that launch work, and those with which the host waits.
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch", "cudaMemcpyAsync", "cudaMemsetAsync")
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")


def write_environment(path: Path, device: str) -> None:
    """Write device, versions, driver and commit."""
    on = pick_device(device)
    here = environment(describe_device(on))
    facts: dict[str, Any] = {
        "machine": here.machine,
        "processor": here.processor,
        "device": here.device,
        "versions": {**here.versions, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()},
        "commit": _output("git", "rev-parse", "HEAD"),
        "changed": bool(_output("git", "status", "--porcelain", "--untracked-files=no")),
        "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
    }
    path.write_text(json.dumps(facts, indent=2) + "\n")
    print(facts["device"], facts["commit"])


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def write_profile(path: Path, device: str) -> None:
    """Profile warm snapshots: launches and waits of the host for each, and the kernels that take longest."""
    on = pick_device(device)
    cuda = on.type == "cuda"
    shape = (8, 256, 256) if cuda else (4, 32, 32)
    name = "ffdnet" if cuda else "ffdnet-lite"
    settings = default_settings(on, name)
    settings = type(settings)(**{**_fields(settings), "warm_start": True})
    engine = Engine(calibration := _calibration(shape), make_denoiser(name, on, precision=Precision.AUTO), on, settings)
    engine.warm_up()
    recorded = engine.recordings
    shots = [_shot(calibration, seq) for seq in range(4)]
    starts = [engine.reconstruct(shot, Budget(ITERATIONS))[1].start for shot in shots[:2]]
    activities = [torch.profiler.ProfilerActivity.CPU, *([torch.profiler.ProfilerActivity.CUDA] if cuda else [])]
    with torch.profiler.profile(activities=activities) as profile:
        starts += [engine.reconstruct(shot, Budget(ITERATIONS))[1].start for shot in shots[2:]]
    calls = collections.Counter(event.name for event in profile.events())
    averages = profile.key_averages()
    by_time = "self_device_time_total" if cuda else "self_cpu_time_total"
    top = sorted(averages, key=lambda row: -float(getattr(row, by_time, 0.0)))[:20]
    facts = {
        "shape": shape,
        "starts": [str(start) for start in starts],
        "launches": sum(n for call, n in calls.items() if call.startswith(LAUNCHES)) / 2 if cuda else None,
        # Without the one for the video, which has to arrive.
        "waits": sum(n for call, n in calls.items() if call.startswith(WAITS)) / 2 - 1 if cuda else None,
        "recorded": engine.recordings - recorded,
        "recordings": recorded,
        "fault": engine.fault,
        "top": [(row.key[:90], float(getattr(row, by_time, 0.0)) / 2e3, int(row.count) / 2) for row in top],
    }
    path.write_text(json.dumps(facts, indent=2) + "\n")
    print(f"launches and waits a snapshot: {facts['launches']}, {facts['waits']}; fault: {engine.fault or 'none'}")


def _fields(settings: object) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in settings.__dataclass_fields__}  # type: ignore[attr-defined]


def _calibration(shape: tuple[int, int, int]) -> Calibration:
    return Calibration(phi=np.random.default_rng(0).integers(0, 2, shape).astype(np.float32))


def _shot(calibration: Calibration, seq: int) -> Snapshot:
    """Return a snapshot of moving waves."""
    n_frames, (height, width) = calibration.n_frames, calibration.shape
    rows, columns = np.mgrid[:height, :width].astype(np.float32)
    times = range(seq * n_frames, (seq + 1) * n_frames)
    frames = np.stack([0.5 + 0.3 * np.sin((columns + 0.5 * t) / 4) * np.cos((rows - 0.3 * t) / 6) for t in times])
    counts = (calibration.phi * frames).sum(0).astype(np.float32)
    return calibration.snapshot("profile", seq, counts)


def write_video_steps(run: Path, path: Path) -> None:
    """Write how many steps a video run takes in all, at the pace of its last session."""
    sessions = load_checkpoint(run)["sessions"]
    last = sessions[-1]
    pace = last["steps"] / last["minutes"]
    done = sum(session["steps"] for session in sessions)
    total = done + int(pace * VIDEO_MINUTES_LEFT * VIDEO_SHARE_PLANNED)
    path.write_text(f"{total}\n")
    print(f"{done} steps done, {total} planned")


def write_report(folder: Path, path: Path) -> None:
    """Write the figures of all pieces."""
    here = _read(folder / "environment.json") or {}
    versions = ", ".join(f"{name} {version}" for name, version in here.get("versions", {}).items() if version)
    commit = here.get("commit", "unknown") + (" with changes" if here.get("changed") else "")
    lines = [
        f"# GPU day: {here.get('device', 'unknown device')}\n",
        f"{here.get('machine', '')}; driver {here.get('driver') or 'none'}; {versions}; commit {commit}.\n",
        "## Marks\n",
        "| mark | measured | wanted | |",
        "|---|---:|---:|---|",
        *(f"| {what} | {got} | {wanted} | {verdict} |" for what, got, wanted, verdict in _marks(folder)),
        "\n## Speed\n",
        "| run | size | ms/iteration | of matrix rate | snapshots/s | MiB | note |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for name in ("speed", "speed_lite", "speed_float32", "large"):
        for row in (_read(folder / f"{name}.json") or {}).get("sizes", []):
            cells = [
                _number(row.get(key)) for key in ("iteration_ms", "of_matrix_rate", "snapshots_per_s", "memory_mib")
            ]
            lines.append(f"| {name} | {row['size']} | {' | '.join(cells)} | {row['skipped'] or row['fault']} |")
    stacks = (_read(folder / "stacks.json") or {}).get("stacks", [])
    if stacks:
        lines += ["\n## Ways to run the network\n", "| way | ms | TFLOP/s | not available |", "|---|---:|---:|---|"]
    for trial in stacks:
        rate = None if trial["flop_per_s"] is None else trial["flop_per_s"] / 1e12
        lines.append(f"| {trial['way']} | {_number(trial['ms'])} | {_number(rate)} | {trial['why_not']} |")
    profile = _read(folder / "profile.json")
    if profile:
        lines += [
            f"\n## Profile of a warm snapshot, {'×'.join(map(str, profile['shape']))}\n",
            "| kernel | ms | calls |",
        ]
        lines += ["|---|---:|---:|", *(f"| `{name}` | {ms:.3f} | {count:.0f} |" for name, ms, count in profile["top"])]
    lines += ["\n## Pieces\n", "| piece | status | s |", "|---|---|---:|"]
    for piece in (folder / "pieces.txt").read_text().splitlines() if (folder / "pieces.txt").exists() else []:
        name, status, seconds = piece.split()
        lines.append(f"| {name} | {'done' if status == '0' else f'failed ({status})'} | {seconds} |")
    path.write_text("\n".join(lines) + "\n")
    print(path)


def _marks(folder: Path) -> list[tuple[str, str, str, str]]:
    """Return each mark: what, measured, wanted, and whether it is met."""
    rows = {
        (name, row["size"]): row
        for name in ("speed", "speed_lite", "large")
        for row in (_read(folder / f"{name}.json") or {}).get("sizes", [])
    }
    profile = _read(folder / "profile.json") or {}
    loss = None
    sets = [(_read(folder / f"quality_{precision}.json") or {}).get("sets") for precision in ("float32", "half")]
    if sets[0] and sets[1]:
        loss = max(full["psnr_db"] - half["psnr_db"] for full, half in zip(*sets, strict=True))
    rate = rows.get(("speed", "512x512x22"), {}).get("of_matrix_rate")
    bayer = rows.get(("speed", "512x512x22:bayer"), {}).get("snapshots_per_s")
    small = {name: rows.get((name, "256x256x8"), {}).get("snapshots_per_s") for name in ("speed", "speed_lite")}
    large = rows.get(("large", "3840x1644x48"), {}).get("memory_mib")
    return [
        _mark("FFDNet at 512×512×22, of the matrix rate", rate, LEAST_MATRIX_RATE),
        _mark("the same, second mark", rate, GOOD_MATRIX_RATE),
        _mark("FFDNet, 512×512×22 Bayer, warm, snapshots/s", bayer, LEAST_BAYER_PER_S),
        _mark("FFDNet, 256×256×8, warm, snapshots/s", small["speed"], LEAST_SMALL_PER_S),
        _mark("ffdnet-lite, 256×256×8, warm, snapshots/s", small["speed_lite"], LEAST_SMALL_PER_S),
        _mark("memory at 3840×1644×48, MiB", large, MAX_LARGE_MIB, most=True),
        _mark("launches of a warm snapshot", profile.get("launches"), MAX_LAUNCHES, most=True),
        _mark("waits of a warm snapshot", profile.get("waits"), MAX_WAITS, most=True),
        _mark("recordings after warm-up", profile.get("recorded"), 0, most=True),
        _mark("quality lost in 16 bits, dB", loss, MAX_QUALITY_LOSS_DB, most=True),
    ]


def _mark(what: str, got: float | None, wanted: float, *, most: bool = False) -> tuple[str, str, str, str]:
    bound = f"{'≤' if most else '≥'} {wanted:.4g}"
    if got is None:
        return what, "", bound, "not measured"
    return what, f"{got:.4g}", bound, "met" if (got <= wanted if most else got >= wanted) else "MISSED"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _read(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text()) if path.exists() else None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("environment", "profile", "video_steps", "report"))
    parser.add_argument("path", type=Path)
    parser.add_argument("target", type=Path, nargs="?")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    if args.part == "report":
        write_report(args.path, args.target or args.path / "report.md")
    elif args.part == "video_steps":
        write_video_steps(args.path, args.target or args.path / "video_steps")
    elif args.part == "profile":
        write_profile(args.path, args.device)
    else:
        write_environment(args.path, args.device)
