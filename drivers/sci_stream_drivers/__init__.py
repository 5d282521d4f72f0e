"""Camera drivers, each a plug-in registered under the entry-point group ``sci_stream.cameras``."""
