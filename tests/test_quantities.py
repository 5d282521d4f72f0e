"""Reported quantities are declared once: recordings, inspect, status, metrics and documentation
follow from that.

``python -m tests.test_quantities`` writes the table of docs/quantities.md.
"""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from sci_stream.cli.recording_tables import describe
from sci_stream.health import CATALOGUE
from sci_stream.quantities import Quantity, gauges, live_values, page_texts, quantities_of
from sci_stream.recording.inspection import inspect_recording
from sci_stream.recording.reader import Recording
from sci_stream.recording.writer import RecordingWriter
from sci_stream.reports import CalibrationHealth, SolveReport, Start

DOCUMENT = Path(__file__).parents[1] / "docs" / "quantities.md"
REPORTS = {"Solve": SolveReport, "Calibration health": CalibrationHealth}


def measured(report: type) -> list[str]:
    """Return the names of the quantities that may be unknown, later ones too."""
    return [field.name for field in fields(report) if "Measured" in str(field.type)]


HEALTH = CalibrationHealth(
    below_black_fraction=0.25, order="rotated", first_mask=2, corrected=True,
    **dict.fromkeys(measured(CalibrationHealth), 0.5),
)  # fmt: skip
REPORT = SolveReport(
    iterations=12, budget_limited=True, start=Start.WARM, start_reason="flow", solve_ns=5_000_000,
    residual=0.25,
    saturated_fraction=0.5, solver="0123abcd", masks_at="1,0,0,2500,0;0,0,0,-12,0", health=HEALTH,
    **dict.fromkeys(measured(SolveReport), 0.125),
)  # fmt: skip
DECLARED = [(report, quantity) for report in REPORTS.values() for quantity in quantities_of(report)]


def tables() -> str:
    """Return the tables of all quantities in Markdown."""
    return "\n".join(
        f"## {title}\n\n"
        "| quantity | column | unit | meaning | `inspect` | `--summary` | metric |\n"
        "|---|---|---|---|---|---|---|\n" + "".join(map(_row, quantities_of(report)))
        for title, report in REPORTS.items()
    )


def _row(quantity: Quantity) -> str:
    column, metric = quantity.column, quantity.metric
    label = (
        f'{{{metric.label}="{metric.label_value}"}}' if metric is not None and metric.label else ""
    )
    cells = (
        f"`{quantity.name}`" + (f" (`{quantity.key}`)" if quantity.key != quantity.name else ""),
        f"`{column.name}` {column.dtype}" if column is not None else "",
        column.units if column is not None else "",
        column.meaning if column is not None else "",
        quantity.inspected.over_series.value if quantity.inspected is not None else "",
        ", ".join(quantity.in_run.figures) if quantity.in_run is not None else "",
        f"`sci_stream_{metric.name}{label}` {metric.help}" if metric is not None else "",
    )
    return f"| {' | '.join(cells)} |\n"


def _document() -> str:
    return DOCUMENT.read_text().partition("## ")[0] + tables()


def test_documentation_has_the_declared_quantities() -> None:
    assert DOCUMENT.read_text() == _document(), "run: python -m tests.test_quantities"


@pytest.mark.parametrize(
    ("report", "quantity"), DECLARED, ids=lambda value: getattr(value, "name", "")
)
def test_quantity_declares_texts_that_fit_its_summary(report: type, quantity: Quantity) -> None:
    spread = dict.fromkeys(("min", "median", "mean", "max", "count"), 1.5)
    assert quantity.inspected is None or quantity.inspected.text.format(**spread).isprintable()
    assert quantity.metric is None or quantity.metric.name in CATALOGUE
    assert quantity.column is None or quantity.column.meaning
    assert quantity.in_run is None or set(quantity.in_run.figures) <= {"mean", "min", "max"}


def test_keys_and_columns_are_unique() -> None:
    for names in (
        [quantity.key for _, quantity in DECLARED],
        [quantity.column.name for _, quantity in DECLARED if quantity.column is not None],
    ):
        assert len(names) == len(set(names))


def test_recorded_report_is_read_with_equal_values(tmp_path: Path, series) -> None:
    path = tmp_path / "run.h5"
    unknown = replace(REPORT, health=None, **dict.fromkeys(measured(SolveReport)))
    with RecordingWriter(path, series.info, series.calibration) as writer:
        for seq, report in enumerate((REPORT, unknown)):
            writer.write_reconstruction(series.reconstruction(seq, report=report))
        writer.close({})
    with Recording(path) as recording:
        assert recording.report(0)[0] == replace(REPORT, health=None)
        assert recording.report(1)[0] == unknown
        for quantity in quantities_of(CalibrationHealth):
            if quantity.column is not None:
                cell = recording.rows[quantity.column.name][0].item()
                assert (
                    quantity.column.word_of(cell) if quantity.column.words else cell
                ) == getattr(HEALTH, quantity.name)


def test_inspect_summarises_every_declared_quantity(tmp_path: Path, series) -> None:
    path = tmp_path / "run.h5"
    with RecordingWriter(path, series.info, series.calibration) as writer:
        writer.write_reconstruction(series.reconstruction(0, report=REPORT))
        writer.close({})
    found = inspect_recording(path)
    document, lines = found.figures, dict(describe(found))
    for report, quantity in DECLARED:
        if quantity.inspected is not None and quantity.column is not None:
            part = document["solving" if report is SolveReport else "health"]
            assert part[quantity.inspected.name or quantity.column.name], quantity.name
            assert not quantity.inspected.line or quantity.inspected.line in lines


def test_status_and_page_have_live_quantities() -> None:
    assert live_values(REPORT)["solve_ms"] == 5.0
    assert live_values(replace(REPORT, residual=float("nan")))["residual"] is None
    assert {"solver", "masks_at"}.isdisjoint(live_values(REPORT))
    for report in (REPORT, HEALTH):
        assert {text["key"] for text in page_texts(type(report))} <= live_values(report).keys()


def test_gauges_have_known_values_by_label() -> None:
    assert gauges(HEALTH)["calibration_shift_px"] == {"x": 0.5, "y": 0.5}
    assert gauges(HEALTH)["calibration_error_log_odds"] == 0.5
    assert gauges(replace(REPORT, noise=None))["measurement_noise"] == {"masks": 0.125}


if __name__ == "__main__":
    DOCUMENT.write_text(_document())
