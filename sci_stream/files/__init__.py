"""Formats of others: MATLAB, NumPy, published measurements, images and videos."""
