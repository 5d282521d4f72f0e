"""The figures that nodes publish for Prometheus: one catalogue, and what a node puts into it."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

PREFIX: Final = "sci_stream_"

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_ITERATIONS = (1, 2, 4, 6, 8, 12, 16, 20, 30, 40, 60, 100)


class Kind(enum.Enum):
    """What a figure does over time."""

    COUNTER = "counter"
    """Only grows; starts again at 0 with a new process or series."""
    GAUGE = "gauge"
    """Goes up and down."""
    HISTOGRAM = "histogram"
    """How values are spread, in buckets."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One published figure: its kind, the label that splits it (if any), its unit where it has one, what it says."""

    kind: Kind
    help: str
    label: str = ""
    buckets: tuple[float, ...] = ()


CATALOGUE: Final[Mapping[str, Figure]] = {
    # What every node has.
    "ready": Figure(Kind.GAUGE, "1 if the node is able to do its work; /readyz says why not."),
    "wire_errors": Figure(Kind.COUNTER, "Messages refused, by reason.", "reason"),
    "http_refused": Figure(Kind.COUNTER, "Requests to health and live page refused, by reason.", "reason"),
    "resent": Figure(Kind.COUNTER, "Messages to the sink that were sent again."),
    # Acquire.
    "acquired": Figure(Kind.COUNTER, "Snapshots that the camera delivered."),
    "camera_events": Figure(Kind.COUNTER, "What the camera counts: missed, incomplete, timeouts and more.", "event"),
    "camera_epoch": Figure(Kind.GAUGE, "Starts of the camera within the series, less one."),
    "queue_depth": Figure(Kind.GAUGE, "Snapshots that wait for a reconstruct node."),
    "in_flight": Figure(Kind.GAUGE, "Snapshots that reconstruct nodes hold."),
    "credit": Figure(Kind.GAUGE, "Snapshots that reconstruct nodes would take beyond those they hold."),
    "held": Figure(Kind.GAUGE, "Snapshots kept in memory until they are safe."),
    "ring_bytes": Figure(Kind.GAUGE, "Memory for snapshots that are not yet safe, in use, bytes."),
    "unconfirmed": Figure(Kind.GAUGE, "Messages that the sink has not yet confirmed."),
    "reconstruct_nodes": Figure(Kind.GAUGE, "Reconstruct nodes that are ready."),
    "redelivered": Figure(Kind.COUNTER, "Snapshots taken back from a node and handed out again."),
    # Reconstruct.
    "reconstructed": Figure(Kind.COUNTER, "Snapshots reconstructed by this node."),
    "failed": Figure(Kind.COUNTER, "Snapshots that this node could not reconstruct."),
    "budget_limited": Figure(Kind.COUNTER, "Snapshots given fewer iterations than asked for because time was short."),
    "starts": Figure(Kind.COUNTER, "Solves by how they started: warm or cold.", "start"),
    "in_hand": Figure(Kind.GAUGE, "Snapshots that this node holds."),
    "solve_seconds": Figure(Kind.HISTOGRAM, "Time to solve a snapshot, s.", buckets=_SECONDS),
    "iterations": Figure(Kind.HISTOGRAM, "Iterations spent on a snapshot.", buckets=_ITERATIONS),
    "solver_busy_seconds": Figure(Kind.COUNTER, "Time that the solver computed, s: its rate is the utilisation."),
    "device_utilisation": Figure(Kind.GAUGE, "Share of the last seconds in which the device solved, 0 to 1."),
    "out_of_memory": Figure(Kind.COUNTER, "Times that the device had too little memory for a solve."),
    "device_memory_bytes": Figure(Kind.GAUGE, "Memory of the device, by use, bytes.", "use"),
    # Sink.
    "snapshots": Figure(Kind.COUNTER, "Snapshots of this series by outcome: the ledger.", "outcome"),
    "ledger_acquired": Figure(Kind.COUNTER, "Snapshots of this series that were acquired, as the sink knows."),
    "ledger_in_flight": Figure(Kind.GAUGE, "Snapshots of this series without an outcome yet."),
    "duplicates": Figure(Kind.COUNTER, "Results that came twice and were let go."),
    "latency_seconds": Figure(Kind.HISTOGRAM, "Time a snapshot spent, by stage, s.", "stage", _SECONDS),
    "disk_free_bytes": Figure(Kind.GAUGE, "Free on the disk of the recordings, bytes."),
    "recorded_bytes": Figure(Kind.COUNTER, "Written to this recording, bytes."),
    "recorded_bytes_per_second": Figure(Kind.GAUGE, "Written to this recording in the last second, bytes."),
    "recorder_state": Figure(Kind.GAUGE, "1 for the state that the recorder is in.", "state"),
    "nodes": Figure(Kind.GAUGE, "Nodes that report to the sink, by state.", "state"),
    "calibration_shift_px": Figure(Kind.GAUGE, "Estimated shift of the masks on the sensor, by axis, px.", "axis"),
}
"""Every figure by its name, without the prefix ``sci_stream_`` and without the ``_total`` of counters."""

Value = float | Mapping[str, float]


class Figures(Collector):
    """The figures of one node. `report` and `observe` from the node's thread, the rest from any.

    Parameters
    ----------
    node, kind_of_node
        Who this is: on the figure ``sci_stream_node_info``.
    """

    def __init__(self, node: str, kind_of_node: str, versions: Mapping[str, str] | None = None) -> None:
        self._info = {"node": node, "kind": kind_of_node, "version": (versions or {}).get("sci-stream", "")}
        self._told: Mapping[str, Value] = {}
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        self._histograms: dict[str, Histogram] = {}

    def report(self, figures: Mapping[str, Value]) -> None:
        """Replace what is published, at once: a number, or a number by label value.

        Raises
        ------
        KeyError
            If a figure is not in the catalogue.
        """
        for name in figures:
            if CATALOGUE[name].kind is Kind.HISTOGRAM:
                raise KeyError(f"{name} is a histogram: observe it")
        self._told = dict(figures)

    def observe(self, name: str, value: float, label: str = "") -> None:
        """Add a value to a histogram.

        Raises
        ------
        KeyError
            If there is no such histogram.
        """
        figure = CATALOGUE[name]
        if figure.kind is not Kind.HISTOGRAM:
            raise KeyError(f"{name} is no histogram: tell it")
        if name not in self._histograms:
            labels = (figure.label,) if figure.label else ()
            self._histograms[name] = Histogram(
                PREFIX + name, figure.help, labels, registry=self.registry, buckets=figure.buckets
            )
        histogram = self._histograms[name]
        (histogram.labels(label) if figure.label else histogram).observe(value)

    def collect(self) -> Iterable[Metric]:
        """Yield what `report` was told last, as Prometheus wants it."""
        yield InfoMetricFamily(PREFIX + "node", "Which node this is.", value=self._info)
        yield from self._families()

    def _families(self) -> Iterator[Metric]:
        for name, value in self._told.items():
            figure = CATALOGUE[name]
            labels = [figure.label] if figure.label else []
            of_kind = CounterMetricFamily if figure.kind is Kind.COUNTER else GaugeMetricFamily
            family = of_kind(PREFIX + name, figure.help, labels=labels)
            if isinstance(value, Mapping):
                for label, each in value.items():
                    family.add_metric([label], each)
            else:
                family.add_metric([], value)
            yield family

    def exposition(self) -> bytes:
        """Return all figures in Prometheus' text format."""
        return generate_latest(self.registry)
