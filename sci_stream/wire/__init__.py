"""The wire format: messages between nodes, their encoding and validation. docs/wire.md specifies it.

``encode(message)`` returns the frames of a multipart message; ``decode(frames)`` returns the message or raises
`WireError`, whatever the frames contain. Neither uses sockets.
"""

from sci_stream.wire.codec import decode, encode, payload_bytes
from sci_stream.wire.header import SCHEMA_VERSION, Limits, Reason
from sci_stream.wire.messages import (
    Acceptable,
    Accepted,
    Acknowledged,
    CalibrationMissing,
    CalibrationRequest,
    Control,
    ControlResult,
    Done,
    Dropped,
    Goodbye,
    Heartbeat,
    Hello,
    Message,
    Ping,
    Pong,
    Refused,
    SeriesEnd,
    Welcome,
    acknowledgement_of,
)

__all__ = [
    "SCHEMA_VERSION",
    "Acceptable",
    "Accepted",
    "Acknowledged",
    "CalibrationMissing",
    "CalibrationRequest",
    "Control",
    "ControlResult",
    "Done",
    "Dropped",
    "Goodbye",
    "Heartbeat",
    "Hello",
    "Limits",
    "Message",
    "Ping",
    "Pong",
    "Reason",
    "Refused",
    "SeriesEnd",
    "Welcome",
    "acknowledgement_of",
    "decode",
    "encode",
    "payload_bytes",
]
