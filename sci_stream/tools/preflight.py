"""``sci-stream check``: test each component of a rig and explain failures."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import zmq
from rich.console import Console
from rich.markup import escape

from sci_stream.calibration.compatibility import require_compatible_calibration
from sci_stream.calibration.diagnosis import DARK, findings, is_withheld
from sci_stream.calibration.evidence import inspect
from sci_stream.config import Rig, load_rig
from sci_stream.config.fields import is_loopback, tcp_address
from sci_stream.errors import CalibrationError, ConfigError, DeviceError, SciStreamError, StorageError, missing_library
from sci_stream.model import CameraCapabilities, CameraFrame, Json, Policy, Snapshot, SnapshotId
from sci_stream.modulation.patterns import sparser_masks_hint
from sci_stream.nodes.runtime.modulators import make_coded_camera
from sci_stream.optics.calibration import Calibration
from sci_stream.recording.calibration_file import load_calibration
from sci_stream.recording.layout import Compression
from sci_stream.recording.segments import free_bytes
from sci_stream.reports import CalibrationHealth
from sci_stream.security.keys import read_allowed, read_key_pair
from sci_stream.tools.timing_check import check_timing
from sci_stream.transport.sockets import bind
from sci_stream.web.preview import WebPreview

if TYPE_CHECKING:
    import torch

# Snapshots with which the masks are compared: masks in another order are recognised after three, of a scene that moves.
_FRAMES = 6
# Longest time to wait for them.
_WAIT_S = 5.0
_NOT_DONE = ("not checked", "not compared", "not measured")


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check; ``exit_status`` is 0 if it passed, perhaps with a ``warning``."""

    what: str
    text: str
    exit_status: int = 0
    warning: bool = False

    def to_json(self) -> dict[str, Json]:
        """Return plain values."""
        state = "warning" if self.warning else "failed" if self.exit_status else "ok"
        return {"check": self.what, "state": state, "text": self.text, "exit_status": self.exit_status}


def check_rig(path: Path) -> list[Finding]:
    """Check a rig as far as possible on this machine; continue after failures."""
    try:
        rig = load_rig(path)
    except SciStreamError as error:
        return [Finding("rig file", str(error), error.exit_status)]
    findings = [Finding("rig file", f"{path}: {rig.rig.name}")]
    opened: list[tuple[CameraCapabilities, Calibration | None]] = []
    fitting: list[Calibration] = []

    def camera() -> str:
        capabilities, own = _open_camera(rig)
        opened.append((capabilities, own))
        size = f"{capabilities.height_px}×{capabilities.width_px} {capabilities.pixel_format}"
        return f"{capabilities.model} {capabilities.serial}, {size}"

    def calibration() -> str:
        calibration = _calibration_of(rig, opened[0] if opened else None)
        if opened and calibration is not None:
            fitting.append(calibration)
        return _describe_calibration(calibration)

    snapshots: list[Snapshot] = []
    loaded: list[str] = []

    def masks() -> str:
        if not fitting:
            return "not compared: they need camera and calibration"
        snapshots.extend(_take_snapshots(rig, fitting[0]))
        return _check_masks(rig, fitting[0], snapshots)

    def modulator() -> str:
        return check_timing(rig) if opened else "not checked: it needs the camera"

    def denoiser() -> str:
        said = _check_denoiser(rig, fitting)
        loaded.append(said)
        return said

    def speed() -> str | Finding:
        if not (snapshots and fitting and opened and loaded):
            return "not measured: it needs camera, calibration and denoiser"
        return _check_speed(rig, fitting[0], snapshots, opened[0][0].frame_period_ns)

    checks: list[tuple[str, Callable[[], str | Finding]]] = [
        ("camera", camera),
        *([("modulator", modulator)] if rig.modulator.driver else []),
        ("calibration", calibration),
        ("masks", masks),
        ("device", lambda: _check_devices(rig)),
        ("denoiser", denoiser),
        ("speed", speed),
        ("encryption", lambda: _check_encryption(rig)),
        ("addresses", lambda: _check_addresses(rig)),
        ("recording", lambda: _check_recording(rig, opened[0][0] if opened else None, fitting)),
    ]
    # In the order in which a rig needs them, and to the end: one run shows everything that has to be fixed.
    for what, try_it in checks:
        try:
            said = try_it()
            warns = isinstance(said, str) and said.startswith(_NOT_DONE)
            findings.append(said if isinstance(said, Finding) else Finding(what, said, warning=warns))
        except SciStreamError as error:
            findings.append(Finding(what, str(error), error.exit_status))
        except ModuleNotFoundError as error:
            findings.append(_without_library(what, error, rig))
    distortions = opened[0][0].distortions if opened else ()
    return findings + [Finding("settings", text, warning=True) for text in distortions]


