"""Warnings about settings of host and producer that lose or spoil frames."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from sci_stream_drivers.genicam.library import feature
from sci_stream_drivers.harvesters.session import Session

log = logging.getLogger(__name__)

USBFS_MEMORY = Path("/sys/module/usbcore/parameters/usbfs_memory_mb")
# A packet of this size fits a network without jumbo frames; with larger ones the host handles a
# sixth of the packets.
_ORDINARY_PACKET = 1500
# Names of the switch for resending lost packets: not in the standard, one for each family of
# producers.
_RESEND = (
    "StreamPacketResendEnable",
    "GevStreamPacketResendEnable",
    "PacketResendEnable",
    "EnableResend",
    "GVSPResend",
)


# After an evaluation time it writes text over the images of other makers' cameras, as its users
# report.
_PAINTER = "mvGenTLProducer"
_PAINTER_MAKERS = ("matrix vision", "balluff")


def warn_about_transport(session: Session, buffers: int) -> None:
    """Log what would lose or spoil frames of an open, configured camera, each with the remedy."""
    advice = [producer_advice(session.producer, session.vendor)]
    if session.transport == "GEV":
        advice += gige_advice(session.node_map, session.acquirer.data_streams[0].node_map)
    if session.transport == "U3V":
        advice.append(usb_advice(int(feature(session.node_map, "PayloadSize", 0) or 0) * buffers))
    for text in filter(None, advice):
        log.warning("%s: %s", session.name, text)


def producer_advice(producer: str, vendor: str) -> str:
    """Return a warning if a producer is known to change the images of this maker's cameras; empty
    if not.
    """
    if not producer.startswith(_PAINTER) or any(
        maker in vendor.lower() for maker in _PAINTER_MAKERS
    ):
        return ""
    return (
        f"{producer} writes text over the images of other makers' cameras after an evaluation "
        "time: choose the "
        "producer of the camera's maker with cti or selector.producer"
    )


def gige_advice(camera: Any, stream: Any) -> list[str]:
    """Return warnings about packet size and resend of a GigE Vision camera;
    ``stream`` may be None.
    """
    advice = []
    size = feature(camera, "GevSCPSPacketSize")
    if isinstance(size, int) and size <= _ORDINARY_PACKET:
        advice.append(
            f"packets of {size} bytes load the processor and lose frames at high rates: give the "
            "network interface an "
            'MTU of 9000 (deploy/host/camera-network.sh) and set ["GevSCPSPacketSize", 8192] in '
            "features"
        )
    switched_off = [
        name for name in _RESEND if stream is not None and feature(stream, name) is False
    ]
    return advice + [
        f'lost packets are not resent: set ["{name}", true] in stream_features'
        for name in switched_off
    ]


def usb_advice(needed_bytes: int) -> str:
    """Return a warning if the kernel allows USB transfers less memory than the buffers take; empty
    if all is well.
    """
    try:
        allowed_mb = int(USBFS_MEMORY.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    needed_mb = -(-needed_bytes // 2**20)
    if allowed_mb == 0 or allowed_mb >= needed_mb:  # 0: no limit
        return ""
    return (
        f"the kernel gives USB transfers {allowed_mb} MB, {needed_mb} MB are needed: frames will "
        "be lost; "
        f"echo {max(1000, needed_mb)} > {USBFS_MEMORY} (usbcore.usbfs_memory_mb on the kernel's "
        "command line for good)"
    )
