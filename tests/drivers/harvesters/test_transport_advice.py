"""Warnings about packet size, resend, USB memory and producers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from sci_stream_drivers.harvesters import transport_advice
from sci_stream_drivers.harvesters.transport_advice import gige_advice, producer_advice, usb_advice

pytestmark = pytest.mark.rig

pytest.importorskip("harvesters", reason="harvesters is not installed: pip install '.[genicam]'")


def features(**values: object) -> SimpleNamespace:
    """Return a node map with these features alone."""
    return SimpleNamespace(
        get_node=lambda name: SimpleNamespace(value=values[name]) if name in values else None
    )


def test_small_packets_are_advised_against() -> None:
    (advice,) = gige_advice(features(GevSCPSPacketSize=1444), None)
    assert "packets of 1444 bytes" in advice
    assert "GevSCPSPacketSize" in advice
    assert gige_advice(features(GevSCPSPacketSize=8192), features()) == []


def test_switched_off_resend_is_advised_against() -> None:
    camera = features(GevSCPSPacketSize=9000)
    (advice,) = gige_advice(camera, features(StreamPacketResendEnable=False))
    assert '["StreamPacketResendEnable", true] in stream_features' in advice
    assert gige_advice(camera, features(StreamPacketResendEnable=True)) == []


@pytest.mark.parametrize(
    ("allowed", "warned"), [("16", True), ("200", False), ("0", False), ("none", False)]
)
def test_usb_memory_below_the_buffers_is_warned_of(
    allowed: str, warned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "usbfs_memory_mb"
    path.write_text(allowed)
    monkeypatch.setattr(transport_advice, "USBFS_MEMORY", path)
    assert bool(usb_advice(100 << 20)) is warned


def test_producer_that_paints_over_foreign_images_is_warned_of() -> None:
    assert "writes text over the images" in producer_advice("mvGenTLProducer.cti", "Basler")
    assert producer_advice("mvGenTLProducer.cti", "MATRIX VISION GmbH") == ""
    assert producer_advice("ProducerU3V.cti", "Basler") == ""
