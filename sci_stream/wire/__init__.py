"""The wire format: messages between nodes, their encoding and validation. docs/wire.md specifies
it.

``encode(message)`` returns the frames of a multipart message; ``decode(frames)`` returns the
message or raises `WireError`, whatever the frames contain. Neither uses sockets.
"""
