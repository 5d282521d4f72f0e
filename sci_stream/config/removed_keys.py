"""Keys of earlier versions of the rig file, with what replaced them."""

from __future__ import annotations

from typing import Final

_IN_LAB = "The paper's own loop has it: sci_stream_lab.paper, of the package sci-stream-lab."
_IN_PYTHON = (
    "It is a setting for experiments: SolverSettings in Python, `--set` of `sci-stream bench`."
)
_PAUSES = "A lost camera is reopened after 0.2 s, then twice as long each time, up to 10 s."
_REMOTE = (
    'driver = "remote" of sci-stream-modulators has address and public_key in [modulator.options].'
)
_TOKEN = "A token holds until the rig starts with another one."
_EXPORT = "`sci-stream export RECORDING film.mp4` makes one of any recording; --fps sets its pace."

REMOVED: Final = {
    "camera.reconnect_first_s": _PAUSES,
    "camera.reconnect_max_s": _PAUSES,
    "experiment.exposure_s": "The calibration holds the exposure.",
    "health.token_expires": _TOKEN,
    "modulator.address": _REMOTE,
    "preview.jpeg_quality": "The quality is 85; [preview] h264_mbit_per_s bounds the video.",
    "preview.most_viewers": "It is now max_viewers.",
    "preview.token_expires": _TOKEN,
    "reconstruct.accelerate": "It is relaxation = 0 of SolverSettings, in Python.",
    "reconstruct.along_time": _IN_PYTHON,
    "reconstruct.correlated": _IN_PYTHON,
    "reconstruct.eta": _IN_LAB,
    "reconstruct.expert": "Write its keys in [reconstruct].",
    "reconstruct.gamma": _IN_LAB,
    "reconstruct.lambda_rule": _IN_LAB,
    "reconstruct.linear_start": _IN_PYTHON,
    "reconstruct.local_sigma": _IN_PYTHON,
    "reconstruct.momentum": "[reconstruct] iterations and the denoiser decide.",
    "reconstruct.relaxation": _IN_PYTHON,
    "reconstruct.restrain": "[reconstruct] iterations and the denoiser decide.",
    "reconstruct.sigma_shape": "σ falls by a constant factor.",
    "reconstruct.solver": _IN_LAB,
    "reconstruct.switch_at": _IN_LAB,
    "reconstruct.weigh_noise": _IN_PYTHON,
    "reconstruct.xi": _IN_LAB,
    "record.movie": _EXPORT,
    "record.movie_fps": _EXPORT,
    "record.warn_free_mib": "The warning comes at eight times min_free_mib.",
    "security.modulator_key": _REMOTE,
}
"""Replacement of each removed key: a rig file with one is refused, and the rig of an old recording
is read without."""

REMOVED_OPTIONS: Final = {
    "trigger.software_rate_hz": "The camera's own rate does that: AcquisitionFrameRate in "
    "features, without a trigger.",
}
"""The same for options of drivers."""
