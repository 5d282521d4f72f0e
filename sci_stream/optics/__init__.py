"""The forward model of the camera, its calibration and its Bayer mosaic."""
