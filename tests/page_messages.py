"""The live page's binary messages, read as the page does."""

from __future__ import annotations

import json
import struct
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

_LENGTH = struct.Struct("<I")


def decode_jpeg(jpeg: bytes) -> npt.NDArray[np.uint8]:
    """Decode a JPEG to (H, W, 3) RGB."""
    image = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
    assert image is not None
    return np.ascontiguousarray(image[..., ::-1], np.uint8)


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
