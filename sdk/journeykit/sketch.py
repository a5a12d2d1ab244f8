"""A journey being drawn: its nodes so far, and the ends that the next step will be tied to.

A sketch is never changed, every function here gives a new one. The ends are what makes joins: a
branch that is left open adds its end, and the step that follows the branching is tied to all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from journeykit.mistake import JourneyError
from journeykit_engine.comparison import shown
from journeykit_engine.graph import MAX_ID_CHARACTERS
from journeykit_engine.instance import NOTHING

Document = dict[str, Any]
Place = tuple[str | int, ...]

MAX_SLUG_CHARACTERS = 60  # of a name inside a derived id; longer ones are cut


class End(NamedTuple):
    """A way out that leads nowhere yet: a node, and the place in its document for the target."""

    node_id: str
    place: Place


ENTRANCE = End("", ())
"""The way into the sketch itself, open until the first step."""


class Sketch(NamedTuple):
    """`head` is the id that the entrance leads to. `bases` holds what each derived id was derived
    from, `outer` the ids of the journey around a branch, which are taken too."""

    nodes: Mapping[str, Document] = NOTHING
    bases: Mapping[str, str] = NOTHING
    ends: tuple[End, ...] = (ENTRANCE,)
    head: str = ""
    outer: Mapping[str, Any] = NOTHING

    @property
    def taken(self) -> Mapping[str, Any]:
        """Every id that a new node cannot have."""
        return {**self.outer, **self.nodes} if self.outer else self.nodes


def inside(sketch: Sketch) -> Sketch:
    """An empty sketch for a branch: the ids around it are taken."""
    return Sketch(outer=sketch.taken)


def grown(sketch: Sketch, document: Document, base: str, ways: tuple[Place, ...]) -> Sketch:
    """With one more node, tied to every open end; its own `ways` are the open ends then."""
    node_id = document["id"]
    tied = wired(sketch, node_id)
    nodes = {**tied.nodes, node_id: document}
    bases = {**tied.bases, node_id: base} if base else tied.bases
    ends = tuple(End(node_id, way) for way in ways)
    return tied._replace(nodes=nodes, bases=bases, ends=ends)


def wired(sketch: Sketch, target: str) -> Sketch:
    """Every open end leads to the target; none is open then. "" leaves them unwired for good."""
    if not target or not sketch.ends:
        return sketch._replace(ends=())
    nodes, head = {**sketch.nodes}, sketch.head
    for end in sketch.ends:
        if end == ENTRANCE:
            head = target
        else:
            nodes[end.node_id] = put(nodes[end.node_id], end.place, target)
    return sketch._replace(nodes=nodes, ends=(), head=head)


def branched(sketch: Sketch, way: End, branch: Sketch) -> Sketch:
    """With a branch at one way out; what the branch leaves open stays open."""
    joined, moved = _merged(sketch, branch)
    if moved.head:
        owner = put(joined.nodes[way.node_id], way.place, moved.head)
        joined = joined._replace(nodes={**joined.nodes, way.node_id: owner})
    ends = tuple(way if end == ENTRANCE else end for end in moved.ends)
    return joined._replace(ends=joined.ends + ends)


def followed(sketch: Sketch, branch: Sketch) -> Sketch:
    """With the branch as what comes next: its steps are tied to every open end."""
    joined, moved = _merged(sketch, branch)
    if ENTRANCE in moved.ends:
        return joined
    return wired(joined, moved.head)._replace(ends=moved.ends)


def set_apart(sketch: Sketch, branch: Sketch) -> Sketch:
    """With a branch that nothing is tied to, and whose open ends stay unwired."""
    return _merged(sketch, branch)[0]


def _merged(sketch: Sketch, branch: Sketch) -> tuple[Sketch, Sketch]:
    moved = _moved(branch, sketch.taken)
    nodes, bases = {**sketch.nodes, **moved.nodes}, {**sketch.bases, **moved.bases}
    return sketch._replace(nodes=nodes, bases=bases), moved


def _moved(branch: Sketch, taken: Mapping[str, Any]) -> Sketch:
    """The branch with new derived ids where the journey around it has them already; an id that
    was given stays, and is a mistake when it is taken."""
    names: dict[str, str] = {}
    met = [node_id for node_id in branch.nodes if node_id in taken]
    if not met:
        return branch
    used: dict[str, Any] = {**taken, **branch.nodes}
    for node_id in met:
        if node_id not in branch.bases:
            raise id_taken(node_id)
        names[node_id] = free_id(branch.bases[node_id], used)
        used[names[node_id]] = None
    return branch._replace(
        nodes={names.get(key, key): _renamed(node, names) for key, node in branch.nodes.items()},
        bases={names.get(key, key): base for key, base in branch.bases.items()},
        ends=tuple(
            end._replace(node_id=names.get(end.node_id, end.node_id)) for end in branch.ends
        ),
        head=names.get(branch.head, branch.head),
    )


def _renamed(document: Document, names: Mapping[str, str]) -> Document:
    for place, target in targets(document):
        if target in names:
            document = put(document, place, names[target])
    return {**document, "id": names.get(document["id"], document["id"])}


def targets(document: Document) -> Iterator[tuple[Place, str]]:
    """Every wired way out of a node: where the document names it, and the id it names."""
    for place in _places(document):
        target: Any = document
        for step in place:
            found = isinstance(target, list) or step in target
            target = target[step] if found else ""
        if target:
            yield place, target


def _places(document: Document) -> Iterator[Place]:
    yield ("next",)
    for kind, name in (
        ("wait", "on_timeout"),
        ("condition", "on_true"),
        ("condition", "on_false"),
        ("switch", "default"),
        ("split", "on_holdout"),
        ("goal", "on_reached"),
    ):
        if kind in document:
            yield (kind, name)
    for event in document.get("wait", NOTHING).get("on") or ():
        yield ("wait", "on", event)
    for kind, name in (("switch", "cases"), ("split", "branches")):
        for index in range(len(document.get(kind, NOTHING).get(name, ()))):
            yield (kind, name, index, "next")


def put(value: Any, place: Place, target: str) -> Any:
    """A copy of the document with the target at this place."""
    if not place:
        return target
    step, rest = place[0], place[1:]
    if isinstance(value, list):
        return [put(item, rest, target) if i == step else item for i, item in enumerate(value)]
    return {**value, step: put(value.get(step, {}), rest, target)}


def free_id(base: str, taken: Mapping[str, Any]) -> str:
    """The base, or the base with a number from 2 up that is not taken; found by halving, since a
    long journey may take thousands."""
    if base not in taken:
        return base
    low, high = 1, 2
    while f"{base}_{high}" in taken:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if f"{base}_{middle}" in taken else (low, middle)
    return f"{base}_{high}"


def given_id(node_id: object, taken: Mapping[str, Any]) -> str:
    """An id that the author chose, checked."""
    if not isinstance(node_id, str) or not node_id:
        message = f"The id of a node must be text, not {shown(node_id)}."
        raise JourneyError("WRONG_TYPE", message, "Write it between quotes, or leave it out.")
    if len(node_id) > MAX_ID_CHARACTERS:
        message = f"The node id {shown(node_id)} has {len(node_id)} characters."
        raise JourneyError("BAD_ID", message, f"Write at most {MAX_ID_CHARACTERS}.")
    if node_id in taken:
        raise id_taken(node_id)
    return node_id


def id_taken(node_id: str) -> JourneyError:
    """The error for a second node with one id."""
    return JourneyError(
        "DUPLICATE_ID",
        f"There is already a node {shown(node_id)}.",
        f"Give this one another id, or lead to the first with .go_to({shown(node_id)}).",
    )


def slug(*words: object) -> str:
    """Words as a part of an id: letters and digits of any script, "_" between them.

    >>> slug("send", "push", 3), slug("wait_for", "خرید نهایی")
    ('send_push_3', 'wait_for_خرید_نهایی')
    """
    texts = (re.sub(r"\W+", "_", str(word)).strip("_") for word in words)
    return "_".join(text[:MAX_SLUG_CHARACTERS] for text in texts if text)
