"""Set a camera's features in order, and read each back."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable
from typing import Any

from sci_stream.errors import CameraError, ConfigError, did_you_mean
from sci_stream.plugins import Value
from sci_stream_drivers.genicam.library import feature, library, message_of
from sci_stream_drivers.genicam.node_map import (
    access_of,
    choices_of,
    is_settable,
    kind_of,
    range_text,
    value_of,
)
from sci_stream_drivers.genicam.options import FeatureSetting, GenicamOptions, TriggerOptions
from sci_stream_drivers.genicam.standard_features import (
    CLOCK_SWITCHES,
    TIMES,
    feature_named,
    microseconds,
)

log = logging.getLogger(__name__)

# Loading a user set may take seconds; a command that takes longer than this hangs.
_COMMAND_S = 30.0
_SETTLED = ("Slave", "Master", "PreMaster")


def configure(node_map: Any, options: GenicamOptions, camera: str) -> str | None:
    """Configure a camera as the options specify.

    User set, features, trigger, chunks and clock are applied in this order; ``camera`` is its name
    in messages.

    Returns
    -------
    The name of the clock that its timestamps are synchronised with, if any; else None.

    Raises
    ------
    ConfigError
        If a feature that is not optional does not exist, is not writable or refuses its value.
    CameraError
        If the camera fails, or its clock is not synchronised in time.
    """
    steps = settings_of(options)
    for setting in steps:
        apply(node_map, setting, camera)
    _check_earlier_settings(node_map, {setting.feature for setting in steps}, camera)
    return follow_clock(node_map, options, camera)


def _check_earlier_settings(node_map: Any, mentioned: set[str], camera: str) -> None:
    """Warn about settings left by a viewer that would leave a series without frames,
    or reset them.
    """
    if (
        "AcquisitionMode" not in mentioned
        and feature(node_map, "AcquisitionMode", "Continuous") != "Continuous"
    ):
        apply(node_map, FeatureSetting(feature="AcquisitionMode", value="Continuous"), camera)
    if "TriggerMode" not in mentioned and feature(node_map, "TriggerMode") == "On":
        source = feature(node_map, "TriggerSource", "an unknown source")
        log.warning(
            "%s waits for triggers from %s, as configured before: set a trigger, or TriggerMode",
            camera,
            source,
        )


def settings_of(options: GenicamOptions) -> list[FeatureSetting]:
    """Return all settings, in order."""
    steps: list[FeatureSetting] = []
    if options.user_set:
        steps += [
            FeatureSetting(feature="UserSetSelector", value=options.user_set),
            FeatureSetting(feature="UserSetLoad"),
        ]
    steps += options.features
    if options.trigger is not None:
        steps += _trigger_settings(options.trigger)
    if options.chunks:
        steps.append(FeatureSetting(feature="ChunkModeActive", value=True))
    for chunk in options.chunks:
        steps += [
            FeatureSetting(feature="ChunkSelector", value=chunk),
            FeatureSetting(feature="ChunkEnable", value=True),
        ]
    return steps


def _trigger_settings(trigger: TriggerOptions) -> Iterable[FeatureSetting]:
    # A camera with a single kind of trigger may have no selector.
    yield FeatureSetting(
        feature="TriggerSelector", value=trigger.selector, optional=trigger.selector == "FrameStart"
    )
    settings = {
        "TriggerSource": trigger.source,
        "TriggerActivation": trigger.activation,
        "TriggerDelay": trigger.delay_us,
        "ExposureMode": trigger.exposure_mode,
    }
    for name, value in settings.items():
        if value is not None:
            yield FeatureSetting(feature=name, value=value)
    if trigger.output_line is not None:
        yield FeatureSetting(feature="LineSelector", value=trigger.output_line)
        # A line that can only be an output has no mode.
        yield FeatureSetting(feature="LineMode", value="Output", optional=True)
        yield FeatureSetting(feature="LineSource", value=trigger.output_signal)
    yield FeatureSetting(feature="TriggerMode", value="On")


def apply(node_map: Any, setting: FeatureSetting, camera: str) -> Value | None:
    """Set one feature, or execute one command; return its value read back.

    Raises `ConfigError` if that fails, unless the setting is optional; `CameraError` if the camera
    fails.
    """
    try:
        return _apply(node_map, setting, camera)
    except ConfigError as error:
        if not setting.optional:
            raise
        log.info("%s: skipped an optional setting: %s", camera, error)
        return None


def _apply(node_map: Any, setting: FeatureSetting, camera: str) -> Value | None:
    lib = library()
    node = find(node_map, setting.feature, camera)
    kind = kind_of(node)
    access = access_of(node)
    if "W" not in access:
        raise ConfigError(
            f"{camera}: the feature {setting.feature} cannot be set",
            expected="a feature that is writable now",
            got={"RO": "a read-only one", "NA": "one that is not available now"}.get(
                access, access
            ),
            hint="It may depend on a mode, a selector, or settings made before it.",
        )
    if kind == "command":
        _execute(node, setting, camera)
        return None
    value = _as_kind(setting, kind, node, camera)
    try:
        node.from_string(value) if kind == "register" else setattr(node, "value", value)
        got = value_of(node)
    except (lib.genapi.OutOfRangeException, lib.genapi.InvalidArgumentException) as error:
        raise ConfigError(
            f"{camera}: the feature {setting.feature} refuses its value",
            expected=range_text(node) or message_of(error),
            got=value,
        ) from None
    except lib.genapi.AccessException as error:
        raise ConfigError(
            f"{camera}: the feature {setting.feature} cannot be set", got=message_of(error)
        ) from None
    except lib.transport_errors as error:
        raise CameraError(f"{camera}: setting {setting} failed", got=message_of(error)) from None
    # Cameras round values to their increments: a warning names the value that is in effect.
    level = logging.INFO if _same(got, value) else logging.WARNING
    log.log(
        level,
        "%s: %s = %s%s",
        camera,
        setting.feature,
        got,
        "" if _same(got, value) else f", requested {value}",
    )
    return got


def find(node_map: Any, name: str, camera: str) -> Any:
    """Return a feature's node; exposure, gain, rate and trigger delay are also found under their
    older names.

    Raises `ConfigError` if the camera has no such feature.
    """
    for known in (name, feature_named(node_map, name)):
        if node_map.has_node(known):
            node = node_map.get_node(known)
            if (
                access_of(node) != "NI" and kind_of(node) != "category"
            ):  # ``Gain`` is one on some cameras
                return node
    names = [
        node.node.name
        for node in node_map.nodes
        if node.node.is_feature() and access_of(node) != "NI"
    ]
    hint = did_you_mean(name, names) or "sci-stream cameras features lists all features."
    raise ConfigError(f"{camera} has no feature {name}", hint=hint)


def _execute(node: Any, setting: FeatureSetting, camera: str) -> None:
    if setting.value not in (None, True):
        raise ConfigError(
            f"{camera}: {setting.feature} is a command and takes no value",
            expected=f'["{setting.feature}"]',
            got=setting.value,
        )
    try:
        node.execute()
        deadline_s = time.monotonic() + _COMMAND_S
        while not node.is_done():
            if time.monotonic() > deadline_s:
                raise CameraError(
                    f"{camera}: the command {setting.feature} did not finish within "
                    f"{_COMMAND_S:g} s"
                )
            time.sleep(0.005)
    except library().transport_errors as error:
        raise CameraError(
            f"{camera}: the command {setting.feature} failed", got=message_of(error)
        ) from None
    log.info("%s: %s executed", camera, setting.feature)


def _as_kind(setting: FeatureSetting, kind: str, node: Any, camera: str) -> Value:
    """Return the value in type and unit of the feature; a bool is an int in Python, but not for a
    camera.
    """
    value = setting.value
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if setting.feature in TIMES:
        number /= microseconds(node)
    fits: Value | None = None
    match kind:
        case "integer" if math.isfinite(number) and number == int(number):
            fits = int(number)
        case "float" if math.isfinite(number):
            fits = float(number)
        case "boolean" if isinstance(value, bool):
            fits = value
        case "enumeration" if isinstance(value, str) and value in choices_of(node, available=False):
            fits = value
        case "string" | "register" if isinstance(value, str):
            fits = value
    if fits is None:
        raise ConfigError(
            f"{camera}: the feature {setting.feature} refuses its value",
            expected=range_text(node) or f"a value of type {kind}",
            got=repr(value),
        )
    return fits


def _same(got: Value | None, requested: Value) -> bool:
    if isinstance(got, float) and isinstance(requested, int | float):
        return math.isclose(got, requested, rel_tol=1e-6)
    return got == requested


def follow_clock(node_map: Any, options: GenicamOptions, camera: str) -> str | None:
    """Synchronise the camera's clock with IEEE 1588 if the options say so; return the clock's name,
    None if they don't.

    Raises `CameraError` if it cannot be synchronised, or not in time.
    """
    if options.ptp == "off":
        return None
    switch = next((name for name in CLOCK_SWITCHES if is_settable(node_map, name)), None)
    if switch is None:
        expected = f"the feature {' or '.join(CLOCK_SWITCHES)}"
        raise CameraError(
            f"{camera} does not support IEEE 1588", expected=expected, hint='Set ptp = "off".'
        )
    value, status = CLOCK_SWITCHES[switch]
    apply(node_map, FeatureSetting(feature=switch, value=value), camera)
    deadline_s = time.monotonic() + options.ptp_timeout_s
    while (state := _clock_state(node_map, status)) not in _SETTLED:
        if time.monotonic() > deadline_s:
            raise CameraError(
                f"{camera}: the clock is not synchronised",
                expected=f"{status} {' or '.join(_SETTLED)} within {options.ptp_timeout_s:g} s",
                got=state,
                hint="Check that there is a grandmaster in this network.",
            )
        time.sleep(0.1)
    log.info("%s: clock synchronised by IEEE 1588 as %s", camera, state)
    return "PTP"


def _clock_state(node_map: Any, status: str) -> str:
    if node_map.has_node("PtpDataSetLatch"):
        node_map.get_node("PtpDataSetLatch").execute()
    return str(feature(node_map, status, "unknown"))
