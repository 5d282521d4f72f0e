"""Fixtures of the laboratory's tests: those of the instrument's."""

from tests.conftest import data_dir, one_thread

__all__ = ["data_dir", "one_thread"]
