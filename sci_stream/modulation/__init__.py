"""Mask modulators: timing, the plan that makes one exposure cover B masks, and patterns by design.

Pure.
"""
