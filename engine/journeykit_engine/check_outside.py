"""What a graph names outside itself: the journeys it sends people to, the templates it sends.

Whether they are there is no question of the graph alone, so it is asked only of whoever can say:
`check` is told what lies outside, or leaves these questions open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from journeykit_engine import graph
from journeykit_engine.check_nodes import Place, place_of
from journeykit_engine.comparison import shown
from journeykit_engine.graph import Graph
from journeykit_engine.shape import Problem

Status = Literal["draft", "published", "paused", "archived"]


class Neighbour(NamedTuple):
    """Another journey of the same account: its status, the kind of its trigger ("" where it has
    none yet), and the journeys that it sends people to."""

    status: Status
    trigger: str
    enters: frozenset[int] = frozenset()


class Outside(NamedTuple):
    """The account around a graph: its journeys by id, and the channel that each of its templates
    is written for; None for templates says that texts are kept elsewhere and nothing is known of
    them."""

    journeys: Mapping[int, Neighbour]
    templates: Mapping[int, str] | None = None


def outside_problems(document: Graph, outside: Outside) -> Iterator[Problem]:
    """What is named and is not there, or cannot be entered."""
    for place, action in _actions(document):
        match action:
            case graph.EnterJourney(journey_id=target) if target and target != document.journey_id:
                yield from _target_problems(target, outside.journeys.get(target), place)
            case graph.Send() if outside.templates is not None:
                yield from _template_problems(action, outside.templates, place)
            case _:
                pass


def outside_warnings(document: Graph, outside: Outside) -> Iterator[Problem]:
    """People who would be sent round and round, or to a journey that takes nobody in yet; texts
    that were written for another channel."""
    for place, action in _actions(document):
        match action:
            case graph.EnterJourney(journey_id=int(target)):
                yield from _target_warnings(document.journey_id, target, outside, place)
            case graph.Send() if outside.templates is not None:
                yield from _channel_warnings(action, outside.templates, place)
            case _:
                pass


def _target_warnings(own: int, target: int, outside: Outside, place: Place) -> Iterator[Problem]:
    neighbour = outside.journeys.get(target)
    if neighbour is not None and neighbour.status == "draft":
        message = f"enters journey {target}, which is not published: nobody will enter it."
        fix = f"Publish journey {target} before this one."
        yield place.problem("JOURNEY_NOT_PUBLISHED", "journey_id", message, fix)
    if target != own and own in _reached(target, outside):
        message = f"enters journey {target}, which leads back to this one."
        fix = "See that people leave the circle: nobody is sent on more than 10 times in a day."
        yield place.problem("JOURNEY_LOOP", "journey_id", message, fix)


def _channel_warnings(
    send: graph.Send, templates: Mapping[int, str], place: Place
) -> Iterator[Problem]:
    for i, medium in enumerate(send.media):
        written_for = templates.get(medium.template_id or 0, "")
        if written_for and medium.channel and written_for != medium.channel:
            field = f"channels[{i}].template_id" if send.channels else "template_id"
            message = (
                f"sends template {medium.template_id} by {shown(medium.channel)}; it is written "
                f"for {shown(written_for)}."
            )
            fix = "Choose a template of this channel, or see that its texts fit."
            yield place.problem("TEMPLATE_OTHER_CHANNEL", field, message, fix)


def _actions(document: Graph) -> Iterator[tuple[Place, graph.Action]]:
    for index, node in enumerate(document.nodes):
        if node.action is not None and node.kind == "action":
            place = place_of(node, index)
            yield place._replace(path=f"{place.path}.action"), node.action


def _target_problems(target: int, neighbour: Neighbour | None, place: Place) -> Iterator[Problem]:
    if neighbour is None:
        message = f"enters journey {target}, which does not exist."
        fix = "Name a journey of this account."
        yield place.problem("JOURNEY_UNKNOWN", "journey_id", message, fix)
    elif neighbour.status == "archived":
        message = f"enters journey {target}, which is archived and takes nobody in."
        yield place.problem("JOURNEY_ARCHIVED", "journey_id", message, "Name another journey.")
    elif neighbour.trigger and neighbour.trigger != "api":
        message = (
            f"enters journey {target}, whose trigger is of the kind {neighbour.trigger}: "
            "nobody can be sent there."
        )
        fix = f"Give journey {target} an api trigger, or name another journey."
        yield place.problem("NOT_API_TRIGGER", "journey_id", message, fix)


def _template_problems(
    send: graph.Send, templates: Mapping[int, str], place: Place
) -> Iterator[Problem]:
    for i, medium in enumerate(send.media):
        if medium.template_id and medium.template_id not in templates:
            field = f"channels[{i}].template_id" if send.channels else "template_id"
            message = f"sends template {medium.template_id}, which does not exist or is archived."
            fix = "Choose a template of this account."
            yield place.problem("TEMPLATE_UNKNOWN", field, message, fix)


def _reached(start: int, outside: Outside) -> set[int]:
    """Every journey that somebody can be sent on to from this one, itself not counted."""
    reached: set[int] = set()
    begun = [start]
    while begun:
        neighbour = outside.journeys.get(begun.pop())
        found = set() if neighbour is None else neighbour.enters - reached
        reached |= found
        begun += sorted(found)
    return reached
