"""Fixtures of the replay tests."""

from tests.tools.replay_kit import recordings, sleeping

__all__ = ["recordings", "sleeping"]
