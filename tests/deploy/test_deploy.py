"""What is in deploy/ is checked by the programs that read it, where they are, and against what nodes really publish."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sci_stream.config import load_rig
from sci_stream.health import CATALOGUE, Kind
from tests.e2e.kit import ROOT

DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def published_names() -> set[str]:
    """Return every name under which a figure of ours can be asked for."""
    names: set[str] = set()
    for name, figure in CATALOGUE.items():
        endings = {Kind.COUNTER: ["_total"], Kind.GAUGE: [""], Kind.HISTOGRAM: ["_bucket", "_sum", "_count"]}[
            figure.kind
        ]
        names |= {f"sci_stream_{name}{ending}" for ending in endings}
    return names


def dashboard_queries() -> Iterator[str]:
    for panel in json.loads((DEPLOY / "monitoring" / "grafana.json").read_text())["panels"]:
        for target in panel["targets"]:
            yield target["expr"]


def alert_queries() -> Iterator[str]:
    for group in yaml.safe_load((DEPLOY / "monitoring" / "alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]


@pytest.mark.parametrize("query", [*dashboard_queries(), *alert_queries()])
def test_every_query_names_figures_that_exist(query: str) -> None:
    assert set(re.findall(r"sci_stream_\w+", query)) <= published_names()


def test_panels_do_not_lie_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads((DEPLOY / "monitoring" / "grafana.json").read_text())["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not taken & cells, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize("what", [("config", "prometheus.yml"), ("rules", "alerts.yml")])
def test_prometheus_takes_the_configuration_and_the_alerts(what: tuple[str, str]) -> None:
    kind, name = what
    subprocess.run(["promtool", "check", kind, str(DEPLOY / "monitoring" / name)], check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    # It also looks for the program that is started, which is not installed where tests run.
    for unit in [*UNITS, DEPLOY / "systemd" / "sci-stream.target"]:
        text = unit.read_text().replace("/opt/sci-stream/bin/sci-stream", "/bin/true")
        (tmp_path / unit.name).write_text(text)
    told = subprocess.run(
        ["systemd-analyze", "verify", *map(str, tmp_path.iterdir())], check=False, capture_output=True, text=True
    )
    assert told.returncode == 0, told.stderr
    assert not [line for line in told.stderr.splitlines() if "sci-stream" in line], told.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_starts_a_command_that_exists_and_is_watched(unit: Path) -> None:
    text = unit.read_text()
    (command,) = re.findall(r"^ExecStart=/opt/sci-stream/bin/sci-stream (\w+) \$\{SCI_STREAM_RIG\}", text, re.MULTILINE)
    assert f"sci-stream-{command}" in unit.name
    for line in ("Type=notify", "WatchdogSec=60", "Restart=always", "NoNewPrivileges=true", "ProtectSystem=strict"):
        assert f"\n{line}\n" in text


def test_the_compose_file_is_one() -> None:
    check = pytest.importorskip("check_jsonschema", reason="check-jsonschema is not installed")
    path = DEPLOY / "container" / "compose.yaml"
    with pytest.raises(SystemExit) as ended:
        check.main(["--builtin-schema", "vendor.compose-spec", str(path)])
    assert ended.value.code == 0
    services = yaml.safe_load(path.read_text())["services"]
    assert services["reconstruct"]["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"] == ["gpu"]
    assert services["acquire"]["environment"]["SCI_STREAM_SPOOL"] == "/spool"
    holders = [name for name, service in services.items() if any(v.startswith("spool:") for v in service["volumes"])]
    assert holders == ["sink", "acquire"], "memory that one container alone has mounted goes with it"
    assert all(service["read_only"] and service["cap_drop"] == ["ALL"] for service in services.values())


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load((DEPLOY / "kubernetes" / "rig.yaml").read_text())["items"])


@pytest.mark.parametrize("manifest", manifests(), ids=lambda m: f"{m['kind']} {m['metadata']['name']}")
def test_a_manifest_is_one(manifest: dict[str, Any]) -> None:
    kubernetes = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    kubernetes.validate(manifest, "1.30", strict=True)


def test_the_cluster_has_a_gpu_a_pod_and_a_rig_that_loads(tmp_path: Path) -> None:
    by_name = {(m["kind"], m["metadata"]["name"]): m for m in manifests()}
    pod = by_name["StatefulSet", "sci-stream-reconstruct"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1
    path = tmp_path / "rig.toml"
    path.write_text(
        by_name["ConfigMap", "sci-stream-rig"]["data"]["rig.toml"].replace(
            "REPLACE_WITH_THE_PUBLIC_KEY_OF_40_LETTERS", "a" * 40
        )
    )
    rig = load_rig(path, overrides={"SCI_STREAM_RIG__HEALTH__TOKEN": "word"})
    assert rig.encrypted
    assert rig.reconstruct.nodes == by_name["StatefulSet", "sci-stream-reconstruct"]["spec"]["replicas"]


def test_what_is_not_yet_safe_outlives_the_acquire_container_of_a_cluster() -> None:
    (acquire,) = [
        m for m in manifests() if m["metadata"]["name"] == "sci-stream-acquire" and m["kind"] == "StatefulSet"
    ]
    pod = acquire["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (spool,) = [entry["value"] for entry in container["env"] if entry["name"] == "SCI_STREAM_SPOOL"]
    (mount,) = [mount for mount in container["volumeMounts"] if mount["mountPath"] == spool]
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == mount["name"]]
    assert volume["emptyDir"] == {"medium": "Memory"}


def test_the_rig_for_containers_loads() -> None:
    assert load_rig(DEPLOY / "container" / "rig.toml", overrides={}).policy.mode == "record"


def test_the_script_for_the_cameras_network_is_sound_and_says_what_it_wants() -> None:
    script = DEPLOY / "host" / "camera-network.sh"
    subprocess.run(["sh", "-n", str(script)], check=True)
    told = subprocess.run(["sh", str(script), "no-such-interface"], check=False, capture_output=True, text=True)
    assert told.returncode == 2
    assert "no interface no-such-interface; there are:" in told.stderr
