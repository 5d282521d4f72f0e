"""Tests for plug-ins: suites for `cameras`, `modulators` and `denoisers`, and a simulated rig."""
