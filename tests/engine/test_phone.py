"""Which zone a telephone number says, and when it says none."""

from __future__ import annotations

import pytest

from journeykit_engine.phone import phone_zone, zone_of_phone


@pytest.mark.parametrize(
    ("number", "zone"),
    [
        ("+982112345678", "Asia/Tehran"),
        ("+98 912 123 4567", "Asia/Tehran"),
        ("+12135550100", "America/Los_Angeles"),
        ("+61 2 9374 4000", "Australia/Sydney"),
        ("+18005550100", None),  # toll-free: rings anywhere
        ("+447911123456", None),  # a mobile of a country with islands in other zones
        ("+79161234567", None),
        ("02112345678", None),  # no country code
        ("nobody", None),
        ("+", None),
    ],
)
def test_a_number_says_a_zone_only_where_it_is_sure(number: str, zone: str | None) -> None:
    assert zone_of_phone(number) == zone


@pytest.mark.parametrize("traits", [{}, {"phone": None}, {"phone": 98}, {"phone": ""}])
def test_without_a_number_there_is_no_zone(traits: dict[str, object]) -> None:
    assert phone_zone(traits) is None
