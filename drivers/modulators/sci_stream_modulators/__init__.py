"""Drivers of mask modulators with makers' libraries: plug-ins of the entry-point group
``sci_stream.modulators``.
"""
