"""Prometheus metrics: the catalogue, and the values of a node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from sci_stream.quantities import quantities_of
from sci_stream.reports import CalibrationHealth, SolveReport

PREFIX = "sci_stream_"

# From a network on a GPU to a large sensor on a CPU; Prometheus interpolates within a bucket.
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_ITERATIONS = (1, 2, 4, 6, 8, 12, 16, 20, 30, 40, 60, 100)


@dataclass(frozen=True)
class MetricSpec:
    """One metric: kind, help text, label and buckets (if any).

    A counter restarts with a new process or series.
    """

    kind: Literal["counter", "gauge", "histogram"]
    help: str
    label: str = ""
    buckets: tuple[float, ...] = ()


CATALOGUE: Mapping[str, MetricSpec] = {
    # Every node.
    "ready": MetricSpec("gauge", "1 if the node is ready; /readyz has the reason if not."),
    "wire_errors": MetricSpec("counter", "Messages refused, by reason.", "reason"),
    "http_refused": MetricSpec(
        "counter", "Requests to health and live page refused, by reason.", "reason"
    ),
    "resent": MetricSpec("counter", "Messages resent to the sink."),
    # Acquire.
    "acquired": MetricSpec("counter", "Snapshots that the camera delivered."),
    "camera_events": MetricSpec(
        "counter", "Camera events: missed, incomplete, timeouts and more.", "event"
    ),
    "camera_epoch": MetricSpec("gauge", "Restarts of the camera within the series."),
    "queue_depth": MetricSpec("gauge", "Snapshots queued for a reconstruct node."),
    "in_flight": MetricSpec("gauge", "Snapshots held by reconstruct nodes."),
    "credit": MetricSpec("gauge", "Free credits of the reconstruct nodes."),
    "held": MetricSpec("gauge", "Snapshots kept in memory until they are acknowledged."),
    "ring_bytes": MetricSpec("gauge", "Memory in use for unacknowledged snapshots, bytes."),
    "unconfirmed": MetricSpec("gauge", "Messages not yet acknowledged by the sink."),
    "reconstruct_nodes": MetricSpec("gauge", "Reconstruct nodes that are ready."),
    "redelivered": MetricSpec("counter", "Snapshots redelivered to another node."),
    # Reconstruct.
    "reconstructed": MetricSpec("counter", "Snapshots reconstructed by this node."),
    "failed": MetricSpec("counter", "Snapshots that this node could not reconstruct."),
    "budget_limited": MetricSpec(
        "counter", "Snapshots solved with fewer iterations than configured, for lack of time."
    ),
    "starts": MetricSpec("counter", "Solves by how they started: warm or cold.", "start"),
    "in_hand": MetricSpec("gauge", "Snapshots that this node holds."),
    "solve_seconds": MetricSpec("histogram", "Time to solve a snapshot, s.", buckets=_SECONDS),
    "iterations": MetricSpec("histogram", "Iterations spent on a snapshot.", buckets=_ITERATIONS),
    "solver_busy_seconds": MetricSpec(
        "counter", "Time that the solver computed, s: its rate is the utilisation."
    ),
    "device_utilisation": MetricSpec(
        "gauge", "Share of the last seconds in which the device solved, 0 to 1."
    ),
    "out_of_memory": MetricSpec("counter", "Solves that ran out of device memory."),
    "device_memory_bytes": MetricSpec("gauge", "Memory of the device, by use, bytes.", "use"),
    # Sink.
    "snapshots": MetricSpec(
        "counter", "Snapshots of this series by outcome: the ledger.", "outcome"
    ),
    "ledger_acquired": MetricSpec(
        "counter", "Snapshots acquired in this series, as known to the sink."
    ),
    "ledger_in_flight": MetricSpec("gauge", "Snapshots of this series without an outcome yet."),
    "duplicates": MetricSpec("counter", "Duplicate results, discarded."),
    "latency_seconds": MetricSpec(
        "histogram", "Time a snapshot spent, by stage, s.", "stage", _SECONDS
    ),
    "disk_free_bytes": MetricSpec("gauge", "Free disk space for recordings, bytes."),
    "recorded_bytes": MetricSpec("counter", "Written to this recording, bytes."),
    "recorded_bytes_per_second": MetricSpec(
        "gauge", "Written to this recording in the last second, bytes."
    ),
    "recorder_state": MetricSpec("gauge", "1 for the current state of the recorder.", "state"),
    "alarms": MetricSpec("gauge", "Alarms that have not cleared, by level.", "level"),
    "chunk": MetricSpec(
        "gauge", "Numbers that the camera and analyses add to the last snapshot, by name.", "name"
    ),
    "nodes": MetricSpec("gauge", "Nodes that report to the sink, by state.", "state"),
    # Reported quantities.
    **{
        quantity.metric.name: MetricSpec("gauge", quantity.metric.help, quantity.metric.label)
        for report in (CalibrationHealth, SolveReport)
        for quantity in quantities_of(report)
        if quantity.metric is not None
    },
}
"""Every metric by its name, without the prefix ``sci_stream_`` and without the ``_total`` of
counters."""

Value = float | Mapping[str, float]


class NodeMetrics(Collector):
    """The metrics of one node. `report` and `observe` from the node's thread, the rest from any.

    ``sci_stream_node_info`` has ``node``, its kind and its version.
    """

    def __init__(
        self, node: str, kind_of_node: str, versions: Mapping[str, str] | None = None
    ) -> None:
        self._info = {
            "node": node,
            "kind": kind_of_node,
            "version": (versions or {}).get("sci-stream", ""),
        }
        self._reported: Mapping[str, Value] = {}
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        self._histograms: dict[str, Histogram] = {}

    def report(self, values: Mapping[str, Value]) -> None:
        """Replace the published values: a number, or numbers by label value.

        Raises KeyError if a metric is not in the catalogue.
        """
        if unknown := [name for name in values if name not in CATALOGUE or CATALOGUE[name].buckets]:
            raise KeyError(f"not in the catalogue, or histograms, which are observed: {unknown}")
        self._reported = dict(values)

    def observe(self, name: str, value: float, label: str = "") -> None:
        """Add a value to a histogram.

        Raises KeyError if the histogram is not in the catalogue.
        """
        spec = CATALOGUE[name]
        if name not in self._histograms:
            labels = (spec.label,) if spec.label else ()
            self._histograms[name] = Histogram(
                PREFIX + name, spec.help, labels, registry=self.registry, buckets=spec.buckets
            )
        histogram = self._histograms[name]
        (histogram.labels(label) if spec.label else histogram).observe(value)

    def collect(self) -> Iterable[Metric]:
        """Yield the last reported values in Prometheus' form."""
        yield InfoMetricFamily(PREFIX + "node", "Identity of the node.", value=self._info)
        for name, value in self._reported.items():
            spec = CATALOGUE[name]
            labels = [spec.label] if spec.label else []
            of_kind = CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily
            family = of_kind(PREFIX + name, spec.help, labels=labels)
            if isinstance(value, Mapping):
                for label, number in value.items():
                    family.add_metric([label], number)
            else:
                family.add_metric([], value)
            yield family

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)
