"""Rig files: reading, validation messages, the environment, writing, the example."""

from __future__ import annotations

import importlib
import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from sci_stream.config import Rig, example_toml, load_rig, parse_rig, validate_options
from sci_stream.config.fields import has_mark
from sci_stream.config.toml_text import edited_text, table_text
from sci_stream.errors import ConfigError
from sci_stream.model import Policy

RIGS = sorted((Path(__file__).parents[1] / "deploy" / "rigs").glob("*.toml"))
SECTIONS = {name: field.annotation for name, field in Rig.model_fields.items()}


def parse(text: str, environment: Mapping[str, str] | None = None) -> Rig:
    return parse_rig(text, overrides=environment or {}, name="rig.toml")


def complaint(text: str, environment: Mapping[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text, environment)
    return str(caught.value)


# --- reading


def test_parse_rig_empty_uses_the_simulated_camera_and_defaults() -> None:
    rig = parse("")
    assert rig.camera.driver == "simulated"
    assert rig.policy.mode is Policy.LIVE
    assert rig.reconstruct.devices == ("auto",)
    assert rig.calibration.file is None
    assert rig.model_dump() == Rig().model_dump()


def test_rig_is_immutable() -> None:
    with pytest.raises(ValueError, match="frozen"):
        parse("").policy.ring_mib = 3  # type: ignore[misc]  # the point of the test


def test_load_rig_resolves_relative_paths_against_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "rig.toml"
    path.write_text(
        '[calibration]\nfile = "masks/cal.h5"\n[reconstruct]\nweights = "/opt/ffdnet.pth"\n'
    )
    rig = load_rig(path, {})
    assert rig.source == path
    assert rig.calibration.file == tmp_path / "masks" / "cal.h5"
    assert rig.reconstruct.weights == Path("/opt/ffdnet.pth")
    assert rig.record.folder == tmp_path / "recordings"


def test_empty_path_is_none() -> None:
    rig = parse('[calibration]\nfile = ""\n[reconstruct]\nweights = ""')
    assert rig.calibration.file is None
    assert rig.reconstruct.weights is None


def test_camera_options_are_passed_unchanged() -> None:
    options = parse(
        '[camera.options]\nscene = "fast"\n[camera.options.faults]\nid_last = 65535'
    ).camera.options
    assert options == {"scene": "fast", "faults": {"id_last": 65535}}


# --- validation messages


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[policy]\nmoed = 'live'", "rig.toml: [policy] moed is unknown. Did you mean mode?"),
        ("[policy]\nnodes = 3", "rig.toml: [policy] nodes is unknown. It belongs in "
                                "[reconstruct]."),
        ("[drain]\nxyz = 3", "rig.toml: [drain] xyz is unknown. Known here: timeout_s."),
        ("[polcy]", "rig.toml: [polcy] is unknown. Did you mean policy?"),
        (
            "[policy]\nmode = 'recrd'",
            "rig.toml: [policy] mode is wrong; expected 'live' or 'record'; got \"recrd\". Did "
            "you mean record?",
        ),
        ("[policy]\nring_mib = 0", "rig.toml: [policy] ring_mib is wrong; expected ≥ 1; got 0."),
        ("[policy]\nring_mib = '512'", 'rig.toml: [policy] ring_mib is wrong; expected an '
                                       'integer; got "512".'),
        ("[policy]\nring_mib = 1.5", "expected an integer; got 1.5."),
        ("[policy]\nring_mib = true", "expected an integer; got true."),
        ("[record]\nraw = 1", "rig.toml: [record] raw is wrong; expected true or false; got 1."),
        ("[drain]\ntimeout_s = nan", "expected a finite number; got nan."),
        ("[rig]\nname = 1979-05-27", "rig.toml: [rig] name is wrong; expected a string; got "
                                     "1979-05-27."),
        ("[rig]\nname = '../x'", '[rig] name: expected 1 to 64 letters, digits and . _ -, the '
                                 'first a letter'),
        ("[calibration]\nfile = 3", "[calibration] file is wrong; expected a path; got 3."),
        ("[reconstruct]\ndevices = 'cpu'", '[reconstruct] devices is wrong; expected a list; got '
                                           '"cpu".'),
        ("[reconstruct]\ndevices = []", "devices is wrong; expected tuple should have at least 1 "
                                        "item"),
        ("[reconstruct]\ndevices = ['gpu']", 'devices[0]: expected auto, cpu, cuda or cuda:N; got '
                                             '"gpu".'),
        ("[reconstruct]\niterations = 4\nmin_iterations = 8", "min_iterations (8) is more than "
                                                              "iterations (4)"),
        ("[reconstruct]\nsigma_first = 0.1\nsigma_last = 0.2", "sigma_last (0.2) is more than "
                                                               "sigma_first (0.1)"),
        ("[record]\nraw = false\nvideo = false", "rig.toml: [record]: raw and video are both "
                                                 "false"),
        ("[policy]\nmode = 'record'\n[record]\nenabled = false", "it needs record.enabled and "
                                                                 "record.raw"),
        ("policy = 3", "rig.toml: [policy] is wrong; expected a table; got 3."),
        ("[network]\ntaps = 'http://x:1'", "expected tcp://HOST:PORT with a port of 1 to 65535, "
                                           "or ipc://PATH; got"),
        ("[network]\ntaps = 'tcp://x:65536'", "expected tcp://HOST:PORT"),
        ("[network]\ntaps = 'tcp://*:5703'", "name the host, * is not one"),
        ("[network]\ntaps = 'ipc://'", "the path of an ipc:// address has 1 to 107 bytes"),
    ],
)  # fmt: skip
def test_invalid_rig_error_names_file_section_key_and_expected(text: str, says: str) -> None:
    assert says in complaint(text)


