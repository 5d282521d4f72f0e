"""Sentences that ``inspect`` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import chain, repeat
from typing import TYPE_CHECKING

from sci_stream.quantities import Inspected, OverSeries
from sci_stream.recording.columns import HEALTH_QUANTITIES, SOLVE_QUANTITIES, Recorded

if TYPE_CHECKING:
    from sci_stream.recording.inspection import RecordingSummary, Runs, Summary

_MAX_GAPS = 8
_MAX_EVENTS = 20
_MAX_DAMAGE = 4


def describe(recording: RecordingSummary) -> Iterator[tuple[str, str]]:
    """Yield the lines of a summary: name and sentence."""
    series = recording.series
    figures = recording.figures
    stored = figures["stored"]
    rates = figures["rates"]
    segments = figures["segments"]
    started = datetime.fromtimestamp(series.started_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    bayer = f", Bayer {series.bayer}" if series.bayer else ""
    yield "series", f"{series.series} ({started}), rig {series.rig}, policy {series.policy}"
    yield "state", _state(recording)
    yield "camera", f"{series.camera}, {series.pixel_format}, {series.bit_depth} bit{bayer}"
    if series.distortions:
        yield "settings", series.distortions
    yield (
        "size",
        f"{series.height_px}×{series.width_px} pixels, B = {series.n_frames} frames per snapshot",
    )
    share = (
        f", {stored['disk_bytes'] / stored['bytes']:.0%} of the arrays' size"
        if stored["bytes"]
        else ""
    )
    counts = "{raw} raw snapshots ({raw_dtype}), {video} videos = {video_frames} frames".format_map(
        stored
    )
    yield "stored", f"{counts}; {stored['disk_bytes'] / 1e6:.1f} MB{share}"
    for segment in segments if len(segments) > 1 else ():
        counts = "{file}: from seq {first_seq}, {raw} raw, {video} videos".format_map(segment)
        yield "segment", f"{counts}, {segment['bytes'] / 1e6:.1f} MB, {segment['state']}"
    yield "ledger", _ledger(recording)
    for event in figures["events"][-_MAX_EVENTS:]:
        began = datetime.fromtimestamp(event["time_ns"] / 1e9, UTC).strftime("%H:%M:%S.%f")[:-3]
        text = f"{began} UTC, {event['snapshots']} snapshots: {event['cause']} {event['who']}"
        yield f"event {event['number']}", text.rstrip()
    if stored["raw"]:
        yield "raw gaps", _gaps(figures["gaps"]["raw"])
    if stored["video"]:
        yield "video gaps", _gaps(figures["gaps"]["video"])
    if rates["snapshots_hz"] is not None:
        text = (
            "{snapshots_hz:.2f} snapshots/s = {video_hz:.1f} video frames/s over {duration_s:.1f} s"
        ).format_map(rates)
        yield "rates", f"{text}; longest interval {rates['interval_ms']['max']:.0f} ms"
    yield from _solving(recording)
    yield from _calibration(recording)
    if figures["health"]:
        yield from zip(chain(["masks"], repeat("")), _health(recording), strict=False)
    if figures["chunks"]:
        yield (
            "chunk data",
            ", ".join(_chunk(name, **chunk) for name, chunk in figures["chunks"].items()),
        )
    if parent := figures["parent"]:
        yield "made from", f"{parent.get('file')}, series {parent.get('series')}"


def _state(recording: RecordingSummary) -> str:
    figures = recording.figures
    if figures["damage"]:
        return f"DAMAGED: {'; '.join(figures['damage'][:_MAX_DAMAGE])}"
    if figures["state"] == "complete":
        verified = "complete, every frame verified" if figures["verified"] else "complete"
        lost = figures["lost"]
        return f"{verified}, but {lost} snapshots were not recorded" if lost else verified
    unfinished = [
        "{file}, {missing} bytes missing".format_map(segment).removesuffix(", 0 bytes missing")
        for segment in figures["segments"]
        if segment["state"] == "unfinished"
    ]
    return (
        f"unfinished ({', '.join(unfinished) or 'a segment is missing or damaged'}): being "
        "written, or left by a "
        "crash. Everything flushed is readable; sci-stream repair makes a clean file."
    )


def _ledger(recording: RecordingSummary) -> str:
    rows = recording.figures["rows"]
    ledger = recording.figures["ledger"]
    account = {**rows, **(ledger or {})}
    dropped = " + ".join(
        f"{count} dropped ({reason})" for reason, count in account["dropped"].items()
    )
    not_kept = f"{account['not_kept']} not kept" if account["not_kept"] else ""
    terms = [
        f"{account['reconstructed']} reconstructed",
        f"{account['raw_only']} raw only",
        not_kept,
        dropped,
    ]
    text = " + ".join(term for term in terms if term)
    if ledger is None:
        return f"none stored; counted from the rows: {text} + {rows['open']} without an outcome"
    closed = (
        "closes"
        if ledger.get("closed")
        else f"open, {ledger.get('in_flight', 0)} in flight when it was stored"
    )
    missed = f"; the camera missed {ledger['camera_missed']}" if ledger.get("camera_missed") else ""
    return f"{account.get('acquired', rows['settled'])} acquired = {text}: {closed}{missed}"


def _gaps(gaps: Runs) -> str:
    if not gaps:
        return "none"
    shown = ", ".join(
        f"{first}" if first == last else f"{first}–{last}" for first, last in gaps[:_MAX_GAPS]
    )
    missing = sum(last - first + 1 for first, last in gaps)
    return f"{missing} missing: {shown}" + (" …" if len(gaps) > _MAX_GAPS else "")


def _texts(quantities: Recorded, summaries: Mapping[str, Summary]) -> dict[str, list[str]]:
    """Return the texts of quantities by the line that they share; those that are usually zero come
    last in it.
    """
    lines: dict[str, list[str]] = {}
    inspected = [
        (quantity.inspected, column)
        for quantity, column in quantities
        if quantity.inspected is not None
    ]
    for declared, column in sorted(inspected, key=lambda entry: entry[0].usually_zero):
        summary = summaries[declared.name or column.name] if declared.line else None
        if summary is not None and (text := _text(declared, summary)):
            lines.setdefault(declared.line, []).append(text)
    return lines


def _text(declared: Inspected, summary: dict[str, float] | dict[str, int] | int) -> str:
    if declared.over_series is OverSeries.TALLY:
        assert isinstance(summary, dict)
        return ", ".join(f"{count} {word}" for word, count in summary.items())
    spread = summary if isinstance(summary, dict) else {"count": summary}
    return (
        "" if declared.usually_zero and not any(spread.values()) else declared.text.format(**spread)
    )


def _solving(recording: RecordingSummary) -> Iterator[tuple[str, str]]:
    solving = recording.figures["solving"]
    if not solving["nodes"]:
        return
    lines = _texts(SOLVE_QUANTITIES, solving)
    texts = {line: ", ".join(parts) for line, parts in lines.items()}
    yield "iterations", texts.pop("iterations")
    yield "solve", f"{texts.pop('solve')}; by {', '.join(solving['nodes'])}"
    yield "starts", texts.pop("starts")
    solvers = solving["solvers"]
    for name, report in solvers.items():
        whose = f"{solving['by_solver'].get(name, 0)} of them with " if len(solvers) > 1 else ""
        yield "solver", whose + ", ".join(f"{key} = {value}" for key, value in report.items())
    yield from texts.items()


def _health(recording: RecordingSummary) -> Iterator[str]:
    health = recording.figures["health"]
    yield f"measured {health['looks']} times"
    if health["last_shift_px"] is not None:
        x, y = health["last_shift_px"]
        sd = "" if health["last_shift_sd_px"] is None else f" ± {health['last_shift_sd_px']:.3f}"
        largest = health["largest_shift_px"]
        yield f"shift ({x:+.3f}, {y:+.3f}){sd} px at last, {largest:.3f} px at most"
    yield from _texts(HEALTH_QUANTITIES, health).get("masks", [])
    if health["corrected"]:
        yield f"{health['corrected']} reconstructed with corrected masks"
        yield f"correction at last: {health['last_correction'] or 'none'}"
    if health["last_error_log_odds"] is not None:
        yield f"log odds for errors of masks {health['last_error_log_odds']:.0f} at last"
    yield "order " + ", ".join(health["orders"])
    if health["withheld"]:
        yield (
            f"{health['withheld']} snapshots stored in place of a video, since the masks explain "
            "nothing"
        )


def _chunk(name: str, frames: int, unit: str, values: Mapping[str, float] | None) -> str:
    if values is None:
        return f"{name} never"
    ends = dict.fromkeys(f"{values[end]:.10g}" for end in ("min", "max"))
    return f"{name} {'–'.join(ends)} {unit}".rstrip() + f" ({frames} frames)"


def _calibration(recording: RecordingSummary) -> Iterator[tuple[str, str]]:
    calibration = recording.figures["calibration"]
    masks = "grey" if calibration["grey"] else "binary"
    saturation = (
        "unknown"
        if calibration["saturation_dn"] is None
        else f"{calibration['saturation_dn']:.0f} DN"
    )
    text = (
        "{hash}, {masks} masks of mean transmission {mean_transmission:.3f}; dark {dark_dn:.1f} "
        "DN, full scale "
        "{full_scale_dn:.1f} DN, saturation {saturation}; {unmeasured_px} pixels under no mask, "
        "{bad_px} bad"
    )
    yield "calibration", text.format_map({**calibration, "masks": masks, "saturation": saturation})
    if calibration["source"]:
        yield "", "{source} {created}".format_map(calibration).strip()
