"""Replay: reconstruct a recording again from its raw snapshots."""
