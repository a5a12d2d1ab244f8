"""The steps dialect: the outreach form of a journey, translated to a graph and written back.

A document is `{"steps": {id: step, …}, "entry": id}` and may hold what a graph holds beside its
nodes (`settings`, `entry_rule`, `exit_criteria`, …). A step is
`{"type": …, "params": {…}, "next": {port: id}}`, with `label`, `x` and `y` if wanted:

| type | params | ports |
| --- | --- | --- |
| wait | duration ("2bd") | then |
| wait_for | events, timeout ("5bd") | each event; timeout |
| email, sms | template_id, category, priority, budget | then |
| task | task, title, connected_outcomes, timeout | then; any event; timeout |
| branch | definition (of a segment) | yes, no |
| end | none | none |

A task is a call, linkedin_message, linkedin_connect or custom; the first three may be named as the
type itself. Its port "then" is its completion with any outcome, an event port such as
call_connected goes first. A task becomes a task and a wait for what completes it, `<id>:done`: no
other task closes that one.
People are enrolled by a call, so the graph gets an api trigger in front of the first step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from journeykit_engine import graph, timing
from journeykit_engine.check_nodes import wrong_and_fix
from journeykit_engine.comparison import nearest, shown
from journeykit_engine.graph import Graph, Node
from journeykit_engine.shape import BadGraph, Problem
from journeykit_engine.signal import OWN_TASK

TRIGGER, DONE = "trigger", ":done"
LOOKS = ("label", "x", "y")
STEP_FIELDS = ("type", "params", "next", *LOOKS)
GRAPH_FIELDS = tuple(name for name in Graph.model_fields if name not in ("entry_id", "nodes"))
TASKS = ("call", "linkedin_message", "linkedin_connect")
SEND_PARAMS = ("template_id", "category", "priority", "budget")

Value = Mapping[str, Any]


class StepKind(NamedTuple):
    """What a type of step may hold; `ports` None means any event."""

    params: tuple[str, ...]
    ports: tuple[str, ...] | None


_TASK_PARAMS = ("task", "title", "connected_outcomes", "timeout")
KINDS: Mapping[str, StepKind] = {
    "wait": StepKind(("duration",), ("then",)),
    "wait_for": StepKind(("events", "timeout"), None),
    "email": StepKind(SEND_PARAMS, ("then",)),
    "sms": StepKind(SEND_PARAMS, ("then",)),
    "task": StepKind(_TASK_PARAMS, None),
    **dict.fromkeys(TASKS, StepKind(_TASK_PARAMS[1:], None)),
    "branch": StepKind(("definition",), ("yes", "no")),
    "end": StepKind((), ()),
}


class NotSayable(ValueError):
    """The graph uses what steps have no word for; `problems` lists all of it."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(problems[0].message)


def is_steps(value: object) -> bool:
    """Whether a document is written in steps."""
    return isinstance(value, Mapping) and "steps" in value


def from_steps(value: object) -> Graph:
    """The graph that the steps say; raises `BadGraph` with every fault of their shape.

    >>> document = {"steps": {"wait_2d": {"type": "wait", "params": {"duration": "2bd"}}},
    ...             "entry": "wait_2d"}
    >>> [node.id for node in from_steps(document).nodes]
    ['trigger', 'wait_2d']
    """
    faults = list(_faults(value))
    if faults:
        raise BadGraph(faults)
    assert isinstance(value, Mapping)
    raw = _raw_graph(value)
    made, shape = Graph.salvage(raw)
    if made is None or shape:
        ids = [node["id"] for node in raw["nodes"]]
        raise BadGraph([fault._replace(path=step_path(fault.path, ids)) for fault in shape])
    return made


# --- the faults of a document of steps ---


def _faults(value: object) -> Iterator[Problem]:
    if not isinstance(value, Mapping) or not isinstance(value.get("steps"), Mapping):
        yield _fault("WRONG_TYPE", "", "steps", '"steps" must be an object.', 'Write "steps": {…}.')
        return
    yield from _unknown(value, ("steps", "entry", *GRAPH_FIELDS), "", "", "the document")
    entry = value.get("entry")
    if not isinstance(entry, str) or not entry:
        fix = 'Name the first step in "entry".'
        yield _fault("NO_ENTRY", "", "entry", 'The field "entry" is missing.', fix)
    for step_id, step in value["steps"].items():
        yield from _step_faults(step_id, step)


def _fault(code: str, step_id: str, path: str, message: str, fix: str) -> Problem:
    return Problem(
        code, step_id, path, f"Step {shown(step_id)}: {message}" if step_id else message, fix
    )


