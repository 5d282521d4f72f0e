"""Commands that `sci-stream` finds by the entry-point group ``sci_stream.commands``."""
