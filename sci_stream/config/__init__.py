"""Configuration: one TOML file per rig, validated by one model per section.

``load_rig(path)`` returns a `Rig` or raises a `ConfigError` with file, section, key, expected and
given value; ``example_toml()`` writes a commented file; ``validate_options()`` validates the
options of a camera driver.
"""

from sci_stream.config.error_messages import validate_options
from sci_stream.config.example import example_toml
from sci_stream.config.loader import load_rig, parse_rig
from sci_stream.config.reconstruct_section import ReconstructSection
from sci_stream.config.rig import Rig
from sci_stream.config.sections import (
    CalibrationSection,
    ExperimentSection,
    PreviewSection,
    RecordSection,
)

__all__ = [
    "CalibrationSection",
    "ExperimentSection",
    "PreviewSection",
    "ReconstructSection",
    "RecordSection",
    "Rig",
    "example_toml",
    "load_rig",
    "parse_rig",
    "validate_options",
]
