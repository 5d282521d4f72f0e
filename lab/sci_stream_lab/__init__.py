"""The laboratory of `sci_stream`: benchmarks, training of denoisers, and the paper's methods."""
