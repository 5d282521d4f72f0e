"""The physics: the forward model of the camera, its calibration, its Bayer mosaic."""
