"""Metrics are published in Prometheus format, and only those of the catalogue."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sci_stream.health import CATALOGUE, NodeMetrics


def families(figures: NodeMetrics) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Return samples by name and labels, as another program's parser reads them."""
    out: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(figures.exposition().decode()):
        for sample in family.samples:
            out.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return out


def test_reported_figures_are_published() -> None:
    figures = NodeMetrics("sink", "sink", {"sci-stream": "1.2.3"})
    figures.report({"ready": 1.0, "snapshots": {"reconstructed": 5, "dropped: queue_full": 2}})
    for seconds in (0.003, 0.3):
        figures.observe("latency_seconds", seconds, "total")
    found = families(figures)
    assert found["sci_stream_node_info"] == {
        (("kind", "sink"), ("node", "sink"), ("version", "1.2.3")): 1.0
    }
    assert found["sci_stream_ready"] == {(): 1.0}
    assert found["sci_stream_snapshots_total"] == {
        (("outcome", "reconstructed"),): 5.0,
        (("outcome", "dropped: queue_full"),): 2.0,
    }
    assert found["sci_stream_latency_seconds_count"] == {(("stage", "total"),): 2.0}
    assert found["sci_stream_latency_seconds_bucket"][(("le", "0.005"), ("stage", "total"))] == 1.0


def test_later_report_replaces_earlier_one() -> None:
    figures = NodeMetrics("acquire", "acquire")
    figures.report({"held": 7})
    figures.report({"acquired": 3})
    assert "sci_stream_held" not in families(figures)


def test_process_metrics_are_published() -> None:
    assert families(NodeMetrics("sink", "sink"))["process_resident_memory_bytes"][()] > 1e6


@pytest.mark.parametrize("name", ["no_such_figure", "latency_seconds"])
def test_unknown_figure_or_histogram_is_refused_by_report(name: str) -> None:
    with pytest.raises(KeyError, match=name):
        NodeMetrics("sink", "sink").report({name: 1.0})


def test_catalogue_has_buckets_and_help_texts() -> None:
    for name, figure in CATALOGUE.items():
        assert figure.help.endswith("."), name
        assert bool(figure.buckets) == (figure.kind == "histogram"), name


def test_manual_lists_every_published_figure() -> None:
    docs = Path(__file__).parents[2] / "docs"
    manual, quantities = (docs / "operation.md").read_text(), (docs / "quantities.md").read_text()
    for name, figure in CATALOGUE.items():
        if f"`sci_stream_{name}" in quantities:
            continue
        published = f"sci_stream_{name}" + ("_total" if figure.kind == "counter" else "")
        assert f"| `{published}` | {figure.kind} | {figure.label} | {figure.help} |" in manual