def _without_library(what: str, error: ModuleNotFoundError, rig: Rig) -> Finding:
    """Return the finding of a missing library: a failure only where the reconstruct nodes run on this machine."""
    explained = missing_library(error)
    if explained is None:
        raise error
    return Finding(what, str(explained), 0 if rig.spans_machines else explained.exit_status)


def _check_devices(rig: Rig) -> str:
    from sci_stream.recon.backend.device import (  # noqa: PLC0415 - a light host has no torch
        describe_device,
        idle_cuda,
        pick_device,
    )

    devices = rig.reconstruct.devices
    reasons = {reason for name in devices if (reason := idle_cuda(name))}
    return "; ".join([", ".join(describe_device(pick_device(name)) for name in devices), *reasons])


def _check_denoiser(rig: Rig, calibrations: Sequence[Calibration]) -> str:
    from sci_stream.nodes.reconstruct.solver_settings import make_prior  # noqa: PLC0415 - a light host has no torch
    from sci_stream.recon.backend.cuda_graph import why_not_recorded  # noqa: PLC0415 - the same

    device = _first_device(rig)
    prior, settings = make_prior(rig.reconstruct, device)
    sigmas = f"σ {settings.sigma_first:.3f} → {settings.sigma_last:.3f}"
    words = f"{prior.name}, up to {settings.iterations} iterations, {sigmas}"
    pixels = sum(calibration.phi.size for calibration in calibrations)
    why = why_not_recorded(prior, pixels, cuda_graphs=rig.reconstruct.cuda_graphs)
    return f"{words}; solves are not recorded: {why}" if why and device.type == "cuda" else words


def _first_device(rig: Rig) -> torch.device:
    """Return the rig's first device, on which its defaults depend; the CPU if that is not available here."""
    from sci_stream.recon.backend.device import pick_device  # noqa: PLC0415 - a light host has no torch

    try:
        return pick_device(rig.reconstruct.devices[0])
    except DeviceError:
        return pick_device("cpu")


def _open_camera(rig: Rig) -> tuple[CameraCapabilities, Calibration | None]:
    camera = make_coded_camera(rig)
    try:
        return camera.open(), camera.calibration()
    finally:
        camera.close()


def _calibration_of(rig: Rig, opened: tuple[CameraCapabilities, Calibration | None] | None) -> Calibration | None:
    file = rig.calibration.file
    calibration = load_calibration(file) if file else None
    if opened is None:
        return calibration
    return require_compatible_calibration(*opened, calibration, file, other_camera=rig.calibration.other_camera)


def _describe_calibration(calibration: Calibration | None) -> str:
    if calibration is None:
        return "the camera's own: unknown until the camera can be opened"
    blind = int((calibration.gram_diag == 0).sum())
    words = f"B = {calibration.n_frames}, hash {calibration.hash[:12]}…"
    return f"{words}; {blind} pixels that no mask opens" if blind else words