def test_several_problems_get_one_line_each() -> None:
    lines = complaint("[policy]\nring_mib = 0\nmode = 'x'\n[drain]\ntimeout = 3").splitlines()
    assert lines[0] == "rig.toml: 3 problems"
    assert [line.split(":")[1].split()[:2] for line in lines[1:4]] == [
        ["[policy]", "mode"],
        ["[policy]", "ring_mib"],
        ["[drain]", "timeout"],
    ]


@pytest.mark.parametrize(
    ("text", "clash"),
    [
        ('[network]\ntaps = "tcp://127.0.0.1:5701"', "network.dispatch and network.taps"),
        ('[network]\ntaps = "tcp://localhost:5702"', "network.results and network.taps"),
        ('[network]\nresults = "tcp://0.0.0.0:5703"', "network.results and network.taps"),
        (
            '[network]\nresults = "ipc:///tmp/a"\ntaps = "ipc:///tmp/a"',
            "network.results and network.taps",
        ),
        ("[preview]\nport = 5702", "network.results and preview.port"),
        ('[preview]\nport = 5702\nhost = "0.0.0.0"', "network.results and preview.port"),
    ],
)
def test_two_services_on_one_address_are_refused(text: str, clash: str) -> None:
    assert f"{clash} have the same address" in complaint(text)


@pytest.mark.parametrize(
    "text",
    [
        '[network]\nresults = "tcp://10.0.0.2:5701"\n[security]\nunprotected_network = true',
        '[network]\nresults = "ipc:///tmp/a"\ntaps = "ipc:///tmp/b"',
        '[network]\ndispatch = "tcp://[::1]:5701"\nresults = "tcp://sink.lab:5701"\n'
        "[security]\nunprotected_network = true",
        "[preview]\nport = 0",
        "[preview]\nport = 5702\nenabled = false",
    ],
)
def test_one_port_on_two_hosts_is_accepted(text: str) -> None:
    parse(text)


def test_invalid_toml_error_names_line_and_column() -> None:
    assert (
        "rig.toml is not valid TOML; got Expected '=' after a key in a key/value pair (at line 2, "
        "column 6)" in (complaint("[rig]\nname 3"))
    )


def test_missing_rig_file_error_names_config_init(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"There is no rig file .*\. To write a commented example: sci-stream config",
    ):
        load_rig(tmp_path / "rig.toml", {})


