"""The steps of a journey, one call each; every call gives a new journey and changes none.

A branch is a function that continues the path it is given (`lambda j: j.send(push=3)`), a path made
before (`path().send(push=3)`), `go_to("id")`, or None where nothing is wired. A branch that is left
open, that is without `.exit()`, `.go_to()` or `.stop()` at its end, flows on into the step that
follows the branching; where none follows, the pass ends there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import EllipsisType
from typing import Any, Literal, NamedTuple, Self, TypeAlias

from pydantic import ValidationError

from journeykit import rules, sketch
from journeykit.mistake import JourneyError, plain, text_of, texts_of, whole_of, wrong_type
from journeykit.rules import Rule, Where
from journeykit.sketch import Document, End, Place, Sketch, slug
from journeykit_engine import check_nodes, timing
from journeykit_engine.comparison import shown
from journeykit_engine.graph import Graph, Node
from journeykit_engine.strict_json import json_faults

LEFT_FOR_LATER = frozenset({"NO_TEMPLATE", "NO_DEFAULT", "BAD_SEGMENT", "NO_BRANCHES"})
"""What a draft may still lack, or a raw definition may have wrong: `validate` tells it."""

NEXT: Place = ("next",)
RuleOrDefinition: TypeAlias = "Rule | Mapping[str, Any]"


class Branching(NamedTuple):
    """A way out with the branch it takes; `name` is what an error calls it."""

    name: str
    place: Place
    branch: Branch


class Chain:
    """The steps that a journey and a path share. `id` names a node (else it is named after what it
    does), `label` is what a drawing shows."""

    __slots__ = ("_sketch",)
    _sketch: Sketch

    def _with(self, changed: Sketch) -> Self:
        raise NotImplementedError

    def wait(self, duration: str, *, id: str | None = None, label: str = "") -> Self:
        """A fixed time: whole minutes, hours, days, weeks or business days, as "1h" or "5bd"."""
        amount, unit = _duration(".wait", duration)
        config = {"kind": "duration", "amount": amount, "unit": unit}
        return self._step("wait", config, slug("wait", duration), id, label)

    def wait_until(
        self,
        hour: int,
        minute: int = 0,
        days: Iterable[str] | None = None,
        *,
        id: str | None = None,
        label: str = "",
    ) -> Self:
        """The next such time of day, on one of `days` ("mon" to "sun") if given, in the
        recipient's zone; always later than now."""
        hour = whole_of('The "hour" of .wait_until', hour)
        minute = whole_of('The "minute" of .wait_until', minute)
        config: Document = {"kind": "until_time", "hour": hour, "minute": minute}
        if days is not None:
            config["days"] = texts_of('The "days" of .wait_until', days)
        base = slug("wait_until", hour, f"{minute:02}" if minute else "")
        return self._step("wait", config, base, id, label)

    def wait_best_time(self, fallback_hour: int, *, id: str | None = None, label: str = "") -> Self:
        """The hour at which the person opens most, `fallback_hour` where too little is known."""
        config = {"kind": "until_best_time", "fallback_hour": plain(fallback_hour)}
        return self._step("wait", config, "wait_best_time", id, label)

    def wait_for(
        self,
        event: str | Mapping[str, Branch],
        *,
        where: Where = None,
        timeout: str = "",
        on_timeout: Branch = None,
        events: Iterable[str] | None = None,
        id: str | None = None,
        label: str = "",
    ) -> Self:
        """Until the event arrives; or until one of several, each with a branch of its own.

        After `timeout` the pass takes `on_timeout`; without that branch it goes on to the next
        step, as it does when a single event arrives. `events` repeats the names in the order in
        which the steps dialect lists them, and may be left out.
        """
        several = event if isinstance(event, Mapping) else {}
        config: Document = {"kind": "for_event", **_filter(where)}
        if isinstance(event, Mapping):
            config["on"] = {text_of("An event of .wait_for", name): "" for name in several}
        else:
            config["event"] = text_of("The event of .wait_for", event)
        if events is not None:
            config["events"] = texts_of('The "events" of .wait_for', events)
        if timeout:
            _duration('The "timeout" of .wait_for', timeout)
            config["timeout"] = timeout
        branchings = [Branching(name, ("wait", "on", name), way) for name, way in several.items()]
        branchings.append(Branching("on_timeout", ("wait", "on_timeout"), on_timeout))
        is_open = not isinstance(event, Mapping) or (bool(timeout) and on_timeout is None)
        base = slug("wait_for", "_or_".join(several) if isinstance(event, Mapping) else event)
        ways = (NEXT,) if is_open else ()
        return self._step("wait", config, base, id, label, ways, branchings)

    def send(
        self,
        *,
        channel: str | None = None,
        template: int | None = None,
        channels: Sequence[tuple[str, int | None]] | None = None,
        mode: Literal["", "all"] = "",
        category: str = "",
        priority: int = 50,
        budget: str = "default",
        id: str | None = None,
        label: str = "",
        **media: int | None,
    ) -> Self:
        """A message: `send(push=3)` is the channel push with the template 3.

        With several channels (`send(push=3, email=7)`) they are tried in this order until one
        reaches the person, `mode="all"` uses every one. A channel whose name is no Python name is
        given as `channel=` and `template=`, or in `channels=[(name, template), …]`.
        """
        pairs = [*media.items(), *(_pairs(channels) if channels is not None else [])]
        if channel is not None or template is not None:
            pairs.insert(0, (text_of('The "channel" of .send', channel), template))
        if not pairs:
            message = "The step .send names no channel."
            raise JourneyError("NO_CHANNEL", message, "Write for example .send(push=3).")
        named = [_medium(name, number) for name, number in pairs]
        is_single = len(named) == 1 and channels is None
        config: Document = {"kind": "send", "channel_mode": mode, "category": category}
        config |= named[0] if is_single else {"channels": named}
        config |= {"priority": plain(priority), "budget": budget}
        words = [word for medium in named for word in medium.values()]
        return self._step("action", config, slug("send", *words), id, label)

    def set_trait(self, trait: str, value: Any, *, id: str | None = None, label: str = "") -> Self:
        """Writes a trait of the person; done for held-out people too."""
        name = text_of("The trait of .set_trait", trait)
        config = {"kind": "update_trait", "trait": name, "value": plain(value)}
        return self._step("action", config, slug("set", name), id, label)

    def add_to_segment(self, segment: int, *, id: str | None = None, label: str = "") -> Self:
        """Adds the person to the segment with this number; done for held-out people too."""
        number = whole_of("The segment of .add_to_segment", segment)
        config = {"kind": "add_to_segment", "segment_id": number}
        return self._step("action", config, slug("add_to_segment", number), id, label)

    def webhook(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: Any = None,
        id: str | None = None,
        label: str = "",
    ) -> Self:
        """Calls a url; withheld from held-out people."""
        config = {"kind": "webhook", "url": url, "headers": dict(headers or {}), "body": body}
        return self._step("action", config, "webhook", id, label)

    def enter_journey(self, journey: int, *, id: str | None = None, label: str = "") -> Self:
        """Starts another journey for the person; withheld from held-out people."""
        number = whole_of("The journey of .enter_journey", journey)
        config = {"kind": "enter_journey", "journey_id": number}
        return self._step("action", config, slug("enter_journey", number), id, label)

    def task(
        self,
        task: Literal["call", "linkedin_message", "linkedin_connect", "custom"] = "custom",
        *,
        title: str = "",
        connected_outcomes: Iterable[str] = (),
        id: str | None = None,
        label: str = "",
    ) -> Self:
        """Something a human does; an outcome in `connected_outcomes` is a connected call."""
        outcomes = texts_of('The "connected_outcomes" of .task', connected_outcomes)
        config = {"kind": "task", "task": task, "title": title, "connected_outcomes": outcomes}
        return self._step("action", config, slug("task", task), id, label)

    def when(
        self,
        rule: RuleOrDefinition,
        *,
        yes: Branch = ...,
        no: Branch = ...,
        id: str | None = None,
        label: str = "",
    ) -> Self:
        """Two ways: those for whom the rule holds take `yes`, the others `no`. A branch that is not
        given goes on to the next step."""
        definition = rules.definition_of("The rule of .when", rule)
        branchings = [
            Branching("yes", ("condition", "on_true"), yes),
            Branching("no", ("condition", "on_false"), no),
        ]
        config = {"definition": definition}
        return self._step("condition", config, _asks(definition), id, label, (), branchings)

    def choose(
        self,
        *cases: tuple[str, RuleOrDefinition, Branch],
        otherwise: Branch = ...,
        id: str | None = None,
        label: str = "",
    ) -> Self:
        """Many ways, `(label, rule, branch)` each: the first whose rule holds wins, `otherwise` is
        for the rest and goes on to the next step when it is not given."""
        asked = [_case(case) for case in cases]
        branchings = [
            Branching(name or f"case {i + 1}", ("switch", "cases", i, "next"), way)
            for i, (name, _, way) in enumerate(asked)
        ]
        branchings.append(Branching("otherwise", ("switch", "default"), otherwise))
        config = {"cases": [{"label": name, "definition": what} for name, what, _ in asked]}
        return self._step("switch", config, "choose", id, label, (), branchings)

    def split(
        self,
        name: str,
        arms: Mapping[str, Branch] | None = None,
        *,
        weights: Mapping[str, float] | None = None,
        holdout: float = 0,
        on_holdout: Branch = None,
        salt: str | None = None,
        id: str | None = None,
        label: str = "",
        **more_arms: Branch,
    ) -> Self:
        """Arms by chance: `split("test", A=…, B=…)`, or a dict of arms where a name is no Python
        name. The name is the node's id, and part of the hash that gives a person an arm.

        `weights={"A": 2}` are shares of their sum, 1 unless given. `holdout` percent are held out;
        without `on_holdout` they follow the first arm and are sent nothing. `salt` replaces the
        journey's id in the hash, "" leaves it out.
        """
        base = text_of("The name of .split", name)
        ways = _arms(base, {**(arms or {})}, more_arms)
        shares = _weights(base, weights or {}, ways)
        config: Document = {
            "branches": [{"variant": arm, "weight": shares.get(arm, 1)} for arm in ways],
            "holdout_percent": plain(holdout),
        }
        if salt is not None:
            config["salt"] = salt
        branchings = [
            Branching(arm, ("split", "branches", i, "next"), way)
            for i, (arm, way) in enumerate(ways.items())
        ]
        branchings.append(Branching("on_holdout", ("split", "on_holdout"), on_holdout))
        return self._step("split", config, base, id, label, (), branchings)

    def goal(
        self,
        event: str,
        within: str | None = None,
        *,
        where: Where = None,
        reached: Branch = None,
        id: str | None = None,
        label: str = "",
    ) -> Self:
        """A checkpoint: those whose event happened since the entry, and no later than `within`
        ("7d" or "1w") after it, take `reached` or, without that branch, end here; the others go
        on. Without `within` there is no last day."""
        name = text_of("The event of .goal", event)
        days = 0 if within is None else _days('The "within" of .goal', within)
        config = {"event": name, "window_days": days, **_filter(where)}
        branchings = [Branching("reached", ("goal", "on_reached"), reached)]
        return self._step("goal", config, slug("goal", name), id, label, (NEXT,), branchings)

    def exit(self, *, id: str | None = None, label: str = "") -> Self:
        """The end of the path; the pass is completed."""
        return self._step("exit", None, "exit", id, label, ())

    def go_to(self, node_id: str) -> Self:
        """Goes on at the node with this id, which may come later or have come before (a loop)."""
        self._must_be_open("go_to", f"The step .go_to({shown(node_id)})")
        return self._with(sketch.wired(self._sketch, text_of("The target of .go_to", node_id)))

    def stop(self) -> Self:
        """Ends the path without an exit node: nothing is wired, the pass ends "no_next_node"."""
        return self._with(sketch.wired(self._sketch, ""))

    def then(self, branch: Branch) -> Self:
        """Goes on with a path made before."""
        self._must_be_open("then", "The path of .then")
        inner = _branch(self._sketch, "The path of .then", branch)
        return self._with(sketch.followed(self._sketch, inner))

    def part(self, *branches: Branch) -> Self:
        """Nodes beside the path, for other nodes to reach by `go_to`; the path goes on after it as
        if it were not there. What a part leaves open stays unwired."""
        changed = self._sketch
        for branch in branches:
            changed = sketch.set_apart(changed, _branch(changed, "The branch of .part", branch))
        return self._with(changed)

    def node(self, document: Mapping[str, Any]) -> Self:
        """A node as the document writes it, ways out included; the path ends with it. For drafts
        and for what no other step says."""
        given = dict(document)
        sketch.given_id(given.get("id"), self._sketch.taken)
        self._must_be_open("node", f"The node {shown(given['id'])}")
        _sound(given)
        return self._with(sketch.grown(self._sketch, given, "", ()))

    def _step(
        self,
        kind: str,
        config: Document | None,
        base: str,
        id: str | None,
        label: str,
        ways: tuple[Place, ...] = (NEXT,),
        branchings: Sequence[Branching] = (),
    ) -> Self:
        taken = self._sketch.taken
        node_id = sketch.free_id(base, taken) if id is None else sketch.given_id(id, taken)
        self._must_be_open(kind, f"The node {shown(node_id)}")
        if not isinstance(label, str):
            raise wrong_type(f"The label of the node {shown(node_id)}", "text", label, _QUOTES)
        document: Document = {"id": node_id, "kind": kind, "label": label}
        if config is not None:
            document[kind] = config
        _judge(_sound(document))
        grown = sketch.grown(self._sketch, document, "" if id is not None else base, ways)
        for name, place, branch in branchings:
            where = f"The branch {shown(name)} of the node {shown(node_id)}"
            inner = _branch(grown, where, branch)
            grown = sketch.branched(grown, End(node_id, place), inner)
        return self._with(grown)

    def _must_be_open(self, kind: str, what: str) -> None:
        if not self._sketch.ends:
            raise JourneyError(
                "CLOSED",
                f"{what} cannot be reached: every path before it has ended or goes elsewhere.",
                "Take away the .exit(), .go_to() or .stop() before it, or add it with .part(…).",
            )