def _check_masks(rig: Rig, calibration: Calibration, snapshots: Sequence[Snapshot]) -> str:
    """Compare the masks with some snapshots: whether they are those of the camera, where they are, in which order."""
    from sci_stream.calibration.monitor import CalibrationMonitor  # noqa: PLC0415 - a light host has no torch
    from sci_stream.recon.backend.device import pick_device  # noqa: PLC0415

    monitor = CalibrationMonitor(calibration, pick_device("cpu"), every=1, correct=True, shuffled=True)
    video = np.zeros((calibration.n_frames, 1, 1), np.float32)  # the order from one snapshot to the next is not judged
    health: CalibrationHealth | None = None
    clipped = 0.0
    for snapshot in snapshots:
        if calibration.saturation_dn is not None:
            clipped = max(clipped, float(np.mean(snapshot.counts >= calibration.saturation_dn)))
        health = monitor.check(snapshot, video) or health
    if health is None:
        return f"not compared: no frame within {_WAIT_S:g} s; the camera may wait for a trigger"
    if health.brightness is None or health.brightness < DARK:
        return "not compared: the snapshots are saturated or dark"
    defects, _ = inspect(snapshots[-1].counts, calibration)
    faults = {one.name: one.text_for_rig for one in defects} | findings(health, rig.calibration.warn_shift_px)
    if is_withheld(health):
        hint = ""
        if monitor.shuffle is not None and monitor.shuffle.order is not None:
            hint = f"A better order, or its reverse: {monitor.shuffle.order}."
        raise CalibrationError("; ".join(faults.values()), hint=hint or None)
    if health.match is None:
        return "not compared: the sensor is too small, or the masks add up evenly and a snapshot shows none of them"
    hint = sparser_masks_hint(clipped, float(calibration.phi.mean()))
    words = [f"match {health.match:.2f} (1: all of the picture is explained)", *faults.values(), hint]
    return "; ".join(filter(None, words))


def _take_snapshots(rig: Rig, calibration: Calibration) -> list[Snapshot]:
    """Return a few snapshots, fewer if the camera is slow."""
    camera = make_coded_camera(rig)
    frames: list[CameraFrame] = []
    try:
        camera.open()
        camera.start()
        end_s = time.monotonic() + _WAIT_S
        while len(frames) < _FRAMES and not camera.exhausted and time.monotonic() < end_s:
            if (frame := camera.read(0.2)) is not None:
                frames.append(frame)
    finally:
        camera.stop()
        camera.close()
    return [
        Snapshot(
            id=SnapshotId("check", 0, seq),
            counts=frame.counts,
            calibration_hash=calibration.hash,
            n_frames=calibration.n_frames,
            host_time_ns=frame.host_time_ns,
            bayer=calibration.bayer,
            chunks=frame.chunks,
        )
        for seq, frame in enumerate(frames)
    ]


def _check_speed(
    rig: Rig, calibration: Calibration, snapshots: Sequence[Snapshot], period_ns: int | None
) -> str | Finding:
    """Solve the snapshots as a node does, and compare the time with the camera's."""
    from sci_stream.nodes.reconstruct.solver_settings import make_prior  # noqa: PLC0415 - a light host has no torch
    from sci_stream.recon.engine import Engine  # noqa: PLC0415 - the same

    device = _first_device(rig)
    prior, settings = make_prior(rig.reconstruct, device)
    engine = Engine(calibration, prior, device, settings, cuda_graphs=rig.reconstruct.cuda_graphs)
    engine.warm_up()
    # Nodes on one device share it, so that more of them solve no more.
    solvers = min(rig.reconstruct.nodes, len(set(rig.reconstruct.devices)))

    def rate_hz(iterations: int) -> float:
        times = [engine.reconstruct(snapshot, iterations)[1].solve_ns for snapshot in snapshots]
        return solvers * 1e9 / float(np.median(times))

    full_hz = rate_hz(settings.iterations)
    words = f"{full_hz:.3g} snapshots/s with {settings.iterations} iterations on this machine"
    if not period_ns:
        return words
    camera_hz = 1e9 / period_ns
    words = f"{words}, the camera's {camera_hz:.3g}/s"
    least = settings.min_iterations if rig.reconstruct.adapt_budget else settings.iterations
    if full_hz >= camera_hz or (least_hz := rate_hz(least)) >= camera_hz:
        return f"{words}: it keeps up" + ("" if full_hz >= camera_hz else f" with {least} iterations")
    fate = "are recorded raw only" if rig.record.is_triggered or rig.policy.mode is Policy.RECORD else "are dropped"
    text = f"{words}: too slow, {1 - least_hz / camera_hz:.0%} of the snapshots {fate}; replay can do them later"
    return Finding("speed", text, warning=True)


