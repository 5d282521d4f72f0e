"""``sci-stream bench …``: figures measured on this machine."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from sci_stream.cli.common import SOLVER_NAMES, Device, JsonPath, echo, table_console
from sci_stream.errors import ConfigError, LedgerError
from sci_stream.model import Policy

if TYPE_CHECKING:
    from sci_stream_lab.bench.datasets import Footage
    from sci_stream_lab.bench.result import BenchResult, ResultTable

    Result = TypeVar("Result", bound=BenchResult)

bench_app = typer.Typer(help="Benchmarks: figures measured on this machine.", no_args_is_help=True)


def _plottable(path: Path | None) -> Path | None:
    """Raise unless a plot can be written to this file: before the measurements, not after them."""
    if path is not None:
        from sci_stream_lab.bench.result import require_plot_format

        require_plot_format(path)
    return path


def _plot_option(what: str = "") -> Any:
    return typer.Option(
        "--plot", help=f"Plot {what}to this file (.png, .svg, .pdf).", callback=_plottable
    )


_DATA = typer.Option(
    help="Folder of published .mat files, searched recursively.", exists=True, file_okay=False
)

Solver = Annotated[
    str, typer.Option(*SOLVER_NAMES, help="tv, ffdnet, file.py:Class, …; auto: as in a rig.")
]
Weights = Annotated[Path | None, typer.Option(help="FFDNet checkpoint.")]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any other key of \\[reconstruct], or setting of the solver; repeatable.",
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        help="Where to record; a temporary folder by default.", exists=True, file_okay=False
    ),
]


def _show(
    result: Result,
    json_path: Path | None,
    *more: ResultTable[object],
    plot: Callable[[Result, Path], None] | None = None,
    plot_path: Path | None = None,
) -> None:
    """Print a result and further tables; write it as JSON and plot it if requested."""
    from sci_stream_lab.bench.result import print_result, write_json

    print_result(result, table_console(), more)
    if json_path is not None:
        write_json(result, json_path)
    if plot is not None and plot_path is not None:
        plot(result, plot_path)


@bench_app.command("stream")
def bench_stream(
    snapshots: Annotated[int, typer.Option(min=10, help="Snapshots in each part.")] = 1000,
    height: Annotated[int, typer.Option(min=2, help="Rows of a snapshot.")] = 512,
    width: Annotated[int, typer.Option(min=2, help="Columns of a snapshot.")] = 512,
    tcp: Annotated[bool, typer.Option("--tcp", help="Connect over TCP, as between hosts.")] = False,
    record: Annotated[
        bool, typer.Option("--record", help="Also measure the recording of raw snapshots.")
    ] = False,
    folder: Annotated[
        Path,
        typer.Option(
            help="With --record: a folder on the disk to measure.", exists=True, file_okay=False
        ),
    ] = Path(),
    rate: Annotated[
        float, typer.Option(min=0.1, help="With --record: snapshot rate of the paced part, Hz.")
    ] = 250.0,
    json_path: JsonPath = None,
) -> None:
    """Measure the pipeline without reconstruction: camera, copying worker, sink."""
    from sci_stream_lab.bench.pipeline.record import bench_record
    from sci_stream_lab.bench.pipeline.stream import bench, stream_result

    parts = bench(snapshots=snapshots, height_px=height, width_px=width, tcp=tcp)
    if record:
        parts += bench_record(
            folder, snapshots=snapshots, height_px=height, width_px=width, rate_hz=rate
        )
    _show(stream_result(parts, tcp=tcp), json_path)


@bench_app.command("quality")
def bench_quality(
    data: Annotated[Path, _DATA],
    denoiser: Annotated[
        list[str] | None,
        typer.Option(
            *SOLVER_NAMES,
            help="tv, ffdnet, file.py:Class, …; auto, the default: as in a rig. Repeatable.",
        ),
    ] = None,
    weights: Weights = None,
    iterations: Annotated[
        int | None, typer.Option(min=1, help="Iterations; the prior's default if not given.")
    ] = None,
    assignments: Assignments = None,
    device: Device = "auto",
    json_path: JsonPath = None,
    plot_path: Annotated[
        Path | None, _plot_option("PSNR over iterations, with example frames, ")
    ] = None,
    full_scale_dn: Annotated[
        float | None,
        typer.Option(
            help="Counts of a white frame through an open mask, for files whose masks are a "
            "little wrong."
        ),
    ] = None,
    bare: Annotated[
        bool, typer.Option("--bare", help="The engine alone, without the guard of all users.")
    ] = False,
    mismatch: Annotated[
        bool, typer.Option("--mismatch", help="Also with masks that are a little off.")
    ] = False,
) -> None:
    """Measure PSNR and SSIM on published sets as users get them, next to published figures."""
    from sci_stream_lab.bench.quality.published_sets import bench, bench_priors
    from sci_stream_lab.bench.solver_section import solver_section

    names = denoiser or ["auto"]
    sections = [solver_section(name, weights, assignments, iterations=iterations) for name in names]
    if len(sections) == 1:
        _show(
            bench(
                data,
                sections[0],
                device,
                echo,
                plot_path,
                full_scale_dn=full_scale_dn,
                bare=bare,
                mismatch=mismatch,
            ),
            json_path,
        )
        return
    if plot_path is not None or weights is not None:
        raise ConfigError(
            "--plot and --weights are for one solver",
            expected="one --solver",
            got=", ".join(names),
        )
    result = bench_priors(data, sections, device, echo, full_scale_dn=full_scale_dn, bare=bare)
    _show(result, json_path)


@bench_app.command("classes")
def bench_classes(
    weights: Annotated[
        Path | None,
        typer.Argument(help="Weights, such as unrolled stages; a rig's default if none."),
    ] = None,
    data: Annotated[Path | None, _DATA] = None,
    clips: Annotated[
        Path | None, typer.Option(help="Folder of videos to code.", exists=True, file_okay=False)
    ] = None,
    clip: Annotated[
        list[str] | None, typer.Option(help="Name of a clip of the folder; repeatable.")
    ] = None,
    count: Annotated[
        int, typer.Option(min=1, help="Clips of the folder, unless some are named.")
    ] = 6,
    capture: Annotated[
        list[Path] | None,
        typer.Option(help="File with measured masks and snapshots without truth; repeatable."),
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(metavar="DENOISER:ITERATIONS", help="A solver to compare with; repeatable."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Beginning of a class's name; repeatable.")
    ] = None,
    size: Annotated[
        int, typer.Option(min=32, help="Height and width of coded clips, pixels.")
    ] = 128,
    device: Device = "auto",
    json_path: JsonPath = None,
) -> None:
    """Compare solvers by class: published sets, masks of each kind, their errors, low light, real
    captures.
    """
    from sci_stream_lab.bench.quality.classes import bench, chosen_clips, solvers_of

    paths = [] if clips is None else chosen_clips(clips, clip or (), count)
    solvers = solvers_of(weights, against or ("ffdnet-lite:12", "ffdnet-lite:40"))
    result = bench(
        solvers,
        device,
        echo,
        data=data,
        clips=paths,
        captures=capture or (),
        size=size,
        only=only or (),
    )
    _show(result, json_path)


@bench_app.command("paper")
def bench_paper(
    data: Annotated[Path, _DATA],
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="Prefix of a method's name (DeSCI, PnP-FFDNet, …); repeatable. Default: all."
        ),
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="FFDNet checkpoint; the shipped one by default.")
    ] = None,
    shots: Annotated[
        int | None, typer.Option(min=1, help="Shots of each set; all by default.")
    ] = None,
    device: Device = "auto",
    json_path: JsonPath = None,
    plot_path: Annotated[Path | None, _plot_option("quality over time ")] = None,
) -> None:
    """Measure the paper's methods on published sets, next to the paper's figures.

    WNNM takes minutes per shot.
    """
    from sci_stream_lab.bench.datasets import published
    from sci_stream_lab.bench.quality.paper_table import bench, chosen_methods, plot

    methods = chosen_methods(method or ())
    result = bench(published(data, echo), methods, device, echo, weights=weights, shots=shots)
    _show(result, json_path, plot=plot, plot_path=plot_path)


@bench_app.command("reality")
def bench_reality(
    scenes: Annotated[
        str, typer.Option(help="tuning, reporting (never tune on these) or all.")
    ] = "all",
    perturbation: Annotated[
        list[str] | None,
        typer.Option(help="none, shift, gain, all, shift+gain, …; repeatable. All by default."),
    ] = None,
    masks: Annotated[
        list[str] | None,
        typer.Option(
            help="published, random, shift, moving or measured; repeatable. All by default."
        ),
    ] = None,
    blur: Annotated[
        list[float] | None, typer.Option(help="Blur of the masks, pixels; repeatable.")
    ] = None,
    frames: Annotated[
        list[int] | None, typer.Option(help="Frames per snapshot; repeatable.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Every rig on every scene: hours.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Three rigs, three perturbations, one snapshot.")
    ] = False,
    iterations: Annotated[
        int, typer.Option(min=1, help="Iterations; the plain loop always has 40.")
    ] = 12,
    snapshots: Annotated[
        int, typer.Option(min=1, help="Snapshots of a series, of which the last one counts.")
    ] = 3,
    size: Annotated[int, typer.Option(min=32, help="Height and width of the field, pixels.")] = 128,
    denoiser: Solver = "auto",
    weights: Weights = None,
    assignments: Assignments = None,
    jobs: Annotated[
        int, typer.Option(min=0, help="Processes; 0 for one per core, or one for a GPU.")
    ] = 0,
    cells: Annotated[bool, typer.Option("--cells", help="Also print every cell.")] = False,
    cost: Annotated[
        bool, typer.Option("--cost", help="Only what noise estimation and self-calibration cost.")
    ] = False,
    device: Device = "auto",
    json_path: JsonPath = None,
    plot_path: Annotated[Path | None, _plot_option()] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write all tables to this Markdown file.")
    ] = None,
) -> None:
    """Measure the loss from errors of the calibrated masks, on scenes with ground truth."""
    from sci_stream_lab.bench.reality import compare
    from sci_stream_lab.bench.reality.cost import bench_cost
    from sci_stream_lab.bench.reality.solving import SolverSpec
    from sci_stream_lab.bench.result import write_markdown
    from sci_stream_lab.bench.solver_section import solver_section

    spec = SolverSpec(
        solver_section(denoiser, weights, assignments, warm_start=True), device, iterations
    )
    if cost:
        _show(bench_cost(spec), json_path)
        return
    plan = compare.choose_plan(
        extent=compare.Extent.QUICK
        if quick
        else compare.Extent.FULL
        if full
        else compare.Extent.USUAL,
        scenes=scenes,
        perturbations=tuple(perturbation or ()),
        patterns=tuple(masks or ()),
        blurs_px=tuple(blur or ()),
        frames=tuple(frames or ()),
        snapshots=snapshots,
        size=size,
    )
    result = compare.bench(
        plan, spec, echo, settings={"set": " ".join(assignments or [])}, jobs=jobs
    )
    every_cell = compare.cell_table(result)
    _show(
        result, json_path, *([every_cell] if cells else []), plot=compare.plot, plot_path=plot_path
    )
    if report is not None:
        write_markdown(result, report, [every_cell])


@bench_app.command("colour")
def bench_colour(
    folder: Annotated[
        Path,
        typer.Argument(
            help="Folder of photographs, searched recursively.",
            show_default=False,
            exists=True,
            file_okay=False,
        ),
    ],
    denoiser: Annotated[
        str,
        typer.Option(*SOLVER_NAMES, help="Solver of the scenes and the colour chart."),
    ] = "ffdnet-lite",
    weights: Weights = None,
    device: Device = "auto",
    json_path: JsonPath = None,
) -> None:
    """Measure demosaicing on photographs, colour scenes behind masks, and a colour chart through
    the simulated camera and back.
    """
    from sci_stream.config import ReconstructSection
    from sci_stream_lab.bench.quality.colour import bench

    section = ReconstructSection(solver=denoiser, weights=weights)
    _show(bench(folder, section, device, echo), json_path)


@bench_app.command("page")
def bench_page(
    size: Annotated[int, typer.Option(min=64, help="Height and width of the sensor, px.")] = 512,
    rate: Annotated[float, typer.Option(min=0.1, help="Snapshots shown per second.")] = 30.0,
    snapshots: Annotated[
        int, typer.Option(min=2, help="Snapshots to reconstruct and encode.")
    ] = 12,
    denoiser: Solver = "auto",
    device: Device = "auto",
    json_path: JsonPath = None,
) -> None:
    """Measure what a viewer of the live page is sent, as JPEG and as H.264."""
    from sci_stream_lab.bench.speed.page import bench

    result = bench(
        size_px=size,
        rate_hz=rate,
        snapshots=snapshots,
        denoiser=denoiser,
        device=device,
        progress=echo,
    )
    _show(result, json_path)


@bench_app.command("speed")
def bench_speed(
    sizes: Annotated[
        str | None,
        typer.Option(
            help="Rows x columns x frames, by commas: 256x256x8,512x512x22:bayer. '' for none."
        ),
    ] = None,
    denoiser: Annotated[
        str, typer.Option(*SOLVER_NAMES, help="ffdnet, ffdnet-lite or tv.")
    ] = "ffdnet",
    weights: Annotated[
        Path | None,
        typer.Option(
            help="Checkpoint; without one ffdnet uses random weights, which take the same time."
        ),
    ] = None,
    precision: Annotated[str, typer.Option(help="auto, float32 or half.")] = "auto",
    iterations: Annotated[int, typer.Option(min=1, help="Iterations of a snapshot.")] = 8,
    warm: Annotated[
        bool, typer.Option("--warm", help="Start each snapshot of a stream from the one before.")
    ] = False,
    against: Annotated[
        Path | None,
        typer.Option(
            help="Published .mat file for timing the published loop and the instrument against it."
        ),
    ] = None,
    shots: Annotated[int, typer.Option(min=1, help="Number of shots of that file.")] = 1,
    chunks: Annotated[
        bool, typer.Option("--chunks", help="Also time several chunk sizes.")
    ] = False,
    stacks: Annotated[
        bool,
        typer.Option(
            "--stacks", help="Also time every way to run the network; some compile for minutes."
        ),
    ] = False,
    live: Annotated[
        int,
        typer.Option(
            min=0, help="Snapshots of a rig that records at the first size, for latency and losses."
        ),
    ] = 0,
    most_seconds: Annotated[
        float, typer.Option(min=0, help="Skip sizes expected to take longer than this.")
    ] = 120.0,
    device: Device = "auto",
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; 0: torch's choice.")] = 0,
    json_path: JsonPath = None,
    plot_path: Annotated[Path | None, _plot_option()] = None,
) -> None:
    """Measure the time per iteration and snapshot by size, and the time to the published result."""
    import torch

    from sci_stream.recon.backend.half_precision import Precision
    from sci_stream_lab.bench.speed.solve_times import SIZES, parse_sizes
    from sci_stream_lab.bench.speed.speed import SpeedPlan, bench, plot

    if precision not in set(Precision):
        raise ConfigError(
            "Unknown --precision", expected="auto, float32 or half", got=repr(precision)
        )
    if threads:
        torch.set_num_threads(threads)
    plan = SpeedPlan(
        denoiser=denoiser,
        weights=weights,
        precision=Precision(precision),
        sizes=SIZES if sizes is None else parse_sizes(sizes) if sizes else (),
        iterations=iterations,
        warm=warm,
        most_seconds=most_seconds,
        chunks=chunks,
        stacks=stacks,
        against=against,
        shots=shots,
        live=live,
    )
    _show(bench(plan, device, echo), json_path, plot=plot, plot_path=plot_path)


@bench_app.command("large")
def bench_large(
    sizes: Annotated[
        str,
        typer.Option(
            help="Rows x columns x frames of the sensor, by commas; :bayer for an RGGB mosaic."
        ),
    ] = "1080x1920x24:bayer,2160x3840x48:bayer",
    denoiser: Annotated[str, typer.Option(*SOLVER_NAMES, help="tv, ffdnet-lite or ffdnet.")] = "tv",
    iterations: Annotated[int, typer.Option(min=1, help="Iterations.")] = 4,
    film: Annotated[
        Path | None,
        typer.Option(
            help="A colour film as the scene; drifting waves without.", exists=True, dir_okay=False
        ),
    ] = None,
    device: Device = "auto",
    json_path: JsonPath = None,
) -> None:
    """Measure memory and time of large snapshots from files, simulated as in the paper."""
    from sci_stream_lab.bench.speed import large_scale
    from sci_stream_lab.bench.speed.solve_times import parse_sizes

    result = large_scale.bench(parse_sizes(sizes), denoiser, iterations, device, echo, film=film)
    _show(result, json_path)


@bench_app.command("warm")
def bench_warm(
    data: Annotated[Path | None, _DATA] = None,
    video: Annotated[
        list[Path] | None,
        typer.Option(
            help="Video to film through the simulated optics.", exists=True, dir_okay=False
        ),
    ] = None,
    snapshots: Annotated[int, typer.Option(min=2, help="Snapshots of each video.")] = 56,
    size: Annotated[
        int, typer.Option(min=16, help="Height and width of a video's snapshots, pixels.")
    ] = 256,
    speed: Annotated[
        float, typer.Option(min=0.0, help="Video frames per reconstructed frame.")
    ] = 1.0,
    iterations: Annotated[
        list[int] | None, typer.Option(min=1, help="Iterations to compare at; repeatable.")
    ] = None,
    reference: Annotated[
        int, typer.Option(min=0, help="Cold iterations of the reference; 0 for none.")
    ] = 40,
    denoiser: Solver = "auto",
    weights: Weights = None,
    assignments: Assignments = None,
    device: Device = "auto",
    json_path: JsonPath = None,
    plot_path: Annotated[Path | None, _plot_option("PSNR over snapshots ")] = None,
) -> None:
    """Compare warm starts with cold ones at equal iterations and at equal time; by default at 4, 8
    and 12.
    """
    from sci_stream_lab.bench import datasets
    from sci_stream_lab.bench.quality.warm_start import bench, plot
    from sci_stream_lab.bench.solver_section import solver_section

    def sequences() -> Iterator[Footage]:
        if data is not None:
            yield from datasets.published(data, echo)
        for path in video or ():
            options = {"height_px": size, "width_px": size, "bayer": None, "speed": speed}
            yield datasets.filmed_scene(path.resolve(), snapshots=snapshots, **options)

    section = solver_section(denoiser, weights, assignments)
    counts = tuple(iterations or (4, 8, 12))
    result = bench(sequences(), section, device, echo, iterations=counts, reference=reference)
    _show(result, json_path, plot=plot, plot_path=plot_path)


@bench_app.command("frontier")
def bench_frontier(
    data: Annotated[Path | None, _DATA] = None,
    scene: Annotated[
        list[str] | None,
        typer.Option(help="Scene of the simulated camera, or a video; repeatable."),
    ] = None,
    bayer: Annotated[str, typer.Option(help="RGGB, …; '' for a grey camera.")] = "RGGB",
    snapshots: Annotated[int, typer.Option(min=2, help="Snapshots of each scene.")] = 12,
    size: Annotated[int, typer.Option(min=32, help="Height and width of a scene, pixels.")] = 256,
    steps: Annotated[
        list[int] | None, typer.Option(min=1, help="Iterations and stages together; repeatable.")
    ] = None,
    denoiser: Annotated[
        list[str] | None, typer.Option(*SOLVER_NAMES, help="Solver; repeatable.")
    ] = None,
    device: Device = "auto",
    json_path: JsonPath = None,
    plot_path: Annotated[Path | None, _plot_option("PSNR over the rate ")] = None,
) -> None:
    """Measure the rate against PSNR for numbers of steps, cold and warm: the choice of an operating
    point.
    """
    from sci_stream_lab.bench import datasets
    from sci_stream_lab.bench.quality.frontier import STEPS, bench, plot
    from sci_stream_lab.bench.solver_section import solver_section

    footage = list(datasets.published(data, echo)) if data is not None else []
    options = {"height_px": size, "width_px": size, "bayer": bayer or None, "n_frames": 8}
    scenes = scene or ([] if data is not None else ["splash", "slow", "fast"])
    footage += [datasets.filmed_scene(name, snapshots=snapshots, **options) for name in scenes]
    sections = [solver_section(name, None, None) for name in denoiser or ["ffdnet-lite", "auto"]]
    result = bench(footage, sections, device, echo, steps=steps or STEPS)
    _show(result, json_path, plot=plot, plot_path=plot_path)


# Random kills of a run of all faults: enough that every kind of node is hit, in under a minute.
_KILLS = 20


def _from_checkout(module: str) -> Any:
    """Import a module of `lab/tests/faults`: fault injection is test code, which no installed wheel
    contains.
    """
    try:
        return importlib.import_module(f"lab.tests.faults.{module}")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith(("lab", "tests")):
            raise
        raise ConfigError(
            "Fault injection is not installed",
            expected="a checkout of the repository with `pip install --editable .`",
            got="an installed wheel",
            hint="Clone the repository and run the command there.",
        ) from None


@bench_app.command("faults")
def bench_faults(
    only: Annotated[
        list[str] | None, typer.Argument(help="Faults by name; all by default.")
    ] = None,
    kills: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Kill this number of nodes at random times; without names of faults, do only "
            "that.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random nodes and times.")] = 0,
    policy: Annotated[Policy, typer.Option(help="With kills: live or record.")] = Policy.RECORD,
    freeze: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, help="With kills: fraction to stop and continue, not kill."),
    ] = 0.0,
    nodes: Annotated[
        int, typer.Option(min=0, max=16, help="Reconstruct nodes; 0 to record raw snapshots alone.")
    ] = 2,
    folder: Folder = None,
    json_path: JsonPath = None,
) -> None:
    """Inject faults into a running rig one at a time and report the outcome of every snapshot."""
    chaos = _from_checkout("faults")
    names = list(only or ())
    if kills is not None and not {chaos.RANDOM_KILLS, chaos.KILL_ROUNDS} & set(names):
        names.append(chaos.RANDOM_KILLS)
    result = chaos.bench(
        names,
        n_kills=kills or _KILLS,
        seed=seed,
        policy=policy.value,
        freeze=freeze,
        nodes=nodes,
        folder=folder,
        report=echo,
    )
    _show(result, json_path)
    if result.wrong:
        raise LedgerError("These faults had an unexpected outcome", got=result.wrong)


@bench_app.command("soak")
def bench_soak(
    snapshots: Annotated[int, typer.Option(min=100, help="How many snapshots.")] = 50_000,
    rate: Annotated[
        float | None,
        typer.Option(min=1.0, help="Snapshot rate, Hz; by default what this machine sustains."),
    ] = None,
    denoiser: Annotated[
        str, typer.Option(*SOLVER_NAMES, help="identity, or tv (one iteration).")
    ] = "identity",
    record: Annotated[bool, typer.Option(help="Record during the run.")] = True,
    folder: Folder = None,
    plot_path: Annotated[Path | None, _plot_option()] = None,
    json_path: JsonPath = None,
) -> None:
    """Run a rig with small frames for a long time and check that memory, threads, handles and
    latency stay flat.
    """
    from sci_stream_lab.bench.pipeline.soak import bench, plot

    result = bench(
        snapshots=snapshots,
        rate_hz=rate,
        denoiser=denoiser,
        record=record,
        folder=folder,
        progress=echo,
    )
    _show(result, json_path, plot=plot, plot_path=plot_path)
    if result.ledger is None or not result.ledger.closed:
        raise LedgerError("Snapshots do not add up", got=result.ledger)


@bench_app.command("scale")
def bench_scale(
    nodes: Annotated[
        int, typer.Option(min=1, max=16, help="Reconstruct nodes; they join one after the other.")
    ] = 2,
    snapshots: Annotated[
        int, typer.Option(min=20, help="Snapshots per node before the next one joins.")
    ] = 200,
    solve_ms: Annotated[
        float, typer.Option(min=1.0, help="Time per snapshot of a node, ms; it sleeps.")
    ] = 100.0,
    folder: Folder = None,
    json_path: JsonPath = None,
) -> None:
    """Let reconstruct nodes join a running rig; report the gain of each and its time
    to contribute.
    """
    from sci_stream_lab.bench.pipeline.scale import bench

    result = bench(
        nodes=nodes, snapshots=snapshots, solve_s=solve_ms / 1000, folder=folder, progress=echo
    )
    _show(result, json_path)
    if not result.adds_up:
        raise LedgerError("Snapshots do not add up", got=result.notes[-1])
