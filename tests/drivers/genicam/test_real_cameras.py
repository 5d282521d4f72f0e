"""The node maps of real cameras: their features, and the example rigs of their makers."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sci_stream.config import example_toml, load_rig
from sci_stream.errors import ConfigError
from sci_stream_drivers.genicam import node_map
from sci_stream_drivers.genicam.exposures import timing_of
from sci_stream_drivers.genicam.features import find, settings_of
from sci_stream_drivers.genicam.formats import FORMATS
from sci_stream_drivers.genicam.node_map import kind_of
from sci_stream_drivers.genicam.options import FeatureSetting, GenicamOptions
from sci_stream_drivers.genicam.standard_features import (
    EXPOSURE,
    FRAME_RATE,
    GAIN,
    distortions,
    feature_named,
    settings,
    suggested_features,
    trigger_line,
)
from sci_stream_drivers.harvesters import HarvestersOptions
from tests.drivers.genicam.node_maps import ARCHIVE, RealCameras

RIGS = Path(__file__).parents[3] / "deploy" / "rigs"
# Names of node maps in the archive, and how many there are.
MAKERS = {
    "basler": (r"Basler.(acA|a2A)", 12),
    "flir": (r"BFS|BlackflyS|ORX", 24),
    "allied-vision": (r"AVT_(GT|Mako|Manta)", 29),
}


@pytest.fixture(scope="module")
def real_maps(data_dir: Path) -> RealCameras:
    """Return the node maps of the archive by the names of their files; skip without it."""
    if not (data_dir / ARCHIVE).is_file():
        pytest.skip(f"no {ARCHIVE} in SCI_STREAM_DATA")
    return RealCameras(data_dir)


def has(nodes: Any, setting: FeatureSetting) -> bool:
    """Return whether a camera has the feature, and the entry if it is an enumeration; not whether
    it has it now.
    """
    name = feature_named(nodes, setting.feature)
    if not nodes.has_node(name):
        return False
    node = nodes.get_node(name)
    return kind_of(node) != "enumeration" or setting.value in {
        str(entry.symbolic) for entry in node.entries
    }


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


_WITHOUT = {
    "ExposureTime": {"Coaxlink_TLDataStream", "FLIR_A35", "FLIR_SC6700"},
    "Gain": {"Coaxlink_TLDataStream", "FLIR_SC6700", "Orca_Fire", "PCO1600"},
    "AcquisitionFrameRate": {
        "Coaxlink_TLDataStream", "FLIR_SC6700", "Orca_Fire", "PCO1600", "JAI_RM-6740GE",
        "aravisGigE-RM-6740GE",
        "Photonic_Science_FDI3", "Photonic_Science_LC_SCMOS", "Sony_CVC_EH6300", "TMC-1405GE",
    },
}  # fmt: skip


def test_every_real_camera_offers_the_quantities_that_it_has(real_maps: RealCameras) -> None:
    assert len(real_maps) == 119
    for quantity in (EXPOSURE, GAIN, FRAME_RATE):
        without = {name for name, nodes in real_maps.items() if quantity.find(nodes) is None}
        expected = {
            name for name in real_maps if any(part in name for part in _WITHOUT[quantity.name])
        }
        assert without == expected, quantity.name
        assert len(expected) == len(_WITHOUT[quantity.name])


def test_real_cameras_are_described_and_configured(real_maps: RealCameras, tmp_path: Path) -> None:
    """As `cameras features`, `config init` and the names of a rig file read them."""
    for name, nodes in real_maps.items():
        assert list(node_map.features(nodes)), name
        settings(nodes)
        distortions(nodes)
        suggested = {"selector": {"serial": "1"}, "features": suggested_features(nodes)}
        line = trigger_line(nodes)
        examples = {} if line is None else {"trigger": {"source": line}}
        path = tmp_path / "rig.toml"
        path.write_text(
            example_toml(
                "aravis", HarvestersOptions, every_key=False, values=suggested, examples=examples
            )
        )
        options = HarvestersOptions.model_validate(load_rig(path, {}).camera.options)
        assert [[setting.feature, setting.value] for setting in options.features] == suggested[
            "features"
        ]
        for setting in settings_of(options):
            find(nodes, setting.feature, name)
        with pytest.raises(ConfigError, match="has no feature Widht"):
            find(nodes, "Widht", name)


def test_limits_of_real_cameras_are_sensible(real_maps: RealCameras) -> None:
    limits = {name: timing_of(nodes) for name, nodes in real_maps.items()}
    assert all(timing.min_exposure_us < timing.max_exposure_us for timing in limits.values())
    # Enumerations of most others depend on registers that a description alone does not have.
    assert [name for name, timing in limits.items() if timing.max_every > 1] == [
        "ADGenICam-Basler-a2A2600-20gmBAS"
    ]


def test_formats_of_real_polarised_cameras_have_their_codes(real_maps: RealCameras) -> None:
    found = Counter(
        name
        for camera, text in real_maps.texts.items()
        if "Polarized" in text and (nodes := real_maps[camera]).has_node("PixelFormat")
        for entry in nodes.get_node("PixelFormat").entries
        if (name := str(entry.symbolic)).startswith("Polarized")
        and entry.numeric_value == FORMATS[name].code
    )
    assert found == dict.fromkeys(("Polarized8", "Polarized10p", "Polarized12p", "Polarized16"), 9)
