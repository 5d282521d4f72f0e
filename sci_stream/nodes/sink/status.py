"""Status of the rig: complete for the live page, flattened for the status tap."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sci_stream.parameters import ACTIONS_KEY, SET_KEY
from sci_stream.transport.results_server import Peer

StatusValue = int | float | str


def describe_nodes(peers: Iterable[Peer]) -> list[dict[str, Any]]:
    """Return one entry per node: name, kind, device, state, and its last status."""
    return [
        {
            **{key: value for key, value in peer.status.items() if not key.startswith(SET_KEY) and key != ACTIONS_KEY},
            "name": peer.hello.node,
            "kind": peer.hello.kind_of_node,
            "device": peer.hello.device,
            "state": "lost" if peer.lost else "up",
        }
        for peer in peers
    ]


def flat(status: Mapping[str, Any]) -> dict[str, StatusValue]:
    """Return the figures that fit a heartbeat: ``ledger.acquired``, ``rate.video_fps``, ``latency_ms.p50``, …."""
    out: dict[str, StatusValue] = {
        key: status[key] for key in ("state", "series", "rig", "policy") if isinstance(status.get(key), str)
    }
    for key, value in status.get("ledger", {}).items():
        out[f"ledger.{key}"] = sum(value.values()) if isinstance(value, dict) else int(value)
    out |= {f"rate.{key}": float(value) for key, value in status.get("rates", {}).items()}
    total = status.get("latency_ms", {}).get("total", {})
    out |= {f"latency_ms.{key}": float(value) for key, value in total.items()}
    calibration = status.get("calibration") or {}
    out |= {f"calibration.{key}": value for key, value in calibration.items() if isinstance(value, int | float | str)}
    out |= {key: float(status[key]) for key in ("psnr_db", "iterations") if status.get(key) is not None}
    return out


def solvers(peers: Iterable[Peer]) -> dict[str, dict[str, StatusValue]]:
    """Return the solver settings reported by the reconstruct nodes, by id."""
    found = {}
    for peer in peers:
        report = {
            name.removeprefix("solver."): value for name, value in peer.status.items() if name.startswith("solver.")
        }
        if name := report.pop("id", None):
            found[str(name)] = report
    return found
