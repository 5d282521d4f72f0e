"""Sentences and tables that ``inspect`` and ``compare`` print."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.table import Table

from sci_stream.calibration.mask_order import SHUFFLED
from sci_stream.quantities import Inspected
from sci_stream.recording.columns import HEALTH_QUANTITIES, SOLVE_QUANTITIES, Recorded

if TYPE_CHECKING:
    from sci_stream.recording.inspection import (
        CalibrationSummary,
        ChunkSummary,
        MaskSummary,
        RecordingSummary,
        Runs,
        SolvingSummary,
        Spread,
        Summary,
    )
    from sci_stream.tools.compare import Comparison

_MAX_GAPS = 8
_MAX_ROWS = 40


def describe(recording: RecordingSummary) -> Iterator[tuple[str, str]]:
    """Yield the lines of a summary: name and sentence."""
    series, stored, rates = recording.series, recording.stored, recording.rates
    started = datetime.fromtimestamp(series.started_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    bayer = f", Bayer {series.bayer}" if series.bayer else ""
    yield "series", f"{series.series} ({started}), rig {series.rig}, policy {series.policy}"
    yield "state", _state(recording)
    yield "camera", f"{recording.camera}, {series.pixel_format}, {series.bit_depth} bit{bayer}"
    if series.distortions:
        yield "settings", series.distortions
    yield "size", f"{series.height_px}×{series.width_px} pixels, B = {series.n_frames} frames per snapshot"
    share = f", {stored.disk_bytes / stored.bytes:.0%} of the arrays' size" if stored.bytes else ""
    yield (
        "stored",
        (
            f"{stored.raw} raw snapshots ({stored.raw_dtype}), {stored.video} videos = "
            f"{stored.video_frames} frames; {stored.disk_bytes / 1e6:.1f} MB{share}"
        ),
    )
    if len(recording.segments) > 1:
        for segment in recording.segments:
            yield (
                "segment",
                f"{segment.file}: from seq {segment.first_seq}, {segment.raw} raw, "
                f"{segment.video} videos, {segment.bytes / 1e6:.1f} MB, {segment.state}",
            )
    yield "ledger", _ledger(recording)
    if stored.raw:
        yield "raw gaps", _gaps(recording.gaps["raw"])
    if stored.video:
        yield "video gaps", _gaps(recording.gaps["video"])
    if rates.snapshots_hz is not None and rates.interval_ms is not None:
        yield (
            "rates",
            (
                f"{rates.snapshots_hz:.2f} snapshots/s = {rates.video_hz:.1f} video frames/s over "
                f"{rates.duration_s:.1f} s; longest interval {rates.interval_ms.max:.1f} ms"
            ),
        )
    yield from _solving(recording.solving)
    yield from _calibration(recording.calibration)
    if recording.health:
        yield "masks", _health(recording.health)
    if recording.chunks:
        yield "chunk data", ", ".join(_chunk(name, report) for name, report in recording.chunks.items())
    if recording.parent:
        yield "made from", f"{recording.parent.get('file')}, series {recording.parent.get('series')}"


def _state(recording: RecordingSummary) -> str:
    if recording.state == "complete":
        return "complete"
    unfinished = [segment.file for segment in recording.segments if segment.state == "unfinished"]
    return (
        f"unfinished ({', '.join(unfinished) or 'the last segment is missing'}): being written, or left by a crash. "
        "Everything flushed is readable; sci-stream repair makes a clean file."
    )


def _ledger(recording: RecordingSummary) -> str:
    rows, ledger = recording.rows, recording.ledger
    account = {**dataclasses.asdict(rows), **(ledger or {})}
    dropped = " + ".join(f"{count} dropped ({reason})" for reason, count in account["dropped"].items())
    terms = [f"{account['reconstructed']} reconstructed", f"{account['raw_only']} raw only", dropped]
    text = " + ".join(term for term in terms if term)
    if ledger is None:
        return f"none stored; counted from the rows: {text} + {rows.open} without an outcome"
    closed = "closes" if ledger.get("closed") else f"open, {ledger.get('in_flight', 0)} in flight when it was stored"
    missed = f"; the camera missed {ledger['camera_missed']}" if ledger.get("camera_missed") else ""
    return f"{account.get('acquired', rows.settled)} acquired = {text}: {closed}{missed}"


def _gaps(gaps: Runs) -> str:
    if not gaps:
        return "none"
    shown = ", ".join(f"{first}" if first == last else f"{first}–{last}" for first, last in gaps[:_MAX_GAPS])
    missing = sum(last - first + 1 for first, last in gaps)
    return f"{missing} missing: {shown}" + (" …" if len(gaps) > _MAX_GAPS else "")


def _texts(quantities: Recorded, summaries: Mapping[str, Summary]) -> dict[str, str]:
    """Return the texts of quantities by the line that they share; those that are usually zero come last in it."""
    lines: dict[str, list[str]] = {}
    inspected = [(quantity.inspected, column) for quantity, column in quantities if quantity.inspected is not None]
    for declared, column in sorted(inspected, key=lambda entry: entry[0].usually_zero):
        summary = summaries[declared.name or column.name] if declared.line else None
        if summary is not None and (text := _text(declared, summary)):
            lines.setdefault(declared.line, []).append(text)
    return {line: ", ".join(texts) for line, texts in lines.items()}


def _text(declared: Inspected, summary: Spread | int | dict[str, int]) -> str:
    if isinstance(summary, dict):
        return ", ".join(f"{count} {word}" for word, count in summary.items())
    spread = {"count": summary} if isinstance(summary, int) else dataclasses.asdict(summary)
    return "" if declared.usually_zero and not any(spread.values()) else declared.text.format(**spread)


def _solving(solving: SolvingSummary) -> Iterator[tuple[str, str]]:
    if not solving.nodes:
        return
    texts = _texts(SOLVE_QUANTITIES, solving.quantities)
    yield "iterations", texts.pop("iterations")
    yield "solve", f"{texts.pop('solve')}; by {', '.join(solving.nodes)}"
    yield "starts", texts.pop("starts")
    by_solver = solving.quantities["by_solver"]
    for name, report in solving.solvers.items():
        whose = ""
        if isinstance(by_solver, dict) and len(solving.solvers) > 1:
            whose = f"{by_solver.get(name, 0)} of them with "
        yield "solver", whose + ", ".join(f"{key} = {value}" for key, value in report.items())
    yield from texts.items()


def _health(health: MaskSummary) -> str:
    texts = [f"measured {health.looks} times"]
    if health.last_shift_px is not None:
        x, y = health.last_shift_px
        sd = "" if health.last_shift_sd_px is None else f" ± {health.last_shift_sd_px:.3f}"
        texts.append(f"shift ({x:+.3f}, {y:+.3f}){sd} px at last, {health.largest_shift_px:.3f} px at most")
    texts.append(_texts(HEALTH_QUANTITIES, health.quantities).get("masks", ""))
    if health.corrected:
        texts.append(f"{health.corrected} reconstructed with corrected masks")
    if health.last_jitter_px or health.last_gain_error:
        texts.append(f"errors of single masks {health.last_jitter_px:.3f} px and {health.last_gain_error:.1%} at last")
    if health.last_error_log_odds is not None:
        texts.append(f"log odds for such errors {health.last_error_log_odds:.0f} at last")
    texts.append("order " + ", ".join(health.orders))
    if health.withheld:
        other_order = SHUFFLED in health.orders
        why = "fit better in another order" if other_order else "explain nothing"
        texts.append(f"{health.withheld} snapshots stored in place of a video, since the masks {why}")
    return ", ".join(filter(None, texts))


def _chunk(name: str, chunk: ChunkSummary) -> str:
    values = chunk.values
    if values is None:
        return f"{name} never"
    spread = f"{values.min:.10g}" if values.min == values.max else f"{values.min:.10g}–{values.max:.10g}"
    return f"{name} {spread} {chunk.unit}".rstrip() + f" ({chunk.frames} frames)"


def _calibration(calibration: CalibrationSummary) -> Iterator[tuple[str, str]]:
    masks = "grey" if calibration.grey else "binary"
    saturation = calibration.saturation_dn
    yield (
        "calibration",
        (
            f"{calibration.hash}, {masks} masks of mean transmission {calibration.mean_transmission:.3f}; dark "
            f"{calibration.dark_dn:.1f} DN, full scale {calibration.full_scale_dn:.1f} DN, saturation "
            f"{'unknown' if saturation is None else f'{saturation:.0f} DN'}; "
            f"{calibration.unmeasured_px} pixels under no mask, {calibration.bad_px} bad"
        ),
    )
    if calibration.source:
        yield "", f"{calibration.source} {calibration.created}".strip()


def comparison_table(comparison: Comparison, reference: str, other: str) -> Table:
    """Return a comparison as a table: the snapshots, the least alike first, and the means below."""
    table = Table(title=f"{other} against {reference}", show_footer=True)
    mean_db = "equal" if comparison.psnr_db is None else f"{comparison.psnr_db['mean']:.2f}"
    mean_ssim = "–" if comparison.ssim is None else f"{comparison.ssim['mean']:.4f}"
    largest = max(one.max_difference for one in comparison.snapshots)
    table.add_column("seq", justify="right", footer=f"{len(comparison.snapshots)} snapshots, mean")
    table.add_column("PSNR dB", justify="right", footer=mean_db)
    table.add_column("SSIM", justify="right", footer=mean_ssim)
    table.add_column("largest difference", justify="right", footer=f"{largest:.4f}")
    for one in sorted(comparison.snapshots, key=lambda one: one.psnr_db)[:_MAX_ROWS]:
        psnr_db = "equal" if math.isinf(one.psnr_db) else f"{one.psnr_db:.2f}"
        ssim = "–" if one.ssim is None else f"{one.ssim:.4f}"
        table.add_row(str(one.seq), psnr_db, ssim, f"{one.max_difference:.4f}")
    if comparison.only_first or comparison.only_second:
        table.caption = (
            f"not compared: {comparison.only_first} only in the first, {comparison.only_second} only in the second"
        )
    return table
