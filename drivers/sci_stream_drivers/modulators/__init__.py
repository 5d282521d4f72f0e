"""Mask modulators, each a plug-in of the entry-point group ``sci_stream.modulators`` with an extra of its own."""
