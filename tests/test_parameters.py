"""Parameters: ranges, parsing, and declarations in a node's status."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sci_stream.errors import InputError
from sci_stream.parameters import Parameter, checked_changes, declarations, declared, parameter_of

ITERATIONS = Parameter("iterations", "integer", 12, 1, 100, description="Iterations per snapshot.")
GAIN = Parameter("gain_db", "number", 1.5, -6.0, 24.0)
BUDGET = Parameter("adapt_budget", "flag", True)
PRIOR = Parameter("denoiser", "choice", "tv", choices=("ffdnet-lite", "tv"))
ALL = (ITERATIONS, GAIN, BUDGET, PRIOR)

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.parametrize(
    ("parameter", "value", "taken"),
    [
        (ITERATIONS, 1, 1),
        (ITERATIONS, 100.0, 100),
        (GAIN, 3, 3.0),
        (BUDGET, False, False),
        (PRIOR, "tv", "tv"),
    ],
)
def test_checked_returns_the_value_in_its_type(
    parameter: Parameter, value: object, taken: object
) -> None:
    found = parameter.checked(value)
    assert (found, type(found)) == (taken, type(taken))


@pytest.mark.parametrize(
    ("parameter", "value", "said"),
    [
        (ITERATIONS, 0, "an integer from 1 to 100"),
        (ITERATIONS, 101, "got 101"),
        (ITERATIONS, 2.5, "an integer from 1 to 100"),
        (ITERATIONS, True, "an integer from 1 to 100"),
        (ITERATIONS, 10**400, "an integer from 1 to 100"),
        (GAIN, float("nan"), "a number from -6 to 24"),
        (GAIN, float("inf"), "a number from -6 to 24"),
        (GAIN, "12", "a number from -6 to 24"),
        (BUDGET, 1, "true or false"),
        (PRIOR, "ffdnet-light", "Did you mean ffdnet-lite?"),
        (PRIOR, None, "ffdnet-lite or tv"),
    ],
)
def test_checked_refuses_invalid_values_with_the_range(
    parameter: Parameter, value: object, said: str
) -> None:
    with pytest.raises(InputError, match=parameter.name) as error:
        parameter.checked(value)
    assert said in str(error.value)


@given(anything)
def test_checked_accepts_in_range_or_refuses(value: object) -> None:
    for parameter in ALL:
        try:
            taken = parameter.checked(value)
        except InputError:
            continue
        assert taken == value
        if parameter.low is not None and parameter.high is not None:
            assert parameter.low <= float(taken) <= parameter.high


@pytest.mark.parametrize(
    ("parameter", "text", "value"),
    [
        (ITERATIONS, "7", 7),
        (GAIN, "-0.5", -0.5),
        (BUDGET, "Off", False),
        (BUDGET, "true", True),
        (PRIOR, "tv", "tv"),
    ],
)
def test_parsed_reads_command_line_values(parameter: Parameter, text: str, value: object) -> None:
    assert parameter.parsed(text) == value


def test_parsed_error_shows_the_text() -> None:
    with pytest.raises(InputError, match="got 'many'"):
        ITERATIONS.parsed("many")
    with pytest.raises(InputError, match=r"got 1000\."):
        ITERATIONS.parsed("1000")


def test_range_with_one_end_is_described() -> None:
    assert Parameter("a", "number", 1.0, low=0.5).range == "a number from 0.5 up"
    assert Parameter("a", "integer", 1, high=9).range == "an integer up to 9"


def test_declarations_round_trip_in_a_status() -> None:
    status = {"phase": "running", "acquired": 7, **declared(ALL, ("next_series", "stop_series"))}
    assert declarations(status) == (list(ALL), ["next_series", "stop_series"])
    assert declarations({"phase": "running"}) == ([], [])
    assert [parameter_of(parameter.as_dict()) for parameter in ALL] == list(ALL)


def test_to_text_omits_a_long_description() -> None:
    found = parameter_of(Parameter("a", "flag", True, description="word " * 400).to_text())
    assert found == Parameter("a", "flag", True)


@given(anything)
def test_parameter_of_of_any_text_is_a_parameter_or_none(value: object) -> None:
    text = json.dumps(value)
    for found in (
        parameter_of(text),
        parameter_of(text[:-1]),
        parameter_of({**GAIN.as_dict(), "value": value}),
    ):
        assert found is None or found.checked(found.value) == found.value


def test_inconsistent_declaration_is_ignored() -> None:
    for change in ({"value": 1000}, {"kind": "map"}, {"low": "one"}, {"choices": [1]}, {"name": 5}):
        assert parameter_of({**ITERATIONS.as_dict(), **change}) is None, change
    assert parameter_of("[" * 100_000) is None


def test_changes_are_validated_before_any_is_applied() -> None:
    assert checked_changes(ALL, {"iterations": 5.0, "denoiser": "tv"}, "node") == {
        "iterations": 5,
        "denoiser": "tv",
    }
    with pytest.raises(
        InputError, match=r"node has no parameter 'iteration'.*Did you mean iterations\?$"
    ) as refused:
        checked_changes(ALL, {"denoiser": "tv", "iteration": 5}, "node")
    over_http = str(refused.value)
    assert str(InputError(over_http)) == over_http
    with pytest.raises(InputError, match="nothing can be set on it now"):
        checked_changes((), {"iterations": 5}, "node")
    with pytest.raises(InputError, match="at least one"):
        checked_changes(ALL, {}, "node")
