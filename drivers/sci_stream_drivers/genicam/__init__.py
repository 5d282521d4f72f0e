"""The common part of drivers for GenICam cameras: features, pixel formats, chunks, restarts.

A transport layer (`sci_stream_drivers.harvesters`, `sci_stream_cameras.aravis`) adds how cameras
are found and how frames arrive. Features need the optional package ``genicam``.
"""
