"""Recordings: HDF5 files that are readable while they grow, after a ``kill -9``, and after the disk
ran full.

Layout (schema version 1), row = seq − first_seq::

    @format = "sci_stream.recording"  @schema_version  @first_seq
    series_info    text, JSON: model.SeriesInfo
    rig_toml       text: the rig file
    calibration/   see calibration_file
    ledger         JSON, zero-padded: {"clean", "time_ns", "ledger"}
    raw            (N, H, W), DN, one snapshot per chunk
    video          (N, B, H, W), floats or uint16, by frame
    rows/          (N,) each: columns.COLUMNS
    entry/         NeXus: hard links to raw and video

Skipped rows take no space. A file whose writer was killed is opened with ``h5py.File(path,
swmr=True)``; `rows/state` gives the content of each row. This package is the only reader and writer
of the format.
"""
