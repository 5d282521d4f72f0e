"""``sci-stream check``: test each component of a rig and explain failures."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from xml.etree import ElementTree

import numpy as np
import zmq
from rich.console import Console
from rich.markup import escape

from sci_stream.calibration.compatibility import require_compatible_calibration
from sci_stream.calibration.diagnosis import DARK, findings, is_withheld
from sci_stream.calibration.evidence.inspection import inspect
from sci_stream.config import Rig, load_rig
from sci_stream.config.fields import is_loopback, tcp_address
from sci_stream.devices.analyses import Analyses
from sci_stream.devices.camera_drivers import load_driver, make_camera
from sci_stream.devices.modulators import make_coded_camera
from sci_stream.errors import (
    CalibrationError,
    ConfigError,
    DeviceError,
    FileFormatError,
    SciStreamError,
    StorageError,
    missing_library,
)
from sci_stream.field_types import MAX_CHUNKS
from sci_stream.file_guard import in_words
from sci_stream.model import CameraCapabilities, CameraFrame, JsonObject, Policy, Snapshot
from sci_stream.modulation.patterns import sparser_masks_hint
from sci_stream.nodes.runtime.process import limit_threads
from sci_stream.nodes.runtime.runtime_folder import RunFolder, memory_folder, private_folder
from sci_stream.optics.calibration import Calibration
from sci_stream.ports import Camera, Reconstructor
from sci_stream.recording.calibration_file import load_calibration
from sci_stream.recording.hdf5 import require_recording_disk
from sci_stream.recording.layout import Compression
from sci_stream.recording.segments import free_bytes
from sci_stream.reports import CalibrationHealth
from sci_stream.security.keys import read_allowed, read_key_pair
from sci_stream.tools.timing_check import check_timing
from sci_stream.transport.http import listen
from sci_stream.transport.sockets import bind
from sci_stream.web.preview import WebPreview

if TYPE_CHECKING:
    import torch

    from sci_stream.ports import Solver
    from sci_stream.recon.engine import Engine
    from sci_stream.recon.settings import SolverSettings

# Snapshots with which the masks are compared: gains that rise show from the fourth on.
_FRAMES = 6
# Longest time to wait for them.
_WAIT_S = 5.0
# Longest time for one measurement of the speed: on a slow machine one solve takes a minute.
_MEASURED_NS = 10_000_000_000
# Share of the measured speed that a rig may use: the nodes share the machine with other programs.
_SHARE = 0.7
# Fewer look bad with any denoiser.
_FEWEST_ITERATIONS = 4
# With warm starts of a small network, further ones gain less than a higher rate shows
# (docs/benchmarks.md).
_GOOD_ITERATIONS = 6
# To try in place of a solver that is too slow.
_QUICK = "ffdnet-lite"
_OTHER_PORT = "Another program may use the port: choose another, or 0 for any free one."
_RATE = "snapshot_rate_hz"
_NOT_DONE = ("not checked", "not compared", "not measured")


@dataclass(frozen=True)
class Finding:
    """Result of one check; ``exit_status`` is 0 if it passed, perhaps with a ``warning``."""

    what: str
    text: str
    exit_status: int = 0
    warning: bool = False
    edit: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Values, by table of the rig file, with which the check would pass."""

    @property
    def state(self) -> Literal["ok", "warning", "failed"]:
        """The result in a word."""
        return "warning" if self.warning else "failed" if self.exit_status else "ok"

    def to_json(self) -> JsonObject:
        """Return plain values."""
        return {
            "check": self.what,
            "state": self.state,
            "text": self.text,
            "exit_status": self.exit_status,
        }


def check_rig(path: Path, begins: Callable[[str], None] = lambda _: None) -> Iterator[Finding]:
    """Check a rig as far as possible on this machine; continue after failures.

    ``begins`` is called with the name of each check before it, since some take minutes.
    """
    limit_threads()  # as in a reconstruct node, whose speed is measured
    try:
        rig = load_rig(path)
    except SciStreamError as error:
        yield Finding("rig file", str(error), error.exit_status)
        return
    yield Finding("rig file", f"{path}: {rig.rig.name}")
    yield from _Checks(rig).findings(begins)


