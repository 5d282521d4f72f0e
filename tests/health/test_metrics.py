"""Figures are published as Prometheus reads them, and only those that the catalogue names."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sci_stream.health import CATALOGUE, Figures, MetricKind


def families(figures: Figures) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Return samples by name and labels, as another program's parser reads them."""
    out: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(figures.exposition().decode()):
        for sample in family.samples:
            out.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return out


def test_a_number_a_number_by_label_and_a_histogram_come_out_as_they_were_told() -> None:
    figures = Figures("sink", "sink", {"sci-stream": "1.2.3"})
    figures.report({"ready": 1.0, "snapshots": {"reconstructed": 5, "dropped: queue_full": 2}})
    for seconds in (0.003, 0.3):
        figures.observe("latency_seconds", seconds, "total")
    found = families(figures)
    assert found["sci_stream_node_info"] == {(("kind", "sink"), ("node", "sink"), ("version", "1.2.3")): 1.0}
    assert found["sci_stream_ready"] == {(): 1.0}
    assert found["sci_stream_snapshots_total"] == {
        (("outcome", "reconstructed"),): 5.0,
        (("outcome", "dropped: queue_full"),): 2.0,
    }
    assert found["sci_stream_latency_seconds_count"] == {(("stage", "total"),): 2.0}
    assert found["sci_stream_latency_seconds_bucket"][(("le", "0.005"), ("stage", "total"))] == 1.0


def test_what_is_told_later_replaces_what_was_told_before() -> None:
    figures = Figures("acquire", "acquire")
    figures.report({"held": 7})
    figures.report({"acquired": 3})
    assert "sci_stream_held" not in families(figures)


def test_the_process_itself_is_described_too() -> None:
    assert families(Figures("sink", "sink"))["process_resident_memory_bytes"][()] > 1e6


@pytest.mark.parametrize("name", ["no_such_figure", "latency_seconds"])
def test_a_figure_that_is_not_in_the_catalogue_or_a_histogram_cannot_be_told(name: str) -> None:
    with pytest.raises(KeyError, match=name):
        Figures("sink", "sink").report({name: 1.0})


@pytest.mark.parametrize("name", ["no_such_figure", "held"])
def test_only_a_histogram_is_observed(name: str) -> None:
    with pytest.raises(KeyError, match=name):
        Figures("sink", "sink").observe(name, 1.0)


def test_every_histogram_has_buckets_and_every_figure_says_what_it_is() -> None:
    for name, figure in CATALOGUE.items():
        assert figure.help.endswith("."), name
        assert bool(figure.buckets) == (figure.kind is MetricKind.HISTOGRAM), name


def test_the_manual_lists_every_figure_as_it_is_published() -> None:
    manual = (Path(__file__).parents[2] / "docs" / "operation.md").read_text()
    for name, figure in CATALOGUE.items():
        published = f"sci_stream_{name}" + ("_total" if figure.kind is MetricKind.COUNTER else "")
        assert f"| `{published}` | {figure.kind.value} | {figure.label} | {figure.help} |" in manual
