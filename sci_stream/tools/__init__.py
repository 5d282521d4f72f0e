"""Command-line tools that work on rigs, cameras and recordings: preflight, calibrate, discovery,
replay, export.
"""
