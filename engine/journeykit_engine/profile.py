"""What is stored of a person's traits, and what an identify really writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from whenever import Instant

from journeykit_engine import rule
from journeykit_engine.instance import NOTHING


class Profile(NamedTuple):
    """Traits, and for each the instant at which its value was written."""

    traits: Mapping[str, Any] = NOTHING
    written_at: Mapping[str, Instant] = NOTHING


def write(
    profile: Profile, traits: Mapping[str, Any], at: Instant
) -> tuple[Profile, dict[str, Any]]:
    """The profile after an identify that happened at `at`, and the traits it really changed.

    A value older than the stored one does not overwrite it. Writing the value that is stored
    already is no change, though it is as young as its latest writing.

    >>> at = Instant("2026-06-01T10:00:00Z")
    >>> stored, _ = write(Profile(), {"plan": "pro"}, at)
    >>> write(stored, {"plan": "pro"}, at.add(hours=1))[1]
    {}
    """
    accepted = {
        name: value
        for name, value in traits.items()
        if name not in profile.written_at or profile.written_at[name] <= at
    }
    changed = {
        name: value
        for name, value in accepted.items()
        if name not in profile.traits or not rule.equal(profile.traits[name], value)
    }
    younger = Profile(
        {**profile.traits, **accepted}, {**profile.written_at, **dict.fromkeys(accepted, at)}
    )
    return younger, changed


def zone_trait(traits: Mapping[str, Any]) -> str | None:
    """The zone that the trait `timezone` names, usable or not; None where it names none."""
    zone = traits.get("timezone")
    return zone if isinstance(zone, str) and zone else None