class _Checks:
    """The checks of a rig; each uses the results of those before it."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._capabilities: CameraCapabilities | None = None
        self._camera_masks: Calibration | None = None
        self._calibration: Calibration | None = None
        """The calibration, once it fits the camera."""
        self._snapshots: list[Snapshot] = []
        self._solver: tuple[Solver, SolverSettings] | None = None

    def findings(self, begins: Callable[[str], None]) -> Iterator[Finding]:
        """Yield the findings in the order in which a rig needs them, to the end: one run shows all
        faults.
        """
        checks: dict[str, Callable[[], str | Finding]] = {
            "camera": self._check_camera,
            **({"modulator": self._check_modulator} if self._rig.modulator.driver else {}),
            "calibration": self._check_calibration,
            "masks": self._check_masks,
            "device": self._check_devices,
            "solver": self._check_solver,
            "speed": self._check_speed,
            "encryption": self._check_encryption,
            "addresses": self._check_addresses,
            "runtime": self._check_runtime_folder,
            "recording": self._check_recording,
        }
        for what, check in checks.items():
            begins(what)
            try:
                said = check()
                warns = isinstance(said, str) and said.startswith(_NOT_DONE)
                yield said if isinstance(said, Finding) else Finding(what, said, warning=warns)
            except SciStreamError as error:
                yield Finding(what, str(error), error.exit_status)
            except ModuleNotFoundError as error:
                yield self._without_library(what, error)
        for text in self._capabilities.distortions if self._capabilities else ():
            yield Finding("settings", text, warning=True)

    def _without_library(self, what: str, error: ModuleNotFoundError) -> Finding:
        """Return the finding of a missing library: a failure only where reconstruct nodes run on
        this machine.
        """
        explained = missing_library(error)
        if explained is None:
            raise error
        return Finding(
            what, str(explained), 0 if self._rig.spans_machines else explained.exit_status
        )

    def _check_camera(self) -> str:
        """Open the camera without the modulator, whose faults are its own."""
        found = self._opened(make_camera(self._rig))
        return (
            f"{found.model} {found.serial}, {found.height_px}×{found.width_px} {found.pixel_format}"
        )

    def _check_modulator(self) -> str:
        if self._capabilities is None:
            return "not checked: it needs the camera"
        self._capabilities = None  # with the modulator, it has other ones
        self._opened(make_coded_camera(self._rig))
        return check_timing(self._rig)

    def _opened(self, camera: Camera) -> CameraCapabilities:
        """Open a camera, keep its capabilities and masks, close it."""
        try:
            self._capabilities, self._camera_masks = camera.open(), camera.calibration()
        finally:
            camera.close()
        return self._capabilities

    def _check_calibration(self) -> str:
        section = self._rig.calibration
        calibration = load_calibration(section.file) if section.file else None
        if self._capabilities is not None:
            self._calibration = calibration = require_compatible_calibration(
                self._capabilities,
                self._camera_masks,
                calibration,
                section.file,
                other_camera=section.other_camera,
            )
        if calibration is None:
            return "not checked: the camera has the masks, and cannot be opened"
        blind = int(calibration.blind.sum())
        words = f"B = {calibration.n_frames}, hash {calibration.hash[:12]}…"
        return f"{words}; {blind} pixels that no mask opens" if blind else words

    def _check_masks(self) -> str:
        """Compare the masks with some snapshots: whether they are the camera's, where they are."""
        from sci_stream.calibration.monitor import CalibrationMonitor  # noqa: PLC0415 - a light host has no torch
        from sci_stream.recon.backend.device import pick_device  # noqa: PLC0415 - imports torch

        calibration = self._calibration
        if calibration is None:
            return "not compared: they need camera and calibration"
        self._snapshots = _take_snapshots(self._rig, calibration)
        monitor = CalibrationMonitor(calibration, pick_device("cpu"), every=1, correct=True)
        health: CalibrationHealth | None = None
        clipped = 0.0
        for snapshot in self._snapshots:
            if calibration.saturation_dn is not None:
                clipped = max(clipped, float(np.mean(snapshot.counts >= calibration.saturation_dn)))
            health = monitor.measure(snapshot) or health
        if health is None:
            return f"not compared: no frame within {_WAIT_S:g} s; the camera may wait for a trigger"
        if health.brightness is None or health.brightness < DARK:
            return "not compared: the snapshots are saturated or dark"
        defects = inspect(self._snapshots[-1].counts, calibration)
        faults = {one.name: one.text_for_rig for one in defects} | findings(
            health, self._rig.calibration.warn_shift_px
        )
        if is_withheld(health):
            raise CalibrationError("; ".join(faults.values()))
        if health.match is None:
            return (
                "not compared: the sensor is too small, or the masks add up evenly and a "
                "snapshot shows none of them"
            )
        hint = sparser_masks_hint(clipped, float(calibration.phi.mean()))
        match = f"match {health.match:.2f} (1: all of the picture is explained)"
        return "; ".join(filter(None, [match, *faults.values(), hint, monitor.correction.words]))

    def _check_devices(self) -> str:
        from sci_stream.recon.backend import device  # noqa: PLC0415 - a light host has no torch

        names = self._rig.reconstruct.devices
        reasons = {reason for name in names if (reason := device.idle_cuda(name))}
        return "; ".join(
            [
                ", ".join(device.describe_device(device.pick_device(name)) for name in names),
                *reasons,
            ]
        )

    def _check_solver(self) -> str:
        from sci_stream.devices import solver  # noqa: PLC0415 - a light host has no torch

        section = self._rig.reconstruct
        prior, settings = solver.make_prior(section, _first_device(self._rig))
        settings = (
            solver.suited(section, settings, self._calibration) if self._calibration else settings
        )
        self._solver = prior, settings
        from_camera = self._capabilities.chunks if self._capabilities else ()
        names = sorted({*from_camera, *self._units_of_analyses()})
        if len(names) > MAX_CHUNKS:
            raise ConfigError(
                "Camera, modulator and [reconstruct] analyses add too many numbers to a snapshot",
                expected=f"at most {MAX_CHUNKS} names",
                got=f"{len(names)}: {', '.join(names)}",
                hint="Leave out an analysis, or chunk data of the camera.",
            )
        if isinstance(prior, Reconstructor) and prior.abilities.before is None:
            return f"{prior.name}, all frames at once"
        sigmas = f"σ {settings.sigma_first:.3f} → {settings.sigma_last:.3f}"
        return f"{prior.name}, up to {settings.iterations} iterations, {sigmas}"

    def _units_of_analyses(self) -> Collection[str]:
        try:
            return Analyses(self._rig.reconstruct.analyses).units
        except ConfigError:
            if self._rig.spans_machines:  # they may be installed on the others only
                return ()
            raise

    def _check_speed(self) -> str | Finding:
        """Solve the snapshots as a node does, and compare the time with the camera's."""
        if not (self._snapshots and self._calibration and self._capabilities and self._solver):
            return "not measured: it needs camera, calibration and solver"
        if not self._rig.reconstruct.nodes:
            return "[reconstruct] nodes = 0: this machine solves nothing"
        from sci_stream.recon.engine import Engine  # noqa: PLC0415 - a light host has no torch, and no solver above

        rig = self._rig
        prior, settings = self._solver
        engine = Engine(
            self._calibration,
            prior,
            _first_device(rig),
            settings,
            cuda_graphs=rig.reconstruct.cuda_graphs,
        )
        engine.warm_up()
        full_hz = self._measured_hz(engine, settings.iterations)
        words = f"{full_hz:.3g} snapshots/s with {settings.iterations} iterations on this machine"
        words = f"{words} ({engine.fault})" if engine.fault else words
        if not self._capabilities.frame_period_ns:
            return words
        camera_hz = 1e9 / self._capabilities.frame_period_ns
        words = f"{words}, the camera's {camera_hz:.3g}/s"
        if full_hz >= camera_hz:
            return f"{words}: it keeps up"
        least = settings.min_iterations if rig.reconstruct.adapt_budget else settings.iterations
        least_hz = full_hz * settings.iterations / least
        if least_hz >= camera_hz and self._measured_hz(engine, least) >= camera_hz:
            return f"{words}: it keeps up with {least} iterations"
        fate = (
            "are recorded raw only"
            if rig.record.is_triggered or rig.policy.mode is Policy.RECORD
            else "are dropped"
        )
        lost = max(0.0, 1 - least_hz / camera_hz)
        text = f"{words}: too slow, {lost:.0%} of the snapshots {fate}; replay can do them later"
        fits, edit = self._what_fits(full_hz, camera_hz)
        slower = f"or this solver as it is at {_SHARE * full_hz:.2g} snapshots/s"
        return Finding("speed", f"{text}; {fits}; {slower}", warning=True, edit=edit)

    def _measured_hz(self, engine: Engine, iterations: int) -> float:
        """Return the snapshots that the nodes on this machine solve per second."""
        # Nodes on one device share it, so that more of them solve no more.
        solvers = min(self._rig.reconstruct.nodes, len(set(self._rig.reconstruct.devices)))
        times_ns: list[int] = []
        for snapshot in self._snapshots:
            times_ns.append(engine.reconstruct(snapshot, iterations)[1].solve_ns)
            if sum(times_ns) > _MEASURED_NS:
                break
        return solvers * 1e9 / float(np.median(times_ns))

    def _what_fits(
        self, full_hz: float, camera_hz: float
    ) -> tuple[str, Mapping[str, Mapping[str, object]]]:
        """Return what this machine solves in time, in words and as values of the rig file: fewer
        iterations, a quicker solver, a slower camera.
        """
        from sci_stream.devices import solver  # noqa: PLC0415 - a light host has no torch
        from sci_stream.recon.engine import Engine  # noqa: PLC0415 - a light host has no torch, and no solver above

        assert self._solver
        assert self._calibration
        device = _first_device(self._rig)
        fewer = int(_SHARE * self._solver[1].iterations * full_hz / camera_hz)
        if fewer >= _FEWEST_ITERATIONS:
            return f"fits: {fewer} iterations", {"reconstruct": {"iterations": fewer}}
        changed = {"solver": _QUICK, "weights": None, "iterations": _GOOD_ITERATIONS}
        section = self._rig.reconstruct.model_copy(update=changed)
        prior, settings = solver.make_prior(section, device)
        engine = Engine(self._calibration, prior, device, settings, cuda_graphs=False)
        engine.warm_up()
        hz = _SHARE * self._measured_hz(engine, settings.iterations)
        fitting = int(settings.iterations * hz / camera_hz)
        iterations = fitting if fitting >= _FEWEST_ITERATIONS else settings.iterations
        values = {"reconstruct": {"solver": _QUICK, "iterations": iterations}}
        words = f"fits: {_QUICK} with {iterations} iterations"
        if fitting >= _FEWEST_ITERATIONS:
            return words, values
        rate_hz = float(f"{hz:.2g}")
        words = f"{words} at {rate_hz:g} snapshots/s"
        if _RATE in load_driver(self._rig.camera.driver).Options.model_fields:
            return words, {**values, "camera.options": {_RATE: rate_hz}}
        return f"{words}; set the rate in the camera's features", values

    def _check_encryption(self) -> str:
        rig = self._rig
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
            if (
                location
                and is_loopback(location[0])
                and rig.security.key_of(host) != pair.public.decode()
            ):
                raise ConfigError(
                    f"[security] {host}_key is not the key of this machine, where {address} is",
                    expected=pair.public.decode(),
                    got=rig.security.key_of(host),
                )
        return (
            f"key {pair.public.decode()}, {len(read_allowed(rig.security.allowed))} other "
            "hosts allowed"
        )

    def _check_addresses(self) -> str:
        rig = self._rig
        with zmq.Context() as context:
            for name, endpoint in rig.network.listening.items():
                with context.socket(zmq.ROUTER) as socket:
                    # Binding is the only reliable test: another program may hold the port without
                    # listening.
                    bind(socket, endpoint, name)
        if rig.preview.enabled:
            preview = WebPreview(rig.preview, rig.record.folder)
            preview.start()
            preview.close()
        for node, port in rig.health_ports.items():
            what = f"The health endpoints of {node} ([health])"
            listen(rig.health.host, port, what=what, hint=_OTHER_PORT).close()
        free = f"{rig.network.dispatch}, {rig.network.results}, {rig.network.taps} are free"
        ports = ", ".join(map(str, rig.health_ports.values()))
        return f"{free}; health ports {ports} are free" if ports else free

    def _check_runtime_folder(self) -> str:
        place = private_folder(memory_folder())
        try:
            with RunFolder(place) as folder:
                (folder.path / "probe").write_bytes(b"probe")
        except OSError as error:
            raise StorageError(
                f"Cannot use the folder {place} for the files of a run",
                got=error.strerror,
                hint="Make it writable for this user, or name another in TMPDIR.",
            ) from None
        return str(place)

    def _check_recording(self) -> str:
        rig = self._rig
        capabilities = self._capabilities
        if not rig.record.enabled:
            return "off"
        folder = rig.record.folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            has_locks = require_recording_disk(folder)
        except (OSError, FileFormatError) as error:
            raise StorageError(
                f"Cannot record in the [record] folder {folder}", got=in_words(error)
            ) from None
        free_mib = free_bytes(folder / "x") >> 20
        if free_mib < rig.record.min_free_mib:
            raise StorageError(
                f"The disk of [record] folder {folder} is full",
                expected=f"at least {rig.record.min_free_mib} MiB free",
                got=f"{free_mib} MiB",
            )
        Compression(rig.record.compression).filters()
        words = f"{folder}, {free_mib / 1024:.1f} GiB free"
        if not has_locks:
            words += ", without file locks: `repair` needs a copy on another disk"
        if capabilities is None or not capabilities.frame_period_ns or self._calibration is None:
            return words
        pixels = capabilities.height_px * capabilities.width_px
        raw_bytes = pixels * (1 if capabilities.bit_depth <= 8 else 2) if rig.record.raw else 0
        value_bytes = np.dtype(rig.record.video_dtype).itemsize if rig.record.video else 0
        video_bytes = pixels * self._calibration.n_frames * value_bytes
        per_s = (raw_bytes + video_bytes) * 1e9 / capabilities.frame_period_ns
        hours = (free_mib - rig.record.min_free_mib) * 2**20 / per_s / 3600
        rate = f"{per_s / 1e6:.3g} MB/s"
        if rig.record.video:
            rate += " if all is reconstructed"
        if rig.record.is_triggered:
            events = hours * 3600 / max(rig.record.before_s + rig.record.after_s, 1e-3)
            return f"{words}: room for {events:.0f} events; an event takes {rate}"
        return f"{words}: full after {hours:.3g} h of {rate}"


