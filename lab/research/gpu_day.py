"""Measure on a GPU that is to be had for minutes, in groups of at most nine that each leave one
archive.

    python3 lab/research/gpu_day.py wheels build/gpu-wheels.zip [PACKAGE…]
    python3 lab/research/gpu_day.py run GROUP --commit HASH [--wheels ZIP] [--data FOLDER] [--out
    ARCHIVE] [--rehearse] python3 lab/research/gpu_day.py report REPORT.md ARCHIVE…

``wheels`` downloads the packages that the machine lacks, with what they need, for its Python;
``run`` needs neither git nor an installed sci_stream. Groups: see `GROUPS`; ``smoke`` first. Each
step is a process with a limit, and its figures are written as soon as they exist. A step that fails
or takes too long does not stop the others; SIGTERM ends the group with an archive of what there is.
``--rehearse`` tries everything on a CPU in small sizes.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
ITERATIONS = 8
# Marks of the GPU path: the quantity and its bound.
LEAST_MATRIX_RATE, GOOD_MATRIX_RATE = 0.5, 0.7
LEAST_BAYER_PER_S, LEAST_SMALL_PER_S = 25.0, 300.0
MAX_LARGE_MIB = 24e9 / 2**20
MAX_LAUNCHES, MAX_WAITS, MAX_KERNELS = 200, 2, 400
MAX_QUALITY_LOSS_DB = 0.1
# Beginnings of the calls to CUDA that launch work, and those with which the host waits.
LAUNCHES = (
    "cudaLaunchKernel",
    "cuLaunchKernel",
    "cudaGraphLaunch",
    "cudaMemcpyAsync",
    "cudaMemsetAsync",
)
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")

# Packages that the machine lacks, its Python, and the systems whose wheels run on it.
LACKING = ("pydantic", "uvicorn", "starlette", "pyzmq", "isal", "av")
PYTHON = "3.12"
_PLATFORMS = ("--platform", "manylinux_2_28_x86_64", "--platform", "manylinux2014_x86_64")
# Seconds that a step has to end after SIGINT, and that SIGTERM leaves for the archive.
_ENDS_S = 10.0
# A CPU that others use takes longer.
_REHEARSED_SLOWER = 8
# Time in which the snapshots of two processes on one device are counted.
_COUNTED_S = 10.0


class Step(NamedTuple):
    """A process of a group: its name, its command, its limit, s, and the folder of ``--data`` that
    it needs.

    ``fused``: torch's compiler fuses operations, which takes minutes for each size; elsewhere they
    run as they are.
    """

    name: str
    arguments: tuple[str, ...]
    limit_s: int
    needs: str = ""
    fused: bool = False


def _speed(name: str, size: str, limit_s: int, *more: str) -> Step:
    """Time one size: its row is written before the next begins."""
    return Step(name, ("bench", "speed", "--sizes", size, *more), limit_s)


def _tests(
    name: str, limit_s: int, marks: str, *folders: str, before: tuple[str, ...] = ()
) -> Step:
    # Warnings are no errors here: those of torch on a GPU are not known beforehand.
    options = ("-q", "-m", marks, "-W", "default", "-p", "no:cacheprovider")
    return Step(name, (*before, "pytest", *options, *folders), limit_s)


_GPU_TESTS = ("tests/recon", "tests/optics")
_WARM = ("--warm", "--iterations", str(ITERATIONS))
GROUPS: dict[str, tuple[Step, ...]] = {
    "smoke": (
        Step("environment", ("part", "environment"), 20),
        _tests("tests", 80, "gpu and not slow", *_GPU_TESTS),
        _speed("speed_lite 256x256x8", "256x256x8", 70, "--denoiser", "ffdnet-lite", *_WARM),
        _speed("speed 256x256x8", "256x256x8", 70, "--denoiser", "ffdnet", *_WARM),
        Step("trace", ("part", "trace"), 60),
    ),
    "fused": (  # the second finds the kernels that the first compiled
        _speed("speed_fused 256x256x8", "256x256x8", 340, "--denoiser", "ffdnet", *_WARM)._replace(
            fused=True
        ),
        Step("trace_fused", ("part", "trace"), 200, fused=True),
    ),
    "two_nodes": (Step("two_nodes", ("part", "two_nodes"), 240),),
    "speed": (
        _speed("speed 512x512x22", "512x512x22", 120, "--denoiser", "ffdnet", *_WARM),
        _speed("speed 512x512x22:bayer", "512x512x22:bayer", 120, "--denoiser", "ffdnet", *_WARM),
        _speed("speed_lite 512x512x22", "512x512x22", 120, "--denoiser", "ffdnet-lite", *_WARM),
        _speed(
            "speed_float32 256x256x8",
            "256x256x8",
            120,
            "--denoiser",
            "ffdnet",
            "--precision",
            "float32",
            *_WARM,
        ),
    ),
    "large": (
        _speed(
            "large 1080x1920x24", "1080x1920x24", 240, "--denoiser", "ffdnet", "--iterations", "8"
        ),
        _speed(
            "large 3840x1644x48", "3840x1644x48", 290, "--denoiser", "ffdnet", "--iterations", "8"
        ),
    ),
    "network": (
        _speed(
            "chunks 512x512x22",
            "512x512x22",
            150,
            "--denoiser",
            "ffdnet",
            "--chunks",
            "--iterations",
            "8",
        ),
        Step(
            "stacks",
            (
                "bench",
                "speed",
                "--denoiser",
                "ffdnet",
                "--stacks",
                "--precision",
                "half",
                "--sizes",
                "",
            ),
            380,
            fused=True,
        ),
    ),
    "checks": (
        _tests("tests_slow", 240, "gpu and slow", *_GPU_TESTS),
        _tests("sanitizer", 290, "gpu", "tests/recon/backend", before=("compute-sanitizer",)),
    ),
    "quality": tuple(
        Step(
            f"quality_{precision}",
            (
                "bench",
                "quality",
                "--denoiser",
                "ffdnet",
                "--iterations",
                "20",
                "--set",
                f"precision={precision}",
            ),
            265,
            "benchmark",
        )
        for precision in ("float32", "half")
    ),
    "train": (Step("train", ("train",), 330, "train"),),
    **{
        f"train_unrolled_{n}": (
            Step(f"train_unrolled_{n}", ("train_unrolled", str(n)), 540, "video_train/free"),
        )
        for n in range(1, 4)
    },
}
"""Steps by group, of at most nine minutes together; the last ones continue unfinished training, in
this order."""


class Day:
    """One group on this machine: runs its steps in a working folder and packs what they leave.

    Parameters
    ----------
    work
        Folder for results; training continues from its content.
    site
        Folder with the packages that were carried; None if there are none.
    """

    def __init__(
        self, work: Path, site: Path | None, data: Path | None, commit: str, *, rehearse: bool
    ) -> None:
        self._work, self._data, self._commit, self._rehearse = work, data, commit, rehearse
        folders = [
            str(ROOT),
            str(ROOT / "drivers"),
            str(ROOT / "lab"),
            *([str(site)] if site else []),
        ]
        path = os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH")])])
        self._environment = {**os.environ, "PYTHONPATH": path}
        self._terminated = False

    def terminate(self, _signal: int, _frame: FrameType | None) -> None:
        """End the step and the group."""
        self._terminated = True

    def run(self, steps: tuple[Step, ...]) -> bool:
        """Run the steps one after the other; return whether all of them succeeded."""
        rows = []
        for step in steps:
            if self._terminated:
                break
            began_s = time.monotonic()
            status = self._step(step)
            rows.append(
                {
                    "step": step.name,
                    "status": status,
                    "seconds": round(time.monotonic() - began_s, 1),
                }
            )
            with (self._work / "steps.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(rows[-1]) + "\n")
            print(f"{step.name}: {status} ({rows[-1]['seconds']} s)", flush=True)
        return len(rows) == len(steps) and all(row["status"] in {"done", "skipped"} for row in rows)

    def _step(self, step: Step) -> str:
        if step.needs and (self._data is None or not (self._data / step.needs).is_dir()):
            return "skipped"
        if "compute-sanitizer" in step.arguments and shutil.which("compute-sanitizer") is None:
            return "skipped"
        limit_s = step.limit_s * (_REHEARSED_SLOWER if self._rehearse else 1)
        with (self._work / f"{_file(step.name)}.log").open("wb") as log:
            environment = {**self._environment, "TORCH_COMPILE_DISABLE": str(int(not step.fused))}
            process = subprocess.Popen(
                self._command(step),
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            ends_s, status = time.monotonic() + limit_s, None
            while status is None and time.monotonic() < ends_s and not self._terminated:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    status = process.wait(0.2)
            # Its children end with it.
            _signal_group(process, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_ENDS_S)
            _signal_group(process, signal.SIGKILL)
            process.wait()
        if self._terminated:
            return "terminated"
        nothing_selected = "pytest" in step.arguments and status == 5
        return (
            "too long"
            if status is None
            else "done"
            if status == 0 or nothing_selected
            else f"failed ({status})"
        )

    def _command(self, step: Step) -> list[str]:
        python, device = sys.executable, "cpu" if self._rehearse else "cuda"
        kind, *rest = step.arguments
        json_file = str(self._work / f"{_file(step.name)}.json")
        if kind == "part":
            options = ["--device", device, "--commit", self._commit]
            return [python, str(Path(__file__)), "part", *rest, json_file, *options]
        if kind == "bench":
            program = "from sci_stream_lab.cli.bench import bench_app; bench_app()"
            arguments = [_small(argument) for argument in rest] if self._rehearse else rest
            data = ["--data", str(self._data / step.needs)] if self._data and step.needs else []
            return [
                python,
                "-c",
                program,
                *arguments,
                *data,
                "--device",
                device,
                "--json",
                json_file,
            ]
        if kind in {"train", "train_unrolled"}:
            return [python, "-c", TRAIN, *self._training(kind, rest), "--device", device]
        return [*([kind, python, "-m"] if kind != "pytest" else [python, "-m", kind]), *rest]

    def _training(self, kind: str, rest: list[str]) -> list[str]:
        assert self._data is not None
        if kind == "train":
            run = self._work / "training"
            resume = ["--resume"] if run.exists() else []
            small = [
                "--steps",
                "4",
                "--validate-every",
                "2",
                "--batch",
                "2",
                "--patch",
                "32",
                "--held-out",
                "1",
            ]
            how = (
                [*small, "--memory-mib", "512"]
                if self._rehearse
                else ["--variant", "ffdnet", "--minutes", "4"]
            )
            return [str(self._data / "train"), str(run), *how, *resume]
        return _unrolled_training(self._data, self._work, int(rest[0]), rehearse=self._rehearse)


_RUNS = frozenset({"training", "training_unrolled"})
TRAIN = "from sci_stream_lab.cli.training import train_app; train_app()"


def _unrolled_training(data: Path, work: Path, session: int, *, rehearse: bool) -> list[str]:
    """Return the arguments of a session of `unrolled`; the rates fall in the third.

    The first one begins with the shipped stages.
    """
    run = work / "training_unrolled"
    shipped = ROOT / "sci_stream/recon/denoisers/weights_data/unrolled.safetensors"
    start = ["--resume"] if (run / "checkpoint.pt").exists() else ["--start-from", str(shipped)]
    how = [
        "--stages",
        "6",
        "--batch",
        "256",
        "--clip-size",
        "128",
        "--learning-rate",
        "3e-4",
        "--kernel-rate",
        "3e-3",
    ]
    length = ["--minutes", "8", *(["--steps", "1000000"] if session < 3 else [])]
    if rehearse:
        how = ["--stages", "4", "--batch", "8", "--patch", "16", "--clip-size", "32"]
        length = ["--steps", str(2 * session)]
    masks = [
        option
        for path in sorted((data / "real").glob("*.mat"))
        for option in ("--masks", str(path))
    ]
    common = [
        "--variant",
        "unrolled",
        "--clips",
        str(data / "video_train/free"),
        *masks,
        "--held-out",
        "1",
    ]
    return [
        str(data / "train"),
        str(run),
        *common,
        *how,
        *length,
        "--validate-every",
        "1000",
        *start,
    ]


def _small(argument: str) -> str:
    """Return an argument as a CPU can do it in a rehearsal."""
    small = {"ffdnet": "ffdnet-lite", "half": "float32", "8": "4", "20": "1"}
    sizes = {"256x256x8": "32x32x4", "512x512x22": "32x32x8", "512x512x22:bayer": "32x32x8:bayer"}
    return {**small, **sizes, "1080x1920x24": "48x64x8", "3840x1644x48": "64x64x8"}.get(
        argument, argument
    )


def _file(name: str) -> str:
    return name.replace(" ", "_").replace(":", "_")


def _signal_group(process: subprocess.Popen[bytes], which: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # all of it has ended
        os.killpg(process.pid, which)


def run_group(name: str, options: argparse.Namespace) -> int:
    """Run a group; return 1 if a step failed. The archive holds all results so far."""
    options.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        site = None
        if options.wheels is not None:
            site = Path(folder)
            with zipfile.ZipFile(options.wheels) as archive:
                archive.extractall(site)
        day = Day(options.work, site, options.data, options.commit, rehearse=options.rehearse)
        signal.signal(signal.SIGTERM, day.terminate)
        signal.signal(signal.SIGINT, day.terminate)
        good = day.run(GROUPS[name])
    out = options.out or options.work / f"{name}.tar.gz"
    out.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(out, "w:gz") as packed:
        for path in sorted(options.work.iterdir()):
            if path.suffix in {".json", ".jsonl", ".log"} or path.name in _RUNS:
                packed.add(path, path.name)
    print(out)
    return 0 if good else 1


def fetch_wheels(archive: Path, packages: list[str], python: str) -> None:
    """Download packages with what they need, for the machine, and put their contents into one
    archive.

    Our own distributions are in it by the names of what they offer, cameras and commands; their
    code is in the tree.
    """
    with tempfile.TemporaryDirectory() as folder:
        wanted = packages or list(LACKING)
        options = [
            "--only-binary=:all:",
            "--implementation",
            "cp",
            "--python-version",
            python,
            *_PLATFORMS,
            "--dest",
            folder,
        ]
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", *options, *wanted], check=True
        )
        archive.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
            for wheel in sorted(Path(folder).glob("*.whl")):
                print(wheel.name)
                with zipfile.ZipFile(wheel) as content:
                    for name in content.namelist():
                        packed.writestr(name, content.read(name))
            for folder_of in (ROOT, ROOT / "lab"):
                project = tomllib.loads((folder_of / "pyproject.toml").read_text(encoding="utf-8"))[
                    "project"
                ]
                info = f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
                metadata = (
                    f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: "
                    f"{project['version']}\n"
                )
                points = project.get("entry-points", {}).items()
                text = "\n".join(
                    f"[{group}]\n" + "".join(f"{n} = {at}\n" for n, at in of.items())
                    for group, of in points
                )
                packed.writestr(f"{info}/METADATA", metadata)
                packed.writestr(f"{info}/entry_points.txt", text)


# --- parts that run in a process of their own


def write_environment(path: Path, device: str, commit: str) -> None:
    """Write device, versions, driver, clocks and commit."""
    import torch  # noqa: PLC0415 - the day itself needs no torch

    from sci_stream.recon.backend.device import describe_device, pick_device  # noqa: PLC0415 - the same
    from sci_stream_lab.bench.environment import environment  # noqa: PLC0415 - the same

    here = environment(describe_device(pick_device(device)))
    facts: dict[str, Any] = {
        "machine": here.machine,
        "processor": here.processor,
        "device": here.device,
        "versions": {
            **here.versions,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        },
        "commit": commit,
        "driver": _nvidia("driver_version"),
        "clocks": _clocks(),
    }
    path.write_text(json.dumps(facts, indent=2) + "\n")
    print(facts["device"], facts["commit"])


def _clocks() -> dict[str, str]:
    """Return clocks, power and temperature now and their limits, as the driver gives them; empty
    without one.
    """
    names = (
        "clocks.sm",
        "clocks.mem",
        "clocks.max.sm",
        "power.draw",
        "power.limit",
        "temperature.gpu",
    )
    values = _nvidia(",".join(names)).split(", ")
    return dict(zip(names, values, strict=True)) if len(values) == len(names) else {}


def _nvidia(query: str) -> str:
    command = ("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader")
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def write_trace(path: Path, device: str, _commit: str) -> None:
    """Trace warm snapshots: launches and waits of the host, kernels and gaps of the device, memory
    and clocks.
    """
    from collections import Counter  # noqa: PLC0415 - with the rest

    import torch  # noqa: PLC0415 - the day itself needs no torch

    from sci_stream.recon.backend.device import pick_device  # noqa: PLC0415 - the same
    from sci_stream.recon.denoisers.registry import make_denoiser  # noqa: PLC0415 - the same
    from sci_stream.recon.engine import Engine  # noqa: PLC0415 - the same
    from sci_stream.recon.settings import default_settings  # noqa: PLC0415 - the same

    on = pick_device(device)
    cuda = on.type == "cuda"
    shape = (8, 256, 256) if cuda else (4, 32, 32)
    name = "ffdnet" if cuda else "ffdnet-lite"
    settings = dataclasses.replace(
        default_settings(on, name), warm_start=True, iterations=ITERATIONS
    )
    calibration, shots = _scene(shape)
    engine = Engine(calibration, make_denoiser(name, on), on, settings)
    engine.warm_up()
    recorded = engine.recordings
    starts = [engine.reconstruct(shot, ITERATIONS)[1].start for shot in shots[:2]]
    activities = [
        torch.profiler.ProfilerActivity.CPU,
        *([torch.profiler.ProfilerActivity.CUDA] if cuda else []),
    ]
    with torch.profiler.profile(activities=activities) as profile:
        starts += [engine.reconstruct(shot, ITERATIONS)[1].start for shot in shots[2:]]
    snapshots = len(shots) - 2
    events = profile.events() or []
    calls = Counter(event.name for event in events)
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in events
        if event.device_type == torch.autograd.DeviceType.CUDA
    )
    averages = profile.key_averages()
    by_time = "self_device_time_total" if cuda else "self_cpu_time_total"
    top = sorted(averages, key=lambda row: -float(getattr(row, by_time, 0.0)))[:20]
    facts = {
        "shape": shape,
        "starts": [str(start) for start in starts],
        "launches": sum(n for call, n in calls.items() if call.startswith(LAUNCHES)) / snapshots
        if cuda
        else None,
        # Without the one for the video, which has to arrive.
        "waits": sum(n for call, n in calls.items() if call.startswith(WAITS)) / snapshots - 1
        if cuda
        else None,
        "kernels": len(spans) / snapshots if cuda else None,
        **_gaps(spans, snapshots),
        "memory_mib": torch.cuda.max_memory_allocated(on) / 2**20 if cuda else None,
        "reserved_mib": torch.cuda.max_memory_reserved(on) / 2**20 if cuda else None,
        "recorded": engine.recordings - recorded,
        "recordings": recorded,
        "fault": engine.fault,
        "clocks": _clocks(),
        "top": [
            (
                row.key[:90],
                float(getattr(row, by_time, 0.0)) / 1e3 / snapshots,
                row.count / snapshots,
            )
            for row in top
        ],
    }
    path.write_text(json.dumps(facts, indent=2) + "\n")
    print(f"kernels of a snapshot: {facts['kernels']}; fault: {engine.fault or 'none'}")


def _gaps(spans: list[tuple[float, float]], snapshots: int) -> dict[str, float | None]:
    """Return the time in kernels and between them, ms of a snapshot, and the longest gap within
    one, µs.

    ``spans`` are beginning and end of each kernel, µs, in order. Between snapshots the device waits
    for the host: these gaps, the longest, do not count.
    """
    if not spans:
        return {"busy_ms": None, "gaps_ms": None, "longest_gap_us": None}
    gaps, end = [], spans[0][1]
    for start, stop in spans[1:]:
        gaps.append(max(0.0, start - end))
        end = max(end, stop)
    within = sorted(gaps)[: len(gaps) - (snapshots - 1)]
    busy_us = end - spans[0][0] - sum(gaps)
    return {
        "busy_ms": busy_us / 1e3 / snapshots,
        "gaps_ms": sum(within) / 1e3 / snapshots,
        "longest_gap_us": max(within, default=0.0),
    }


def _scene(shape: tuple[int, int, int], count: int = 4) -> tuple[Any, list[Any]]:
    """Return a calibration with random masks and snapshots of moving waves."""
    import numpy as np  # noqa: PLC0415 - the day itself needs none

    from sci_stream.optics.calibration import Calibration  # noqa: PLC0415 - the same

    calibration = Calibration(phi=np.random.default_rng(0).integers(0, 2, shape).astype(np.float32))
    n_frames, height, width = shape
    rows, columns = np.mgrid[:height, :width].astype(np.float32)
    shots = []
    for seq in range(count):
        times = range(seq * n_frames, (seq + 1) * n_frames)
        frames = np.stack(
            [
                0.5 + 0.3 * np.sin((columns + 0.5 * t) / 4) * np.cos((rows - 0.3 * t) / 6)
                for t in times
            ]
        )
        shots.append(
            calibration.snapshot("trace", seq, (calibration.phi * frames).sum(0).astype(np.float32))
        )
    return calibration, shots


def write_two_nodes(path: Path, device: str, _commit: str) -> None:
    """Count the snapshots a second of one process on the device, of two, and of two under MPS."""
    rates = {"one": _rate(1, device), "two": _rate(2, device)}
    if device == "cuda" and shutil.which("nvidia-cuda-mps-control"):
        with tempfile.TemporaryDirectory() as place:
            os.environ["CUDA_MPS_PIPE_DIRECTORY"] = os.environ["CUDA_MPS_LOG_DIRECTORY"] = place
            control = ["nvidia-cuda-mps-control"]
            subprocess.run([*control, "-d"], check=True)
            try:
                rates["two under MPS"] = _rate(2, device)
            finally:
                subprocess.run(control, input=b"quit\n", check=False)
    path.write_text(json.dumps({"snapshots_per_s": rates}, indent=2) + "\n")
    print(rates)


def _rate(processes: int, device: str) -> float:
    """Return the snapshots a second of so many processes together."""
    spawn = multiprocessing.get_context("spawn")
    ready, counts = spawn.Barrier(processes), spawn.SimpleQueue()
    nodes = [
        spawn.Process(target=_solve_for_a_time, args=(device, ready, counts))
        for _ in range(processes)
    ]
    for node in nodes:
        node.start()
    for node in nodes:
        node.join()
    return sum(counts.get() for node in nodes if node.exitcode == 0) / _COUNTED_S


def _solve_for_a_time(device: str, ready: Any, counts: Any) -> None:
    """Solve small warm snapshots as a node, and put their number."""
    from sci_stream.recon.backend.device import pick_device  # noqa: PLC0415 - with torch
    from sci_stream.recon.denoisers.registry import make_denoiser  # noqa: PLC0415 - the same
    from sci_stream.recon.engine import Engine  # noqa: PLC0415 - the same
    from sci_stream.recon.settings import default_settings  # noqa: PLC0415 - the same

    on = pick_device(device)
    calibration, shots = _scene((8, 256, 256) if on.type == "cuda" else (4, 32, 32), 64)
    settings = default_settings(on, "ffdnet-lite")
    settings = dataclasses.replace(settings, warm_start=True, iterations=ITERATIONS)
    engine = Engine(calibration, make_denoiser("ffdnet-lite", on), on, settings)
    engine.warm_up()
    ready.wait()
    end_s = time.monotonic() + _COUNTED_S
    count = 0
    while time.monotonic() < end_s:
        engine.reconstruct(shots[count % len(shots)], ITERATIONS)
        count += 1
    counts.put(count)


PARTS: dict[str, Callable[[Path, str, str], None]] = {
    "environment": write_environment,
    "trace": write_trace,
    "two_nodes": write_two_nodes,
}


# --- the report


def write_report(path: Path, archives: list[Path]) -> None:
    """Write the figures of all groups."""
    files: dict[str, Any] = {}
    steps: dict[str, dict[str, Any]] = {}
    for archive in archives:
        with tarfile.open(archive) as packed:
            for member in packed:
                if "/" in member.name or not member.name.endswith((".json", ".jsonl")):
                    continue
                content = packed.extractfile(member)
                assert content is not None
                text = content.read().decode()
                if member.name == "steps.jsonl":
                    steps |= {row["step"]: row for row in map(json.loads, text.splitlines())}
                else:
                    files[member.name.removesuffix(".json")] = json.loads(text)
    here = files.get("environment", {})
    versions = ", ".join(
        f"{name} {version}" for name, version in here.get("versions", {}).items() if version
    )
    clocks = ", ".join(f"{name} {value}" for name, value in here.get("clocks", {}).items())
    lines = [
        f"# GPU day: {here.get('device', 'unknown device')}\n",
        f"{here.get('machine', '')}; driver {here.get('driver') or 'none'}; {versions}; commit "
        f"{here.get('commit')}.",
        f"{clocks}\n",
        "## Marks\n",
        "| mark | measured | wanted | |",
        "|---|---:|---:|---|",
        *(
            f"| {what} | {got} | {wanted} | {verdict} |"
            for what, got, wanted, verdict in _marks(files)
        ),
        "\n## Speed\n",
        "| run | size | ms/iteration | of matrix rate | snapshots/s | MiB | note |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for name, result in files.items():
        for row in result.get("sizes", []):
            figures = ("iteration_ms", "of_matrix_rate", "snapshots_per_s", "memory_mib")
            cells = " | ".join(_number(row.get(key)) for key in figures)
            run = name.partition(_file(f"_{row['size']}"))[0]
            lines.append(f"| {run} | {row['size']} | {cells} | {row['skipped'] or row['fault']} |")
    chunks = [row for result in files.values() for row in result.get("chunks", [])]
    if chunks:
        lines += ["\n## Pixels at once\n", "| pixels | ms |", "|---:|---:|"]
        lines += [f"| {row['pixels_per_chunk']} | {row['ms']:.4g} |" for row in chunks]
    stacks = files.get("stacks", {}).get("stacks", [])
    if stacks:
        lines += [
            "\n## Ways to run the network\n",
            "| way | ms | TFLOP/s | not available |",
            "|---|---:|---:|---|",
        ]
    for trial in stacks:
        rate = None if trial["flop_per_s"] is None else trial["flop_per_s"] / 1e12
        lines.append(
            f"| {trial['way']} | {_number(trial['ms'])} | {_number(rate)} | {trial['why_not']} |"
        )
    for name in ("trace", "trace_fused"):
        if (trace := files.get(name)) is None:
            continue
        figures = ("kernels", "busy_ms", "gaps_ms", "longest_gap_us", "memory_mib", "reserved_mib")
        lines += [
            f"\n## {name} of a warm snapshot, {'×'.join(map(str, trace['shape']))}\n",
            ", ".join(f"{key} {_number(trace[key]) or '–'}" for key in figures) + "\n",
            "| kernel | ms | calls |",
            "|---|---:|---:|",
            *(f"| `{name}` | {ms:.3f} | {count:.0f} |" for name, ms, count in trace["top"]),
        ]
    rates = files.get("two_nodes", {}).get("snapshots_per_s", {})
    lines += ["\n## Processes on one device\n", "| processes | snapshots/s |", "|---|---:|"]
    lines += [f"| {what} | {rate:.4g} |" for what, rate in rates.items()]
    lines += ["\n## Steps\n", "| step | status | s |", "|---|---|---:|"]
    lines += [f"| {row['step']} | {row['status']} | {row['seconds']} |" for row in steps.values()]
    path.write_text("\n".join(lines) + "\n")
    print(path)


def _marks(files: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return each mark: what, measured, wanted, and whether it is met."""

    def speed(run: str, size: str, key: str) -> float | None:
        rows = files.get(_file(f"{run} {size}"), {}).get("sizes", [])
        return rows[0].get(key) if rows else None

    trace = files.get("trace_fused") or files.get("trace", {})
    loss = None
    sets = [files.get(f"quality_{precision}", {}).get("sets") for precision in ("float32", "half")]
    if sets[0] and sets[1]:
        loss = max(full["psnr_db"] - half["psnr_db"] for full, half in zip(*sets, strict=True))
    rate = speed("speed", "512x512x22", "of_matrix_rate")
    bayer = speed("speed", "512x512x22:bayer", "snapshots_per_s")
    small = {run: speed(run, "256x256x8", "snapshots_per_s") for run in ("speed", "speed_lite")}
    large = speed("large", "3840x1644x48", "memory_mib")
    return [
        _mark("FFDNet at 512×512×22, of the matrix rate", rate, LEAST_MATRIX_RATE),
        _mark("the same, second mark", rate, GOOD_MATRIX_RATE),
        _mark("FFDNet, 512×512×22 Bayer, warm, snapshots/s", bayer, LEAST_BAYER_PER_S),
        _mark("FFDNet, 256×256×8, warm, snapshots/s", small["speed"], LEAST_SMALL_PER_S),
        _mark("ffdnet-lite, 256×256×8, warm, snapshots/s", small["speed_lite"], LEAST_SMALL_PER_S),
        _mark("memory at 3840×1644×48, MiB", large, MAX_LARGE_MIB, most=True),
        _mark("launches of a warm snapshot", trace.get("launches"), MAX_LAUNCHES, most=True),
        _mark("kernels of a warm snapshot", trace.get("kernels"), MAX_KERNELS, most=True),
        _mark("waits of a warm snapshot", trace.get("waits"), MAX_WAITS, most=True),
        _mark("recordings after warm-up", trace.get("recorded"), 0, most=True),
        _mark("quality lost in 16 bits, dB", loss, MAX_QUALITY_LOSS_DB, most=True),
    ]


