"""Fixtures of the laboratory's tests: those of the instrument's."""

import sci_stream  # noqa: F401  # before OpenCV, whose limits it sets
from tests.conftest import data_dir, one_thread
from tests.series_fixtures import series

__all__ = ["data_dir", "one_thread", "series"]