_QUOTES = "Write it between quotes."


class Path(Chain):
    """Steps that are not yet part of a journey: what a branch is made of."""

    __slots__ = ()

    def __init__(self, steps: Sketch | None = None) -> None:
        self._sketch = steps if steps is not None else Sketch()

    def _with(self, changed: Sketch) -> Path:
        return Path(changed)

    def __repr__(self) -> str:
        return f"<path of {len(self._sketch.nodes)} nodes>"


Branch: TypeAlias = Callable[[Path], Path] | Path | EllipsisType | None


def path() -> Path:
    """An empty path: a named piece of journey, to be a branch wherever one is wanted.

    Ids that were given must be free wherever it is used; derived ones are numbered anew.
    """
    return Path()


def go_to(node_id: str) -> Path:
    """A branch that goes on at the node with this id."""
    return Path().go_to(node_id)


def _branch(around: Sketch, where: str, branch: object) -> Sketch:
    """The steps of a branch; a function is given an empty path that knows the ids around it."""
    if branch is None:
        return Sketch(ends=())
    if branch is ...:
        return Sketch()
    if callable(branch):
        branch = branch(Path(sketch.inside(around)))
    if not isinstance(branch, Path):
        given = type(branch).__name__ if isinstance(branch, Chain) else shown(branch)
        message = f"{where} must give a path, not {given}."
        fix = "Write for example lambda j: j.send(push=3), or None to leave it unwired."
        raise JourneyError("WRONG_TYPE", message, fix)
    return branch._sketch


