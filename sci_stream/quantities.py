"""How a reported quantity is recorded, summarised, exported and shown, declared once in the
annotation of its field.

`sci_stream.reports.SolveReport` and `sci_stream.reports.CalibrationHealth` declare their
quantities. Columns of a recording, ``inspect``, the summary and the status of a series,
``/metrics`` and the live page iterate over `quantities_of`.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar, get_args, get_type_hints

Value = bool | int | float | str | None
"""A reported value; None if it is unknown."""

_Aspect = TypeVar("_Aspect")


@dataclass(frozen=True)
class Column:
    """A column of a recording: name, NumPy type, meaning, unit, value of unwritten rows."""

    name: str
    dtype: str
    meaning: str
    units: str = ""
    fill: float | bytes = 0
    required: bool = False
    """Whether every recording has the column. Others read as unwritten where a recording lacks
    them."""
    words: tuple[str, ...] = ()
    """Words that the numbers 0, 1, … stand for; the first is for unknown ones."""

    @property
    def is_flag(self) -> bool:
        """Whether the column has 0 and 1 for false and true."""
        return self.dtype == "u1" and not self.words

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
    """Summary of a quantity over a recording."""

    SPREAD = "spread"
    """Minimum, median, mean and maximum."""
    COUNT = "count"
    """Number of snapshots for which it is set."""
    TALLY = "tally"
    """Number of snapshots for each of its words."""


@dataclass(frozen=True)
class Inspected:
    """Summary of a quantity by ``inspect``.

    ``text`` is the format of its text, of the fields of a spread or ``count``, in the ``line`` of
    this name, which quantities may share; ``name`` is that in JSON, the column's if empty; the text
    of a quantity that is ``usually_zero`` is omitted if it was zero throughout.
    """

    over_series: OverSeries
    line: str = ""
    text: str = ""
    name: str = ""
    usually_zero: bool = False


@dataclass(frozen=True)
class InRun:
    """Which of ``mean``, ``min`` and ``max`` the summary of a run (``--summary``) has, and with how
    many digits.
    """

    figures: tuple[str, ...]
    digits: int


@dataclass(frozen=True)
class Metric:
    """A Prometheus gauge with the latest value; quantities that share a ``name`` differ in the
    value of its label.
    """

    name: str
    help: str
    label: str = ""
    label_value: str = ""


@dataclass(frozen=True)
class PageText:
    """Label on the live page, unit and digits.

    The unit ``%`` is for a fraction.
    """

    label: str
    unit: str = ""
    digits: int = 4


@dataclass(frozen=True)
class Reported:
    """How a quantity is reported, where it differs; the sole metadata of one without other aspects.

    See `Quantity`.
    """

    key: str = ""
    divisor: float = 1.0
    live: bool = True


Aspect = Column | Inspected | InRun | Metric | PageText | Reported
"""Declarations of a quantity in the annotation of its field."""


@dataclass(frozen=True)
class Quantity:
    """The declaration of one quantity, from the annotation of its field.

    Its name in status, summaries and on the page is ``key``; its value there is that of the field
    ``name``, divided by ``divisor``. Status and page lack it unless it is ``live``.
    """

    name: str
    key: str
    divisor: float
    live: bool
    column: Column | None
    inspected: Inspected | None
    in_run: InRun | None
    metric: Metric | None
    page: PageText | None

    def value_in(self, report: object) -> Value:
        """Return the value under ``key`` in a report; None if it is unknown or not finite."""
        value: Value = getattr(report, self.name)
        if isinstance(value, enum.StrEnum):
            return value.value
        if isinstance(value, float) and not math.isfinite(value):
            return None
        if self.divisor != 1.0 and isinstance(value, int | float):
            return value / self.divisor
        return value


_DECLARED: dict[type, tuple[Quantity, ...]] = {}


def quantities_of(report: type) -> tuple[Quantity, ...]:
    """Return the quantities that a dataclass declares, in the order of its fields."""
    if report not in _DECLARED:
        hints = get_type_hints(report, include_extras=True).items()
        declared = (
            (name, [part for part in get_args(hint) if isinstance(part, Aspect)])
            for name, hint in hints
        )
        _DECLARED[report] = tuple(_quantity(name, aspects) for name, aspects in declared if aspects)
    return _DECLARED[report]


def _quantity(name: str, aspects: Sequence[Aspect]) -> Quantity:
    def aspect(kind: type[_Aspect]) -> _Aspect | None:
        return next((entry for entry in aspects if isinstance(entry, kind)), None)

    parts = aspect(Column), aspect(Inspected), aspect(InRun), aspect(Metric), aspect(PageText)
    how = aspect(Reported) or Reported()
    return Quantity(name, how.key or name, how.divisor, how.live, *parts)


def live_values(report: object) -> dict[str, Value]:
    """Return the values of a report for the status and the live page, by key."""
    return {
        quantity.key: quantity.value_in(report)
        for quantity in quantities_of(type(report))
        if quantity.live
    }


def gauges(report: object) -> dict[str, float | dict[str, float]]:
    """Return the values of the metrics that a report's quantities declare: numbers, or numbers by
    label value.
    """
    values: dict[str, dict[str, float]] = {}
    for quantity in quantities_of(type(report)):
        metric = quantity.metric
        value = quantity.value_in(report)
        if metric is not None and isinstance(value, int | float):
            values.setdefault(metric.name, {})[metric.label_value] = value
    return {name: by_label.get("", by_label) for name, by_label in values.items()}


def page_texts(report: type) -> list[dict[str, str | int]]:
    """Return key, label, unit and digits of the quantities with a text on the live page."""
    return [
        {"key": quantity.key, **dataclasses.asdict(quantity.page)}
        for quantity in quantities_of(report)
        if quantity.page is not None
    ]
