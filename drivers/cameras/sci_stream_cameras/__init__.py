"""Camera drivers beside GenTL: plug-ins of the entry-point group ``sci_stream.cameras``."""