def _check_encryption(rig: Rig) -> str:
    if not rig.encrypted:
        return "off: only for addresses of this machine or a trusted network"
    pair = read_key_pair(rig.security.key)
    network = rig.network
    hosts: tuple[tuple[Literal["acquire", "sink"], str], ...] = (
        ("acquire", network.dispatch),
        ("sink", network.results),
    )
    for host, address in hosts:
        location = tcp_address(address)
        if location and is_loopback(location[0]) and rig.security.key_of(host) != pair.public.decode():
            raise ConfigError(
                f"[security] {host}_key is not the key of this machine, where {address} is",
                expected=pair.public.decode(),
                got=rig.security.key_of(host),
            )
    return f"key {pair.public.decode()}, {len(read_allowed(rig.security.allowed))} other hosts allowed"


def _check_addresses(rig: Rig) -> str:
    names: tuple[Literal["dispatch", "results", "taps"], ...] = ("dispatch", "results", "taps")
    with zmq.Context() as context:
        for name in names:
            with context.socket(zmq.ROUTER) as socket:
                # Binding is the only reliable test: another program may hold the port without listening.
                bind(socket, rig.network.listening(name), name)
    if rig.preview.enabled:
        preview = WebPreview(rig.preview, rig.record.folder)
        preview.start()
        preview.close()
    return f"{rig.network.dispatch}, {rig.network.results}, {rig.network.taps} are free"


def _check_recording(rig: Rig, capabilities: CameraCapabilities | None, calibrations: Sequence[Calibration]) -> str:
    if not rig.record.enabled:
        return "off"
    folder = rig.record.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # os.access() is wrong on network file systems and for root; writing is not.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise StorageError(f"Cannot write to the [record] folder {folder}", got=error.strerror) from None
    free_mib = free_bytes(folder / "x") >> 20
    if free_mib < rig.record.min_free_mib:
        raise StorageError(
            f"The disk of [record] folder {folder} is full",
            expected=f"at least {rig.record.min_free_mib} MiB free",
            got=f"{free_mib} MiB",
        )
    Compression(rig.record.compression).filters()
    words = f"{folder}, {free_mib / 1024:.1f} GiB free"
    if capabilities is None or not capabilities.frame_period_ns or not calibrations:
        return words
    pixels = capabilities.height_px * capabilities.width_px
    raw_bytes = pixels * (1 if capabilities.bit_depth <= 8 else 2) if rig.record.raw else 0
    video_bytes = pixels * calibrations[0].n_frames * np.dtype(rig.record.video_dtype).itemsize
    per_s = (raw_bytes + (video_bytes if rig.record.video else 0)) * 1e9 / capabilities.frame_period_ns
    hours = (free_mib - rig.record.min_free_mib) * 2**20 / per_s / 3600
    rate = f"{per_s / 1e6:.3g} MB/s if all is reconstructed"
    if rig.record.is_triggered:
        events = hours * 3600 / max(rig.record.before_s + rig.record.after_s, 1e-3)
        return f"{words}: room for {events:.0f} events; an event takes {rate}"
    return f"{words}: full after {hours:.3g} h of {rate}"


def print_findings(findings: list[Finding], console: Console) -> None:
    """Print one line per finding."""
    for finding in findings:
        mark = "[green]ok[/]   " if finding.exit_status == 0 else "[bold red]no[/]   "
        mark = "[yellow]warn[/] " if finding.warning else mark
        console.print(f"{mark}{finding.what:<12}{escape(finding.text)}", highlight=False, soft_wrap=True)