def test_load_rig_refuses_folders_images_and_large_files(tmp_path: Path) -> None:
    picture = tmp_path / "x.png"
    picture.write_bytes(b"\x89PNG\r\n")
    with pytest.raises(ConfigError, match="expected UTF-8 text"):
        load_rig(picture, {})
    picture.write_bytes(bytes(2**15 + 1))
    with pytest.raises(ConfigError, match="expected at most 32768 bytes"):
        load_rig(picture, {})
    with pytest.raises(ConfigError, match="cannot be read"):
        load_rig(tmp_path, {})


# --- the environment


def test_environment_takes_precedence_and_is_listed() -> None:
    rig = parse(
        "[policy]\nmode = 'live'",
        {
            "SCI_STREAM_RIG__POLICY__MODE": "record",
            "SCI_STREAM_RIG__RECONSTRUCT__ITERATIONS": "12",
            "SCI_STREAM_RIG__RECONSTRUCT__DEVICES": "cpu, cuda:1",
            "SCI_STREAM_RIG__RIG__NAME": "007",
            "SCI_STREAM_RIG__PREVIEW__ENABLED": "false",
            "SCI_STREAM_RIG__CAMERA__OPTIONS__SCENE": "slow",
            "SCI_STREAM_RIG__CAMERA__OPTIONS__FAULTS__STALL_S": "0.5",
            "PATH": "/bin",
        },
    )
    assert rig.policy.mode is Policy.RECORD
    assert rig.reconstruct.iterations == 12
    assert rig.reconstruct.devices == ("cpu", "cuda:1")
    assert rig.rig.name == "007"
    assert not rig.preview.enabled
    assert rig.camera.options == {"scene": "slow", "faults": {"stall_s": 0.5}}
    assert len(rig.overridden) == 7
    assert "SCI_STREAM_RIG__POLICY__MODE" in rig.to_toml()


def test_empty_variable_unsets_an_optional_key() -> None:
    rig = parse("[reconstruct]\niterations = 3", {"SCI_STREAM_RIG__RECONSTRUCT__ITERATIONS": ""})
    assert rig.reconstruct.iterations is None


def test_process_environment_is_the_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "rig.toml"
    path.write_text("[rig]\n")
    monkeypatch.setenv("SCI_STREAM_RIG__RIG__NAME", "bench-7")
    assert load_rig(path).rig.name == "bench-7"
    assert load_rig(path, {}).rig.name == "rig"


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        (
            "POLCY__MODE",
            "live",
            "names no setting of a rig; expected SCI_STREAM_RIG__SECTION__KEY. Did you mean",
        ),
        ("CAMERA", "x", "names no setting"),
        ("CAMERA__OPTIONS", "x", "names no setting"),
        ("POLICY__MODE__X", "x", "names no setting"),
        (
            "POLICY__MODE",
            "recrd",
            "SCI_STREAM_RIG__POLICY__MODE is wrong; expected 'live' or 'record'; got \"recrd\"",
        ),
        (
            "POLICY__RING_MIB",
            "much",
            "The environment variable SCI_STREAM_RIG__POLICY__RING_MIB is wrong; expected an",
        ),
    ],
)
def test_invalid_variable_is_named(variable: str, value: str, says: str) -> None:
    assert says in complaint("", {f"SCI_STREAM_RIG__{variable}": value})


# --- writing


def test_to_toml_round_trip_gives_an_equal_rig(tmp_path: Path) -> None:
    text = """
    [rig]
    name = "bench-2"
    [camera]
    driver = "my-camera"
    [camera.options]
    features = [["Gain", 3.5], ["TriggerMode", "On"]]
    "odd key" = "quote \\" backslash \\\\ line\\nfeed"
    since = 2026-01-02T03:04:05Z
    [camera.options.chunk]
    enabled = true
    [reconstruct]
    sigma_last = 0.00001
    weights = "w.pth"
    [record]
    folder = "Aufnahmen/größe"
    """
    rig = parse_rig(text, source=tmp_path / "rig.toml", overrides={})
    again = parse(rig.to_toml())
    assert again.model_dump() == rig.model_dump()
    assert again.record.folder == tmp_path / "Aufnahmen" / "größe"


