"""Files in and out: calibrations, recordings, journals, published measurements and videos."""
