"""The live page's binary messages, read as the page does."""

from __future__ import annotations

import json
import struct
from typing import Any

_LENGTH = struct.Struct("<I")


def split_message(message: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Split a message into its header and parts."""
    (length,) = _LENGTH.unpack_from(message)
    offset = _LENGTH.size + length
    header = json.loads(message[_LENGTH.size : offset])
    images = []
    for size in header["sizes"]:
        images.append(message[offset : offset + size])
        offset += size
    return header, images
