"""The example rigs of makers, against the node maps of their cameras."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sci_stream.config import load_rig
from sci_stream_drivers.genicam.features import settings_of
from sci_stream_drivers.genicam.node_map import kind_of
from sci_stream_drivers.genicam.options import FeatureSetting, GenicamOptions
from sci_stream_drivers.genicam.standard_features import feature_named
from tests.drivers.genicam.node_maps import RealCameras

RIGS = Path(__file__).parents[3] / "deploy" / "rigs"
# Names of node maps in the archive, and how many there are.
MAKERS = {
    "basler": (r"Basler.(acA|a2A)", 12),
    "flir": (r"BFS|BlackflyS|ORX", 24),
    "allied-vision": (r"AVT_(GT|Mako|Manta)", 29),
}


def has(nodes: Any, setting: FeatureSetting) -> bool:
    """Return whether a camera has the feature, and the entry if it is an enumeration; not whether it has it now."""
    name = feature_named(nodes, setting.feature)
    if not nodes.has_node(name):
        return False
    node = nodes.get_node(name)
    return kind_of(node) != "enumeration" or setting.value in {str(entry.symbolic) for entry in node.entries}


@pytest.mark.parametrize("maker", MAKERS)
def test_rig_of_a_maker_fits_its_cameras(maker: str, real_maps: RealCameras) -> None:
    pattern, count = MAKERS[maker]
    theirs = {name: real_maps[name] for name in real_maps if re.search(pattern, name)}
    assert len(theirs) == count
    options = load_rig(RIGS / f"{maker}.toml", {}).camera.options
    for setting in settings_of(GenicamOptions.model_validate(options)):
        fitting = [name for name, nodes in theirs.items() if has(nodes, setting)]
        assert fitting, f"no camera has {setting}"
        if not setting.optional:
            assert sorted(theirs.keys() - fitting) == [], f"cameras without {setting}"