def _unknown(
    body: Value, known: Collection[str], step_id: str, path: str, owner: str
) -> Iterator[Problem]:
    for name in body:
        if name not in known:
            near = nearest(name, list(known))
            fix = f'Did you mean "{near}"?' if near else "Leave it out."
            where = f"{path}.{name}" if path else name
            message = f"The field {shown(name)} is not known in {owner}."
            yield _fault("UNKNOWN_FIELD", step_id, where, message, fix)


def _step_faults(step_id: str, step: object) -> Iterator[Problem]:
    path = f"steps.{step_id}"
    if not isinstance(step, Mapping):
        message = f"a step must be an object, not {shown(step)}."
        yield _fault("WRONG_TYPE", step_id, path, message, 'Write {"type": "…"}.')
        return
    yield from _unknown(step, STEP_FIELDS, step_id, path, "a step")
    name = step.get("type")
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        yield _unknown_type(step_id, f"{path}.type", name)
        return
    noun = f"a step of the type {shown(name)}"
    params, ways = step.get("params", {}), step.get("next", {})
    if not isinstance(params, Mapping):
        message = f'"params" must be an object, not {shown(params)}.'
        yield _fault("WRONG_TYPE", step_id, f"{path}.params", message, "Write {…}.")
    else:
        yield from _unknown(params, kind.params, step_id, f"{path}.params", noun)
        yield from _duration_faults(params, step_id, f"{path}.params.duration")
    yield from _next_faults(ways, kind, step_id, f"{path}.next", noun)


def _unknown_type(step_id: str, path: str, name: object) -> Problem:
    known = ", ".join(f'"{kind}"' for kind in KINDS)
    if name is None:
        message, fix = 'The field "type" is missing.', f"Write one of {known}."
        return _fault("MISSING_FIELD", step_id, path, message, fix)
    near = nearest(name, list(KINDS))
    fix = f'Write "{near}".' if near else f"Write one of {known}."
    message = f'"type" is {shown(name)}; expected one of {known}.'
    return _fault("UNKNOWN_KIND", step_id, path, message, fix)


def _duration_faults(params: Value, step_id: str, path: str) -> Iterator[Problem]:
    """A graph keeps amount and unit apart, so a text that is no duration has no place in it."""
    if "duration" in params:
        try:
            timing.parse_duration(params["duration"])
        except timing.BadDuration as fault:
            wrong, fix = wrong_and_fix(str(fault))
            yield _fault("BAD_DURATION", step_id, path, f"{wrong}.", fix)


def _next_faults(
    ways: object, kind: StepKind, step_id: str, path: str, noun: str
) -> Iterator[Problem]:
    if not isinstance(ways, Mapping):
        message = f'"next" must be an object, not {shown(ways)}.'
        fix = 'Name the way, as {"then": "…"}.'
        yield _fault("WRONG_TYPE", step_id, path, message, fix)
        return
    if kind.ports is not None:
        yield from _unknown(ways, kind.ports, step_id, path, noun)
    for port, target in ways.items():
        if not isinstance(target, str):
            message = f"{shown(port)} must be the id of a step, not {shown(target)}."
            yield _fault("WRONG_TYPE", step_id, f"{path}.{port}", message, "Write it in quotes.")


# --- steps to nodes ---


def _raw_graph(value: Value) -> dict[str, Any]:
    steps = value["steps"]
    taken = set(steps)
    trigger = _free(TRIGGER, taken)
    nodes: list[dict[str, Any]] = [
        {"id": trigger, "kind": "trigger", "next": value["entry"], "trigger": {"kind": "api"}}
    ]
    for step_id, step in steps.items():
        nodes += _nodes(step_id, step, taken)
    beside = {name: value[name] for name in GRAPH_FIELDS if name in value}
    return {**beside, "entry_id": trigger, "nodes": nodes}


def _free(wanted: str, taken: Collection[str]) -> str:
    """The wanted id, or with a number behind it when a step has it already."""
    free, number = wanted, 2
    while free in taken:
        free, number = f"{wanted}_{number}", number + 1
    return free


def _nodes(step_id: str, step: Value, taken: Collection[str]) -> list[dict[str, Any]]:
    """The node of a step, and for a task the wait that follows it."""
    kind, params, ways = step["type"], dict(step.get("params", {})), dict(step.get("next", {}))
    node = {"id": step_id, **{name: step[name] for name in LOOKS if name in step}}
    after = {"next": ways["then"]} if "then" in ways else {}
    if kind == "wait":
        return [{**node, **after, "kind": "wait", "wait": _duration(params)}]
    if kind == "wait_for":
        return [{**node, "kind": "wait", "wait": _event_wait(params, ways)}]
    if kind in ("email", "sms"):
        send = {"kind": "send", "channel": kind, **params}
        return [{**node, **after, "kind": "action", "action": send}]
    if kind == "branch":
        ends = {"on_true": ways.get("yes", ""), "on_false": ways.get("no", "")}
        return [{**node, "kind": "condition", "condition": {**params, **ends}}]
    if kind == "end":
        return [{**node, "kind": "exit"}]
    return _task_nodes(node, kind, params, ways, _free(step_id + DONE, taken))


