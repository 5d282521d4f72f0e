"""File formats: calibrations, recordings, journals, published measurements, images and videos."""