def _sound(document: Document) -> Node:
    """The node, or the error for what JSON or the document has no place for."""
    for fault in json_faults(document):
        message = f"The node {shown(document['id'])}: {fault.message}"
        raise JourneyError(fault.code, message, fault.fix)
    try:
        return Node.model_validate(document)
    except ValidationError:
        problem = Graph.salvage({"nodes": [document]})[1][0]
        raise JourneyError(problem.code, problem.message, problem.fix) from None


def _judge(node: Node) -> None:
    for problem in check_nodes.node_problems(Graph(), node, 0):
        if problem.code not in LEFT_FOR_LATER:
            raise JourneyError(problem.code, problem.message, problem.fix)


def _duration(where: str, text: object) -> timing.Duration:
    try:
        return timing.parse_duration(text)
    except timing.BadDuration as fault:
        wrong, fix = check_nodes.wrong_and_fix(str(fault))
        raise JourneyError("BAD_DURATION", f"{where}: {wrong}.", fix) from None


def _days(where: str, text: object) -> int:
    amount, unit = _duration(where, text)
    if unit not in ("day", "week"):
        message = f"{where}: {shown(text)} is not a number of whole days."
        raise JourneyError("BAD_DURATION", message, 'Write days or weeks, for example "7d".')
    return amount * 7 if unit == "week" else amount