def _duration(params: Value) -> dict[str, Any]:
    if "duration" not in params:
        return {"kind": "duration"}
    amount, unit = timing.parse_duration(params["duration"])
    return {"kind": "duration", "amount": amount, "unit": unit}


def _event_wait(params: Value, ways: Value) -> dict[str, Any]:
    """`events` stays as it is listed, so that `check` sees what is listed and not wired."""
    wired = {event: target for event, target in ways.items() if event != "timeout"}
    return {"kind": "for_event", **params, "on": wired, "on_timeout": ways.get("timeout", "")}


def _task_nodes(
    node: dict[str, Any], kind: str, params: dict[str, Any], ways: dict[str, Any], done: str
) -> list[dict[str, Any]]:
    timeout = {"timeout": params.pop("timeout")} if "timeout" in params else {}
    named = {} if kind == "task" else {"task": kind}
    own = OWN_TASK + node["id"]
    events = {way: ways[way] for way in ways if way != "then"}
    wait = _event_wait(timeout, {**events, own: ways.get("then", "")})  # the last, so heard last
    return [
        {**node, "kind": "action", "next": done, "action": {"kind": "task", **named, **params}},
        {"id": done, "kind": "wait", "wait": wait},
    ]


# --- nodes to steps ---


def to_steps(document: Graph) -> dict[str, Any]:
    """The graph as steps; `from_steps` makes the same graph of them. Raises `NotSayable`."""
    trigger = document.by_id.get(document.entry_id)
    waits = _task_waits(document)
    problems = [*_entry_problems(document, trigger)]
    steps: dict[str, Any] = {}
    for index, node in enumerate(document.nodes):
        if node is trigger or node.id in waits.values():
            continue
        done = document.by_id.get(waits.get(node.id, ""))
        step = _step(node, done)
        if isinstance(step, str):
            problems.append(_not_sayable(node, index, step))
        else:
            looks = node.model_dump(exclude_defaults=True, include=set(LOOKS))
            steps[node.id] = {**step, **looks}
    if problems:
        raise NotSayable(problems)
    assert trigger is not None
    plain = document.to_value()
    beside = {name: plain[name] for name in GRAPH_FIELDS if name in plain}
    said = {"steps": steps, "entry": trigger.next, **beside}
    if not _same(from_steps(said), document):
        message = "Some ids or fields of the graph would not come back from its steps."
        raise NotSayable([Problem("NOT_SAYABLE", "", "", message, "Keep the graph as nodes.")])
    return said


def _same(one: Graph, other: Graph) -> bool:
    """Equal but for the order of the nodes, which says nothing in a graph."""
    left, right = one.to_value(), other.to_value()
    nodes = [
        sorted(each.pop("nodes", []), key=lambda node: str(node["id"])) for each in (left, right)
    ]
    return left == right and nodes[0] == nodes[1]


def _entry_problems(document: Graph, trigger: Node | None) -> Iterator[Problem]:
    fix = f'Use an api trigger with the id "{TRIGGER}" that leads to the first step.'
    if trigger is None or not isinstance(trigger.trigger, graph.ApiTrigger) or not trigger.next:
        message = "Steps are entered by a call and begin with a step; this graph does not."
        yield Problem("NOT_SAYABLE", document.entry_id, "entry_id", message, fix)


def _task_waits(document: Graph) -> dict[str, str]:
    """The wait that belongs to each task, by the task's id."""
    found = {}
    for node in document.nodes:
        done = document.by_id.get(node.next)
        if isinstance(node.action, graph.Task) and done is not None and done.kind == "wait":
            wait = done.wait
            if isinstance(wait, graph.ForEvent) and OWN_TASK + node.id in (wait.on or ()):
                found[node.id] = done.id
    return found


def _not_sayable(node: Node, index: int, what: str) -> Problem:
    message = f"Steps have no word for node {shown(node.id)}: {what}."
    fix = "Keep the graph as nodes, or use another node."
    return Problem("NOT_SAYABLE", node.id, f"nodes[{index}]", message, fix)


