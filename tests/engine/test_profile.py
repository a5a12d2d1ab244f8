"""What an identify really writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journeykit_engine import profile, rule
from journeykit_engine.profile import Profile
from journeykit_engine.timing import read_instant
from tests.engine.walking import START, later

Cases = Mapping[str, dict[str, Any]]


def test_an_older_identify_does_not_overwrite(cases: Cases) -> None:
    case = cases["attr-late-identify"]
    stored, identify = case["given"]["stored"], case["given"]["identify"]
    written_at = read_instant(stored["written_at"])
    kept = Profile({"plan": stored["plan"]}, {"plan": written_at})

    after, changed = profile.write(
        kept, {"plan": identify["plan"], "city": "Qom"}, read_instant(identify["occurred_at"])
    )

    assert after.traits == {"plan": case["expect"]["proposed"], "city": "Qom"}
    assert after.written_at == {"plan": written_at, "city": read_instant(identify["occurred_at"])}
    assert changed == {"city": "Qom"}


def test_of_two_identifies_of_one_instant_the_later_arrival_counts() -> None:
    stored, _ = profile.write(Profile(), {"plan": "pro"}, START)

    assert profile.write(stored, {"plan": "free"}, START)[1] == {"plan": "free"}


def test_the_stored_value_again_is_no_change_but_makes_it_younger(cases: Cases) -> None:
    given_ = cases["attr-same-value-again"]["given"]
    stored, _ = profile.write(Profile(), given_["stored"], START)

    after, changed = profile.write(stored, given_["identify"], later(days=2))

    assert changed == {}
    assert profile.write(after, {"plan": "old"}, later(days=1))[1] == {}


@pytest.mark.parametrize(
    ("stored", "written", "is_change"),
    [("10", 10, True), (1, True, True), (None, "", True), (1, 1.0, False), ([1], [1], False)],
)
def test_a_value_of_another_type_is_a_change(stored: Any, written: Any, is_change: bool) -> None:
    kept, _ = profile.write(Profile(), {"level": stored}, START)

    assert bool(profile.write(kept, {"level": written}, later(hours=1))[1]) is is_change


def test_null_for_a_trait_that_never_was_is_a_write() -> None:
    assert profile.write(Profile(), {"plan": None}, START)[1] == {"plan": None}


traits = st.dictionaries(st.sampled_from("abc"), st.none() | st.booleans() | st.integers(0, 2))


@given(st.lists(st.tuples(traits, st.integers(0, 3))))
def test_the_stored_value_is_that_of_the_youngest_identify(
    arrivals: list[tuple[dict[str, Any], int]],
) -> None:
    stored = Profile()
    for written, hour in arrivals:
        before = stored
        stored, changed = profile.write(stored, written, later(hours=hour))
        assert set(changed) == {
            name
            for name, value in stored.traits.items()
            if name not in before.traits or not rule.equal(before.traits[name], value)
        }

    for name in "abc":
        told = [(hour, i) for i, (written, hour) in enumerate(arrivals) if name in written]
        if told:
            _, youngest = max(told)
            assert stored.traits[name] is arrivals[youngest][0][name]
        else:
            assert name not in stored.traits
