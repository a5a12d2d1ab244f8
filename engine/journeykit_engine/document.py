"""A journey as people hand it over: the bare graph, the envelope with a name, or the steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from journeykit_engine.check import Report, check
from journeykit_engine.check_warnings import Templates
from journeykit_engine.comparison import nearest, shown
from journeykit_engine.graph import Graph
from journeykit_engine.shape import BadGraph, Problem
from journeykit_engine.steps import from_steps, is_steps, restated
from journeykit_engine.strict_json import read_json, refuse_value

ENVELOPE = ("name", "graph", "id")
BARE = (*Graph.model_fields, "steps", "entry")


class Document(NamedTuple):
    """A graph and the journey's name, "" where the document has none."""

    name: str
    graph: Graph


def read_document(source: str | bytes | Mapping[str, Any]) -> Document:
    """Read a journey: the graph itself, `{"name", "graph"}` (with an `id`, which is not kept), and
    either one in steps. Raises `strict_json.BadJson` and `shape.BadGraph`.

    >>> read_document('{"name": "cart", "graph": {"entry_id": "t"}}').name
    'cart'
    """
    name, body = _opened(_value(source))
    return Document(name, from_steps(body) if is_steps(body) else Graph.parse(body))


def judge(
    source: str | bytes | Mapping[str, Any],
    others: Sequence[Graph] = (),
    account_timezone: str | None = None,
    templates: Templates | None = None,
) -> Report:
    """`check` for any of these documents: what has not the shape of a graph is a problem too, and
    the problems of steps are told with the paths of steps. What cannot be judged at all raises:
    `BadJson` for no JSON, `BadGraph` for a document without a graph.

    >>> judge('{"graph": {"nodes": null}}').valid
    False
    """
    _, body = _opened(_value(source))
    if not is_steps(body):
        return check(body, others, account_timezone, templates)
    try:
        made = from_steps(body)
    except BadGraph as bad:
        return Report(tuple(bad.problems), ())
    problems, warnings = check(made, others, account_timezone, templates)
    say = restated(made)
    return Report(tuple(map(say, problems)), tuple(map(say, warnings)))


def _value(source: str | bytes | Mapping[str, Any]) -> Mapping[str, Any]:
    """The document's value; anything but an object has no graph in it."""
    if isinstance(source, str | bytes):
        value = read_json(source)
    else:
        refuse_value(source)
        value = source
    if not isinstance(value, Mapping):
        message = f"The document must be an object, not {shown(value)}."
        raise BadGraph([Problem("WRONG_TYPE", "", "", message, 'Send {"name": …, "graph": {…}}.')])
    return value


def _opened(value: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The name and the graph's value, out of the envelope where there is one."""
    bare = any(field in value for field in BARE)
    if not value or (bare and "graph" not in value):
        return "", value
    faults = list(_envelope_faults(value))
    if faults:
        raise BadGraph(faults)
    return value.get("name", ""), value["graph"]


def _envelope_faults(value: Mapping[str, Any]) -> list[Problem]:
    faults = []
    for field in value:
        if field not in ENVELOPE:
            near = nearest(field, [known for known in ENVELOPE if known not in value])
            fix = f'Did you mean "{near}"?' if near else "Leave it out."
            message = f"The field {shown(field)} is not known here."
            faults.append(Problem("UNKNOWN_FIELD", "", field, message, fix))
    if not isinstance(value.get("name", ""), str):
        message = f'"name" must be text, not {shown(value["name"])}.'
        faults.append(Problem("WRONG_TYPE", "", "name", message, "Write text."))
    body = value.get("graph")
    if body is None:
        fix = 'Send the graph in "graph".'
        faults.append(Problem("NO_GRAPH", "", "graph", "graph is required", fix))
    elif not isinstance(body, Mapping):
        message = f'"graph" must be an object, not {shown(body)}.'
        faults.append(Problem("GRAPH_NOT_OBJECT", "", "graph", message, "Send {…}, not text."))
    return faults