def _filter(where: Where) -> Document:
    comparisons = rules.comparisons_of(where)
    return {"filter": comparisons} if comparisons else {}


def _pairs(channels: object) -> list[tuple[Any, Any]]:
    if isinstance(channels, (list, tuple)):
        pairs = [tuple(pair) for pair in channels if isinstance(pair, (list, tuple))]
        if len(pairs) == len(channels) and all(len(pair) == 2 for pair in pairs):
            return pairs
    fix = 'Write [("email", 7), ("sms", 8)].'
    raise wrong_type('The "channels" of .send', "a list of pairs", channels, fix)


def _medium(channel: object, template: object) -> Document:
    """A channel with its template; None where the text is still to be written."""
    name = text_of('The "channel" of .send', channel)
    if template is None:
        return {"channel": name}
    return {"channel": name, "template_id": whole_of(f"The template of .send({name}=…)", template)}


def _case(case: object) -> tuple[str, Document, Any]:
    if not isinstance(case, tuple) or len(case) != 3:
        fix = 'Write ("premium", jk.trait("plan") == "premium", lambda j: j.send(push=3)).'
        raise wrong_type("A case of .choose", "a label, a rule and a branch", case, fix)
    name, rule, branch = case
    if not isinstance(name, str):
        raise wrong_type("The label of a case of .choose", "text", name, _QUOTES)
    definition = rules.definition_of(f"The rule of the case {shown(name)}", rule)
    return name, definition, branch


