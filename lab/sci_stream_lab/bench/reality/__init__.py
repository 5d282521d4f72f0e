"""``sci-stream bench reality``: reconstruction through masks that are not quite those of the
calibration.
"""