def test_secrets_are_neither_written_nor_shown() -> None:
    rig = parse('[preview]\ntoken = "hunter2"')
    assert rig.preview.token == "hunter2"
    assert "hunter2" not in rig.to_toml()
    assert "hunter2" not in repr(rig)
    assert "hunter2" not in complaint('[preview]\ntoken = ["hunter2"]')


@pytest.mark.parametrize("token", ["größe", "geheim€", "tab\t", "x" * 257])
def test_token_that_no_header_carries_is_refused(token: str) -> None:
    assert "expected up to 256 printable ASCII characters" in complaint(
        f"[preview]\ntoken = {json.dumps(token)}"
    )


toml_texts = st.text(st.characters(codec="utf-8"))
toml_values: st.SearchStrategy[Any] = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | toml_texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(toml_texts, inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(toml_texts, toml_values, max_size=4))
def test_table_text_round_trip(table: dict[str, Any]) -> None:
    assert tomllib.loads(table_text("camera", table)) == {"camera": table}


def test_example_with_every_key_equals_the_defaults() -> None:
    text = example_toml(every_key=True)
    assert parse(text).model_dump() == Rig().model_dump()
    for section, model in SECTIONS.items():
        assert f"[{section}]" in text
        assert isinstance(model, type)
        assert issubclass(model, BaseModel)
        for key in set(model.model_fields) - {"options"}:
            assert f"\n{key} = " in text or f"\n# {key} = " in text


def test_example_is_a_page_without_rarely_needed_keys() -> None:
    text = example_toml()
    assert parse(text).model_dump() == Rig().model_dump()
    lines = text.splitlines()
    assert len(lines) <= 120
    assert max(map(len, lines)) <= 120
    written = tomllib.loads(re.sub(r"^# (?=[a-z_0-9]+ += )", "", text, flags=re.MULTILINE))
    for section, model in SECTIONS.items():
        shown = {key for key, field in model.model_fields.items() if not has_mark(field, "expert")}
        assert set(written[section]) - {"options"} == shown - {"options"}
    assert sum(len(model.model_fields) for model in SECTIONS.values()) <= 105


def test_example_with_unset_keys_uncommented_is_valid() -> None:
    rig = parse(
        re.sub(r"^# (?=[a-z_0-9]+ += )", "", example_toml(every_key=True), flags=re.MULTILINE)
    )
    assert rig.reconstruct.sigma_first == 0.2
    assert rig.reconstruct.iterations == 20
    assert rig.calibration.file == Path("calibration.h5")


@pytest.mark.parametrize("section", SECTIONS)
def test_every_field_has_a_description(section: str) -> None:
    model = SECTIONS[section]
    assert isinstance(model, type)
    assert issubclass(model, BaseModel)
    assert model.__doc__
    for key, field in model.model_fields.items():
        assert field.description, key
        assert field.description.endswith("."), key
        assert field.default is not None or field.examples or key == "options", key


class Faults(BaseModel):
    model_config = ConfigDict(extra="forbid")
    rate: float = Field(0.0, ge=0, le=1, description="How often.")


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")
    path: str = Field(description="File to play.")
    last: int | None = Field(None, description="Last one.")
    faults: Faults = Field(default_factory=Faults, description="Misbehaviour.")


def test_example_lists_driver_options() -> None:
    text = example_toml("my-camera", Options)
    assert (
        '[camera.options]\npath = ""  # must be set  # File to play.\n# last =                  # '
        "Last one.\n" in text
    )
    assert "# Misbehaviour.\n[camera.options.faults]\nrate = 0.0  # How often.\n" in text
    rig = parse(text)
    assert rig.camera.driver == "my-camera"
    assert rig.camera.options == {"path": "", "faults": {"rate": 0.0}}


# --- options of drivers