def _step(node: Node, done: Node | None) -> dict[str, Any] | str:
    """The step of a node, or what cannot be said of it."""
    then = {"next": {"then": node.next}} if node.next else {}
    match node.config:
        case None if node.kind == "exit":
            return {"type": "end"}
        case graph.DurationWait() as wait:
            return _wait_step(wait, then)
        case graph.ForEvent() as wait:
            return _wait_for_step(wait)
        case graph.Condition() as condition:
            ways = {"yes": condition.on_true, "no": condition.on_false}
            wired = {port: target for port, target in ways.items() if target}
            params = {"params": {"definition": condition.definition}}
            return {
                "type": "branch",
                **(params if condition.definition is not None else {}),
                **({"next": wired} if wired else {}),
            }
        case graph.Send() as send:
            return _send_step(send, then)
        case graph.Task() as task:
            return _task_step(node.id, task, done)
        case _:
            return f"its kind is {shown(getattr(node.config, 'kind', node.kind))}"


def _wait_step(wait: graph.DurationWait, then: Value) -> dict[str, Any] | str:
    if not wait.amount and not wait.unit:
        return {"type": "wait", **then}
    if timing.duration_fault(wait.amount, wait.unit) is not None:
        return "its duration is none"
    text = str(timing.Duration(wait.amount, wait.unit))  # type: ignore[arg-type]
    return {"type": "wait", "params": {"duration": text}, **then}


def _wait_for_step(wait: graph.ForEvent) -> dict[str, Any] | str:
    if wait.on is None or "timeout" in wait.on:
        return 'it waits for an event without the form "on"'
    if wait.filter:
        return "it has a filter"
    params = wait.model_dump(exclude_defaults=True, include={"events", "timeout"})
    late = {"timeout": wait.on_timeout} if wait.on_timeout else {}
    return {"type": "wait_for", "params": params, "next": {**wait.on, **late}}


def _send_step(send: graph.Send, then: Value) -> dict[str, Any] | str:
    if send.channels or send.channel not in ("email", "sms"):
        return "it sends by something else than one of email and sms"
    params = send.model_dump(exclude_defaults=True, include=set(SEND_PARAMS))
    return {"type": send.channel, "params": params, **then}


def _task_step(task_id: str, task: graph.Task, done: Node | None) -> dict[str, Any] | str:
    if done is None or not isinstance(done.wait, graph.ForEvent):
        return "it is a task that nothing waits for"
    step = _wait_for_step(done.wait)
    if isinstance(step, str):
        return step
    params = task.model_dump(exclude_defaults=True, include=set(_TASK_PARAMS))
    own = OWN_TASK + task_id
    ways = {"then" if way == own else way: to for way, to in step["next"].items()}
    if not ways["then"]:
        del ways["then"]
    return {"type": "task", "params": {**params, **step["params"]}, "next": ways}


# --- places ---

_NODE_PATH = re.compile(r"nodes\[(\d+)\](?:\.(.*))?", re.DOTALL)
_INNER = (
    (re.compile(r"next$"), "next.then"),
    (re.compile(r"wait\.(?:amount|unit)$"), "params.duration"),
    (re.compile(r"wait\.on_timeout$"), "next.timeout"),
    (re.compile(r"wait\.on\."), "next."),
    (re.compile(r"wait\.event$"), "params.events"),
    (re.compile(r"condition\.on_true$"), "next.yes"),
    (re.compile(r"condition\.on_false$"), "next.no"),
    (re.compile(r"(?:wait|condition|action)\."), "params."),
)


def step_path(path: str, node_ids: Sequence[str]) -> str:
    """Where the steps say what the graph made of them says at `path`.

    >>> step_path("nodes[1].wait.on.reply", ["trigger", "wait_reply"])
    'steps.wait_reply.next.reply'
    """
    match = _NODE_PATH.fullmatch(path)
    if match is None:
        return "entry" if path == "entry_id" else path
    index, inner = int(match[1]), match[2] or ""
    if index == 0:
        return "entry"
    step_id = node_ids[index]
    if step_id.endswith(DONE) and node_ids[index - 1] == step_id.removesuffix(DONE):
        step_id = node_ids[index - 1]
        inner = inner.replace(f"wait.on.{OWN_TASK}{step_id}", "next")
    for pattern, said in _INNER:
        if pattern.match(inner):
            inner = pattern.sub(said, inner, count=1)
            break
    return f"steps.{step_id}.{inner}" if inner else f"steps.{step_id}"


def restated(document: Graph) -> Callable[[Problem], Problem]:
    """What turns a problem of a graph made by `from_steps` into one of its steps."""
    ids = [node.id for node in document.nodes]
    return lambda problem: problem._replace(path=step_path(problem.path, ids))
