import json
import math

import pytest

from palestra.claims import (
    Claim,
    Quantity,
    all_hold,
    claims_from_json,
    claims_json,
    format_number,
)
from palestra.stats import Interval

CLAIMS = [
    Claim("fast", 1.19, 1.35, "<=", (1.18, 1.2), "s", "1.2 s, figure 4"),
    Claim("faster than waiting", 2, 2.0, ">="),
    Claim("published sample", 9.0, 1.0, "<=", applicable=False),
]


@pytest.mark.parametrize(
    ("value", "direction", "bound", "holds"),
    [
        (1.0, "<=", 1.0, True),
        (math.nextafter(1.0, 2.0), "<=", 1.0, False),
        (1.0, ">=", 1.0, True),
        (math.nextafter(1.0, 0.0), ">=", 1.0, False),
        (math.nan, "<=", 1.0, False),
        (math.nan, ">=", 1.0, False),
        (math.inf, ">=", 1.0, True),
    ],
)
def test_claim_holds_exactly_when_its_numbers_say_so(value, direction, bound, holds):
    assert Claim("c", value, bound, direction).holds is holds


def test_claim_that_is_not_applicable_neither_holds_nor_fails():
    assert Claim("c", 2.0, 1.0, "<=", applicable=False).holds is None
    assert all_hold(CLAIMS)
    assert not all_hold([*CLAIMS, Claim("d", 2.0, 1.0, "<=")])


def test_claims_survive_json():
    claims = [*CLAIMS, Claim("unmeasured", math.nan, 1.0, "<=", (-math.inf, math.inf))]
    document = json.loads(json.dumps(claims_json(claims), allow_nan=False))
    assert document["holds"] is False
    assert [entry["holds"] for entry in document["claims"]] == [True, True, None, False]
    again = claims_from_json(document)
    assert again[:3] == CLAIMS
    assert math.isnan(again[3].value)
    assert again[3].interval == (-math.inf, math.inf)


def test_contradictory_or_malformed_claims_are_refused():
    document = claims_json(CLAIMS)
    document["claims"][0]["value"] = 2.0
    with pytest.raises(ValueError, match=r"claims\[0\] 'fast': holds = True, but its value 2.0"):
        claims_from_json(document)
    del document["claims"][0]["bound"]
    with pytest.raises(ValueError, match=r"claims\[0\]: missing or malformed field \('bound'\)"):
        claims_from_json(document)
    with pytest.raises(ValueError, match="schema = None"):
        claims_from_json({})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"direction": "<"}, "direction = '<'"),
        ({"bound": math.inf}, "bound = inf"),
        ({"interval": (2.0, 1.0)}, "low end must not exceed"),
    ],
)
def test_claim_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        Claim(**({"name": "c", "value": 1.0, "bound": 1.0, "direction": "<="} | arguments))


def test_two_claims_of_one_name_are_refused():
    with pytest.raises(ValueError, match="name = 'fast': must be unique"):
        claims_json([CLAIMS[0], CLAIMS[0]])


@pytest.mark.parametrize(
    ("value", "half_width", "printed"),
    [  # the examples of the Review of Particle Physics, Introduction, section 5.3, and our own
        (0.827, 0.119, "0.83\u00a0s [0.71,\u00a00.95]"),
        (0.827, 0.367, "0.8\u00a0s [0.5,\u00a01.2]"),
        (0.827, 0.952, "0.8\u00a0s [−0.1,\u00a01.8]"),
        (123456.0, 1234.0, "123\u202f500\u00a0s [122\u202f200,\u00a0124\u202f700]"),
        (2.0, 0.0, "2\u00a0s [2,\u00a02]"),
    ],
)
def test_quantity_has_the_digits_that_its_interval_supports(value, half_width, printed):
    assert str(Quantity(value, (value - half_width, value + half_width), "s")) == printed


def test_estimate_keeps_its_interval_and_without_a_rule_has_none():
    estimate = Interval(1.5, 1.25, 1.75, 0.95, "t", 8)
    assert Quantity.of(estimate, "s") == Quantity(1.5, (1.25, 1.75), "s")
    assert Quantity.of(Interval(1.5, None, None, 0.95, "points only", 3)) == Quantity(1.5)


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        (0, "0"),
        (-0.0, "0"),
        (1234567, "1\u202f234\u202f567"),
        (9999.0, "9999"),
        (0.1, "0.1"),
        (1 / 3, "0.3333"),
        (-2.0 / 3, "−0.6667"),
        (12345.678, "12\u202f346"),
        (1.5e-7, "1.500e−7"),
        (2e12, "2.000e12"),
        (math.nan, "NaN"),
        (-math.inf, "−∞"),
    ],
)
def test_numbers_as_a_person_writes_them(value, printed):
    assert format_number(value) == printed


def test_bound_is_printed_as_it_was_set():
    assert CLAIMS[0].bound_text() == "≤\u00a01.35\u00a0s"
    assert Claim("c", 1.0, 1e6, ">=").bound_text() == "≥\u00a01\u202f000\u202f000"
    assert Claim("c", 1.0, 1e-6, ">=").bound_text() == "≥\u00a01e−6"
