"""Customer journeys in Python: write one, check it, walk people through it.

`import journeykit as jk`: `jk.journey("Abandoned cart")` begins a journey, `jk.trait`, `jk.did` and
their like say who, `jk.path` and `jk.go_to` make branches. Names are loaded when they are first
used, so that the command line starts fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from journeykit.builder import Path as Path
    from journeykit.builder import go_to as go_to
    from journeykit.builder import path as path
    from journeykit.drawing import CannotDraw as CannotDraw
    from journeykit.drawing import Drawing as Drawing
    from journeykit.history import BadHistory as BadHistory
    from journeykit.journeys import Journey as Journey
    from journeykit.journeys import journey as journey
    from journeykit.mistake import JourneyError as JourneyError
    from journeykit.report import Report as Report
    from journeykit.rules import Filter as Filter
    from journeykit.rules import Rule as Rule
    from journeykit.rules import all_of as all_of
    from journeykit.rules import any_of as any_of
    from journeykit.rules import bucket as bucket
    from journeykit.rules import did as did
    from journeykit.rules import everybody as everybody
    from journeykit.rules import first as first
    from journeykit.rules import in_journey as in_journey
    from journeykit.rules import in_segment as in_segment
    from journeykit.rules import last as last
    from journeykit.rules import local_hour as local_hour
    from journeykit.rules import local_month as local_month
    from journeykit.rules import local_weekday as local_weekday
    from journeykit.rules import none_of as none_of
    from journeykit.rules import prop as prop
    from journeykit.rules import trait as trait
    from journeykit.run import Replay as Replay
    from journeykit.run import Trace as Trace
    from journeykit_engine.shape import BadGraph as BadGraph
    from journeykit_engine.strict_json import BadJson as BadJson

_RULES = (
    "Filter Rule all_of any_of bucket did everybody first in_journey in_segment last local_hour "
    "local_month local_weekday none_of prop trait"
)
_HOMES = {
    "journeykit.builder": "Path go_to path",
    "journeykit.drawing": "CannotDraw Drawing",
    "journeykit.history": "BadHistory",
    "journeykit.journeys": "Journey journey",
    "journeykit.mistake": "JourneyError",
    "journeykit.report": "Report",
    "journeykit.rules": _RULES,
    "journeykit.run": "Replay Trace",
    "journeykit_engine.shape": "BadGraph",
    "journeykit_engine.strict_json": "BadJson",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f'journeykit has no "{name}"')
    found = globals()[name] = getattr(import_module(home), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
