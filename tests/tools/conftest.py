"""Fixtures of the tools' tests."""

from tests.recon.conftest import make_video
from tests.tools.replay_kit import recordings, sleeping

__all__ = ["make_video", "recordings", "sleeping"]