def _first_device(rig: Rig) -> torch.device:
    """Return the rig's first device, on which its defaults depend; the CPU if that is not available
    here.
    """
    from sci_stream.recon.backend.device import pick_device  # noqa: PLC0415 - a light host has no torch

    try:
        return pick_device(rig.reconstruct.devices[0])
    except DeviceError:
        return pick_device("cpu")


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
        replace(calibration.snapshot("check", seq, frame.counts), chunks=frame.chunks)
        for seq, frame in enumerate(frames)
    ]


def print_finding(finding: Finding, console: Console) -> None:
    """Print a finding, one fact a line."""
    mark = {"ok": "[green]ok[/]   ", "warning": "[yellow]warn[/] ", "failed": "[bold red]no[/]   "}
    first, *others = finding.text.split("; ")
    console.print(
        f"{mark[finding.state]}{finding.what:<12}{escape(first)}", highlight=False, soft_wrap=True
    )
    for fact in others:
        console.print(f"{'':<17}{escape(fact)}", highlight=False, soft_wrap=True)


def junit_report(path: Path, findings: Sequence[Finding]) -> str:
    """Return the findings as a JUnit report: a test for each."""
    failed = sum(finding.state == "failed" for finding in findings)
    suite = ElementTree.Element(
        "testsuite", name=f"sci-stream check {path}", tests=str(len(findings)), failures=str(failed)
    )
    for finding in findings:
        case = ElementTree.SubElement(suite, "testcase", classname="rig", name=finding.what)
        kind = {"ok": "system-out", "warning": "skipped", "failed": "failure"}[finding.state]
        if kind == "system-out":
            ElementTree.SubElement(case, kind).text = finding.text
        else:
            ElementTree.SubElement(case, kind, message=finding.text)
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)