def _arms(name: str, arms: dict[str, Branch], more: Mapping[str, Branch]) -> dict[str, Branch]:
    for arm in arms:
        if not isinstance(arm, str):
            raise wrong_type(f"An arm of the split {shown(name)}", "text", arm, _QUOTES)
        if arm in more:
            message = f"The split {shown(name)} has two arms {shown(arm)}."
            raise JourneyError("DUPLICATE_VARIANT", message, "Give each arm a name of its own.")
    if not arms and not more:
        message = f"The split {shown(name)} has no arms."
        raise JourneyError("NO_BRANCHES", message, "Write for example A=lambda j: j.send(push=3).")
    return {**arms, **more}


def _weights(name: str, weights: Mapping[str, float], arms: Mapping[str, Any]) -> Document:
    for arm in weights:
        if arm not in arms:
            known = ", ".join(map(shown, arms))
            message = f"The split {shown(name)} has a weight for {shown(arm)}, which is no arm."
            raise JourneyError("UNKNOWN_VARIANT", message, f"Its arms are {known}.")
    return {arm: plain(weight) for arm, weight in weights.items()}


def _asks(definition: Mapping[str, Any]) -> str:
    """The id of a condition: what its first leaf looks at."""
    stack = [definition.get("root")]
    while stack:
        rule = stack.pop()
        if isinstance(rule, list):
            stack += reversed(rule)
        elif isinstance(rule, dict):
            for leaf, words in _LEAF_WORDS.items():
                if leaf in rule:
                    return slug("if", *words, rule[leaf] if leaf != "bucket" else "")
            stack += [rule[group] for group in ("not", "none", "any", "all") if group in rule]
    return "if"


_LEAF_WORDS: Mapping[str, tuple[str, ...]] = {
    "trait": (),
    "event": (),
    "segment": ("in_segment",),
    "journey": ("in_journey",),
    "bucket": ("in_bucket",),
    "local": ("local",),
}