def test_validate_options_returns_the_drivers_model() -> None:
    options = validate_options(
        Options, {"path": "x.mat", "faults": {"rate": 0.5}}, "rig.toml: [camera.options]"
    )
    assert options.faults.rate == 0.5


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (
            {"pth": "x", "path": "y"},
            "rig.toml: [camera.options] pth is unknown. Did you mean path?",
        ),
        ({}, "rig.toml: [camera.options] path is missing. File to play."),
        (
            {"path": "x", "faults": {"rate": 2}},
            "rig.toml: [camera.options] faults.rate is wrong; expected ≤ 1; got 2.",
        ),
        (
            {"path": "x", "faults": {"rat": 2}},
            "rig.toml: [camera.options] faults.rat is unknown. Did you mean rate?",
        ),
    ],
)
def test_invalid_options_are_named_like_invalid_keys(table: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate_options(Options, table, "rig.toml: [camera.options]")
    assert str(caught.value) == says


# --- the rigs in deploy/rigs


def test_example_rigs_exist() -> None:
    names = {path.stem for path in RIGS}
    assert names >= {
        "simulated-live",
        "simulated-record",
        "replay-published",
        "two-nodes",
        "genicam",
    }


@pytest.mark.parametrize("path", RIGS, ids=lambda path: path.stem)
def test_example_rig_loads_and_its_driver_accepts_the_options(path: Path) -> None:
    rig = load_rig(path, {})
    assert rig.rig.name == path.stem
    for rig_file, output in re.findall(r"calibrate (\S+) -o (\S+)", path.read_text()):
        assert Path(output) == Path(rig_file).with_name("calibration.h5"), (
            "paths in a rig file start at its folder"
        )
    classes = {
        "simulated": ("sci_stream_drivers.simulated", "SimulatedCamera"),
        "replay": ("sci_stream_drivers.replay", "ReplayCamera"),
        "harvesters": ("sci_stream_drivers.harvesters", "HarvestersCamera"),
        "aravis": ("sci_stream_cameras.aravis", "AravisCamera"),
        "pylon": ("sci_stream_cameras.pylon", "PylonCamera"),
    }
    module, name = classes[rig.camera.driver]
    driver = getattr(importlib.import_module(module), name)
    validate_options(driver.Options, rig.camera.options, f"{path.name}: [camera.options]")


KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
ABROAD = '[network]\nresults = "tcp://10.0.0.2:5702"\n'


def test_remote_addresses_need_keys_or_an_explicit_waiver() -> None:
    assert "security.acquire_key" in complaint(ABROAD)
    assert "security.sink_key" in complaint(ABROAD + f'[security]\nacquire_key = "{KEY}"')
    assert "unprotected_network" in complaint(ABROAD + '[security]\nencryption = "off"')
    assert parse(ABROAD + f'[security]\nacquire_key = "{KEY}"\nsink_key = "{KEY}"').encrypted
    assert not parse(ABROAD + "[security]\nunprotected_network = true").encrypted
    assert not parse("").encrypted
    assert parse(
        f'[security]\nencryption = "on"\nacquire_key = "{KEY}"\nsink_key = "{KEY}"'
    ).encrypted


def test_invalid_public_key_is_refused() -> None:
    assert "40 characters" in complaint('[security]\nacquire_key = "abc"')


def test_endless_number_is_an_error_in_the_rig_file() -> None:
    with pytest.raises(ConfigError, match="not valid TOML"):
        parse_rig("[network]\nheartbeat_s = " + "9" * 10_000)


def test_edited_rig_keeps_its_comments_and_other_tables() -> None:
    text = "[a]\nn = 1  # number\n# rate = 2\n\n[b]\nn = 5\n"
    edited = edited_text(text, "a", {"n": 3, "rate": 0.5, "new": "x"})
    assert tomllib.loads(edited) == {"a": {"n": 3, "rate": 0.5, "new": "x"}, "b": {"n": 5}}
    assert "# number" in edited
    assert tomllib.loads(edited_text(text, "c.d", {"n": 1}))["c"] == {"d": {"n": 1}}
