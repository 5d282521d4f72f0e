"""Suites of tests that a plug-in of another package runs on itself: `cameras`, `denoisers`."""
