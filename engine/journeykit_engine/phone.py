"""The zone of a telephone number, where the number says it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any


def phone_zone(traits: Mapping[str, Any]) -> str | None:
    """The zone of the number in the trait `phone`; it counts for text messages only."""
    number = traits.get("phone")
    return zone_of_phone(number) if isinstance(number, str) and number else None


@lru_cache(maxsize=100_000)  # numbers; a history names the same people again and again
def zone_of_phone(number: str) -> str | None:
    """The one zone in which a number like "+98 21 …" can ring, None where it may be several.

    A mobile of a country with many zones, a toll-free number and what is no number with a country
    code say nothing: a text message must not go out at night in any of the zones it may mean.

    >>> zone_of_phone("+982112345678"), zone_of_phone("+18005550100"), zone_of_phone("02112345678")
    ('Asia/Tehran', None, None)
    """
    import phonenumbers
    from phonenumbers import timezone

    try:
        parsed = phonenumbers.parse(number, None)
    except phonenumbers.NumberParseException:
        return None
    zones = set(timezone.time_zones_for_number(parsed)) - {"Etc/Unknown"}
    return zones.pop() if len(zones) == 1 else None