def _mark(
    what: str, got: float | None, wanted: float, *, most: bool = False
) -> tuple[str, str, str, str]:
    bound = f"{'≤' if most else '≥'} {wanted:.4g}"
    if got is None:
        return what, "", bound, "not measured"
    return (
        what,
        f"{got:.4g}",
        bound,
        "met" if (got <= wanted if most else got >= wanted) else "MISSED",
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    wheels = commands.add_parser("wheels")
    wheels.add_argument("archive", type=Path)
    wheels.add_argument("packages", nargs="*", help=f"by default {', '.join(LACKING)}")
    wheels.add_argument("--python", default=PYTHON)
    run = commands.add_parser("run")
    run.add_argument("group", choices=GROUPS)
    run.add_argument("--commit", required=True)
    run.add_argument("--wheels", type=Path)
    run.add_argument("--data", type=Path, default=os.environ.get("SCI_STREAM_DATA"))
    run.add_argument("--out", type=Path)
    run.add_argument("--work", type=Path, default=ROOT / "build" / "gpu-day")
    run.add_argument("--rehearse", action="store_true")
    part = commands.add_parser("part")
    part.add_argument("name", choices=PARTS)
    part.add_argument("path", type=Path)
    part.add_argument("--device", default="auto")
    part.add_argument("--commit", default="")
    report = commands.add_parser("report")
    report.add_argument("path", type=Path)
    report.add_argument("archives", type=Path, nargs="+")
    options = parser.parse_args(arguments)
    match options.command:
        case "wheels":
            fetch_wheels(options.archive, options.packages, options.python)
        case "run":
            options.data = Path(options.data) if options.data else None
            return run_group(options.group, options)
        case "part":
            PARTS[options.name](options.path, options.device, options.commit)
        case "report":
            write_report(options.path, options.archives)
    return 0


if __name__ == "__main__":
    sys.exit(main())
