"""How a reported quantity is recorded, summarised, exported and shown, declared once as metadata of its field.

`sci_stream.model.SolveReport` and `sci_stream.model.CalibrationHealth` declare their quantities. Columns of a
recording, ``inspect``, the summary and the status of a series, ``/metrics`` and the live page iterate over
`quantities_of`.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from dataclasses import dataclass

Value = bool | int | float | str | None
"""A reported value; None if it is unknown."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a recording: name, NumPy type, meaning, unit, value of unwritten rows."""

    name: str
    dtype: str
    meaning: str
    units: str = ""
    fill: float | bytes = 0
    required: bool = False
    """Whether every recording has the column. Others read as unwritten where a recording lacks them."""
    words: tuple[str, ...] = ()
    """Words that the numbers 0, 1, … stand for; the first is for unknown ones."""

    def code_of(self, word: str) -> int:
        """Return the number that stands for a word."""
        return self.words.index(word) if word in self.words else 0

    def word_of(self, code: int) -> str:
        """Return the word that a number stands for."""
        return self.words[code] if 0 <= code < len(self.words) else self.words[0]


def float_column(name: str, meaning: str, units: str = "", *, required: bool = False) -> Column:
    """Return a column of float32, NaN where nothing was measured."""
    return Column(name, "f4", meaning, units, math.nan, required)


def text_column(name: str, dtype: str, meaning: str, *, required: bool = False) -> Column:
    """Return a column of ASCII text, empty where nothing was written."""
    return Column(name, dtype, meaning, "", b"", required)


class OverSeries(enum.Enum):
    """Summary of a quantity over a recorded series."""

    SPREAD = "spread"
    """Minimum, median, mean and maximum."""
    COUNT = "count"
    """Number of snapshots for which it is set."""
    TALLY = "tally"
    """Number of snapshots for each of its words."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A Prometheus gauge with the latest value; quantities that share a ``name`` differ in the value of its label."""

    name: str
    help: str
    label: str = ""
    label_value: str = ""


@dataclass(frozen=True, slots=True)
class PageText:
    """Label on the live page in English and German, unit and digits. The unit ``%`` is for a fraction."""

    en: str
    de: str
    unit: str = ""
    digits: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """The declaration of one quantity.

    Parameters
    ----------
    key
        Name in status, summaries and on the page; that of the field if empty.
    divisor
        The value under ``key`` is that of the field, divided by this.
    column
        Where it is recorded.
    over_series, summary_key
        How a recording is summarised (``inspect``), and the name there: that of the column if empty.
    line, text
        Line of ``inspect`` that shows the summary, and the format of the text: fields of a spread, or ``count``.
        Quantities with equal lines share one.
    usually_zero
        Whether ``inspect`` omits the text if the quantity was zero throughout.
    run_summary, digits
        Which of ``mean``, ``min`` and ``max`` the summary of a run (``--summary``) has, and with how many digits.
    metric
        Gauge under ``/metrics``.
    page
        Text on the live page.
    live
        Whether the status and the live page have it.
    """

    name: str = ""
    key: str = ""
    divisor: float = 1.0
    column: Column | None = None
    over_series: OverSeries | None = None
    summary_key: str = ""
    line: str = ""
    text: str = ""
    usually_zero: bool = False
    run_summary: tuple[str, ...] = ()
    digits: int = 3
    metric: Metric | None = None
    page: PageText | None = None
    live: bool = True

    @property
    def metadata(self) -> dict[str, Quantity]:
        """Metadata of the dataclass field that this declares."""
        return {"quantity": self}

    def value_in(self, report: object) -> Value:
        """Return the value under ``key`` in a report; None if it is unknown or not finite."""
        value: Value = getattr(report, self.name)
        if isinstance(value, enum.StrEnum):
            return value.value
        if isinstance(value, float) and not math.isfinite(value):
            return None
        return value / self.divisor if self.divisor != 1.0 and isinstance(value, int | float) else value


def quantities_of(report: type) -> tuple[Quantity, ...]:
    """Return the quantities that a dataclass declares, in the order of its fields."""
    return tuple(
        dataclasses.replace(declared, name=field.name, key=declared.key or field.name)
        for field in dataclasses.fields(report)
        if isinstance(declared := field.metadata.get("quantity"), Quantity)
    )


def live_values(report: object) -> dict[str, Value]:
    """Return the values of a report for the status and the live page, by key."""
    return {quantity.key: quantity.value_in(report) for quantity in quantities_of(type(report)) if quantity.live}


def gauges(report: object) -> dict[str, float | dict[str, float]]:
    """Return the values of the metrics that a report's quantities declare: numbers, or numbers by label value."""
    values: dict[str, dict[str, float]] = {}
    for quantity in quantities_of(type(report)):
        metric, value = quantity.metric, quantity.value_in(report)
        if metric is not None and isinstance(value, int | float):
            values.setdefault(metric.name, {})[metric.label_value] = value
    return {name: by_label.get("", by_label) for name, by_label in values.items()}


def page_texts(report: type) -> list[dict[str, str | int]]:
    """Return key, labels, unit and digits of the quantities with a text on the live page."""
    return [
        {"key": quantity.key, **dataclasses.asdict(quantity.page)}
        for quantity in quantities_of(report)
        if quantity.page is not None
    ]
