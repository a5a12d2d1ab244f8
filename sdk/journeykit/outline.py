"""A journey in words: what each node does, what each way out means, and the whole as a text tree.

The words are the same in the tree and in the picture. Everything typed by a person comes out of
`inline` harmless: one line, no control characters, right-to-left text kept from turning what
stands around it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, assert_never
from urllib.parse import urlsplit

from journeykit_engine.graph import (
    Action,
    AddToSegment,
    ApiTrigger,
    AttributeChanged,
    Branch,
    Condition,
    DateTrigger,
    DurationWait,
    EnterJourney,
    EventTrigger,
    ForEvent,
    Goal,
    Graph,
    Node,
    SegmentEnter,
    SegmentExit,
    SegmentPeriodic,
    Send,
    Split,
    Switch,
    Task,
    Trigger,
    UntilBestTime,
    UntilTime,
    UpdateTrait,
    WaitConfig,
    Webhook,
)

MAX_LINE_CHARACTERS = 72  # of a label in the tree: with its id it still fits a terminal's line
MAX_WORD_CHARACTERS = 40  # of a name or value inside a sentence, so that the sentence survives it
MAX_TREE_DEPTH = 16  # levels that are indented; deeper ones stand under the last level
MAX_RULE_DEPTH = 3  # levels of a rule that are told; below them the sentence is no help any more
MAX_RULE_PARTS = 4  # of one "and" or "or"
ELLIPSIS = "…"

# They turn the text that follows them; ZWNJ, ZWJ and the two plain marks are part of good Persian.
_TURNING = frozenset(map(chr, (*range(0x202A, 0x202F), *range(0x2066, 0x206A))))
_ISOLATE, _END_ISOLATE = "\u2068", "\u2069"
_NOT_XML = ("\ufffe", "\uffff")


def outline(graph: Graph, name: str = "") -> str:
    """The journey as a text tree, one line a node; branches are indented, a way to a node that
    was told already reads `→ goes to 'id'`.

    >>> graph = Graph.parse({"entry_id": "t", "nodes": [
    ...     {"id": "t", "kind": "trigger", "trigger": {"kind": "api"}, "next": "w"},
    ...     {"id": "w", "kind": "wait", "wait": {"kind": "duration", "amount": 1, "unit": "day"},
    ...      "next": "e"},
    ...     {"id": "e", "kind": "exit"}]})
    >>> print(outline(graph, "Welcome"))
    Welcome · 3 nodes
    ▶ when called  't'
    ○ wait 1 day  'w'
    ■ exit  'e'
    """
    count = len(graph.nodes)
    head = f"{inline(name) or 'Journey'} · {count} node{'' if count == 1 else 's'}"
    told: set[str] = set()
    lines = [head, *_tree(graph, graph.entry_id, told)]
    for node in graph.nodes:
        if node.id not in told:
            lines += ["", "nothing leads to:", *_tree(graph, node.id, told)]
    return "\n".join(lines)


class Way(NamedTuple):
    """A way out as it is drawn: its port, its words, where it goes ("" = the pass ends)."""

    port: str
    words: str
    target: str
    is_held_out: bool = False


_MARKS = {
    "trigger": "▶",
    "wait": "○",
    "condition": "◆",
    "switch": "◆",
    "split": "◇",
    "action": "●",
    "goal": "★",
    "exit": "■",
}


def _tree(graph: Graph, start: str, told: set[str]) -> Iterator[str]:
    """The lines from one node on. The stack holds what is still to be told: where it goes, and
    what stands before the line; a line of words comes as it is."""
    stack: list[tuple[str | None, str]] = [(start, "")] if start else []
    while stack:
        target, before = stack.pop()
        if target is None:
            yield before
            continue
        node = graph.by_id.get(target)
        if node is None:
            yield f"{before}→ missing: '{inline(target, MAX_LINE_CHARACTERS)}'"
        elif target in told:
            yield f"{before}→ goes to '{inline(target, MAX_LINE_CHARACTERS)}'"
        else:
            told.add(target)
            yield before + _line(node)
            stack += reversed(list(_after(node, before)))


def _line(node: Node) -> str:
    said = said_of(node)
    label = inline(node.label, MAX_LINE_CHARACTERS)
    title = f"{label} · {said}" if label and label != said else said
    return f"{_MARKS[node.kind]} {title}  '{inline(node.id, MAX_LINE_CHARACTERS)}'"


def _after(node: Node, before: str) -> Iterator[tuple[str | None, str]]:
    ways = ways_of(node)
    if len(ways) == 1 and not ways[0].words:
        if ways[0].target:
            yield ways[0].target, before
        return
    for i, way in enumerate(ways):
        is_last = i == len(ways) - 1
        corner = "└─ " if is_last else "├─ "
        if not way.target:
            yield None, f"{before}{corner}{way.words}: ends here"
            continue
        yield None, f"{before}{corner}{way.words}"
        deep = len(before) >= 3 * MAX_TREE_DEPTH
        yield way.target, before if deep else before + ("   " if is_last else "│  ")


def ways_of(node: Node) -> list[Way]:
    """Every way out with its words; a holdout or timeout that falls back on another way has it."""
    ports = node.ports()
    match node.config:
        case ForEvent() as wait:
            return list(_wait_ways(node, wait))
        case Condition():
            words = {"on_true": "yes", "on_false": "no"}
            return [Way(port.name, words[port.name], port.target) for port in ports]
        case Switch():
            labels = [*(inline(port.name, MAX_WORD_CHARACTERS) for port in ports[:-1]), "else"]
            return [
                Way(port.name, label, port.target)
                for port, label in zip(ports, labels, strict=True)
            ]
        case Split() as split:
            return list(_split_ways(node, split))
        case Goal() as goal:
            missed, reached = Way("next", "not reached", node.next), goal.on_reached
            return [missed, Way("on_reached", "reached", reached)]
        case _:
            return [Way(port.name, "", port.target) for port in ports]


def _wait_ways(node: Node, wait: ForEvent) -> Iterator[Way]:
    late = f"after {_word(wait.timeout)}" if wait.timeout else "on time-out"
    if wait.on is not None:
        for event, target in wait.on.items():
            yield Way(event, _word(event), target)
    elif wait.timeout and not wait.on_timeout:
        yield Way("next", f"{_word(wait.event)} or {late}", node.next)
    else:
        yield Way("next", _word(wait.event), node.next)
    if wait.on_timeout or (wait.timeout and wait.on is not None):
        yield Way("on_timeout", late, wait.on_timeout or node.next)


def _split_ways(node: Node, split: Split) -> Iterator[Way]:
    held = min(max(float(split.holdout_percent), 0.0), 100.0)
    total = sum(max(float(branch.weight), 0.0) for branch in split.branches)
    for i, branch in enumerate(split.branches):
        name = inline(branch.variant, MAX_WORD_CHARACTERS) or f"branch {i + 1}"
        share = f" {_share(branch, total, held)}" if total > 0 else ""
        yield Way(branch.variant or f"branch {i + 1}", name + share, branch.next)
    if split.on_holdout or held:
        first = split.branches[0].next if split.branches else ""
        yield Way(
            "on_holdout", f"held out {percent(held)}", split.on_holdout or first, is_held_out=True
        )


def _share(branch: Branch, total: float, held: float) -> str:
    return percent(max(float(branch.weight), 0.0) / total * (100 - held))


def percent(value: float) -> str:
    """A share in words: one decimal where it has one.

    >>> percent(45.0), percent(100 / 3), percent(0.04)
    ('45 %', '33.3 %', '< 0.1 %')
    """
    if 0 < value < 0.05:
        return "< 0.1 %"
    return f"{value:.1f}".removesuffix(".0") + " %"


def said_of(node: Node) -> str:
    """What a node does, as short words: "wait 30 days", "send email · template 7"."""
    match node.config:
        case None:
            return "exit" if node.kind == "exit" else f"{node.kind}, not set up yet"
        case Condition() as condition:
            return f"if {rule_said(condition.definition)}"
        case Switch() as switch:
            return f"choose one of {len(switch.cases) + 1}"
        case Split() as split:
            arms = len(split.branches)
            held = f", {percent(float(split.holdout_percent))} held out"
            return f"split in {arms}" + (held if split.holdout_percent else "")
        case Goal() as goal:
            window = f" within {_count(goal.window_days, 'day')}" if goal.window_days else ""
            return f"goal: {_word(goal.event)}{window}{_filtered(goal.filter)}"
        case DurationWait() | UntilTime() | UntilBestTime() | ForEvent() as wait:
            return _wait_said(wait)
        case Send() | UpdateTrait() | AddToSegment() | Webhook() | EnterJourney() | Task() as act:
            return _action_said(act)
        case trigger:
            return _trigger_said(trigger)


def _trigger_said(trigger: Trigger) -> str:
    match trigger:
        case EventTrigger():
            return f"when {_word(trigger.event)} happens{_filtered(trigger.filter)}"
        case AttributeChanged():
            to = "" if trigger.value is None else f" to {_value(trigger.value)}"
            return f"when {_word(trigger.trait)} changes{to}"
        case SegmentEnter():
            return f"on becoming: {rule_said(trigger.definition)}"
        case SegmentExit():
            return f"on ceasing: {rule_said(trigger.definition)}"
        case SegmentPeriodic():
            hours = ", ".join(f"{hour}:00" for hour in trigger.hours[:MAX_RULE_PARTS])
            more = f" {ELLIPSIS}" if len(trigger.hours) > MAX_RULE_PARTS else ""
            return f"every day at {hours or ELLIPSIS}{more}: {rule_said(trigger.definition)}"
        case DateTrigger():
            days = trigger.offset_days
            before = f"{_count(days, 'day')} before" if days else "on"
            return f"{before} {_word(trigger.trait)}, at {trigger.hour}:00"
        case ApiTrigger():
            return "when called"
    assert_never(trigger)


def _wait_said(wait: WaitConfig) -> str:
    match wait:
        case DurationWait():
            return f"wait {_count(wait.amount, _word(wait.unit).replace('_', ' '))}"
        case UntilTime():
            hour = ELLIPSIS if wait.hour is None else f"{wait.hour}:{wait.minute:02}"
            days = f" on {', '.join(map(_word, wait.days[:7]))}" if wait.days else ""
            return f"wait until {hour}{days}"
        case UntilBestTime():
            other = "" if wait.fallback_hour is None else f", else {wait.fallback_hour}:00"
            return f"wait for the best hour{other}"
        case ForEvent():
            events = list(wait.on or ()) or [wait.event]
            names = " or ".join(map(_word, events[:MAX_RULE_PARTS]))
            more = f" or {ELLIPSIS}" if len(events) > MAX_RULE_PARTS else ""
            limit = f", at most {_word(wait.timeout)}" if wait.timeout else ""
            return f"wait for {names}{more}{_filtered(wait.filter)}{limit}"
    assert_never(wait)


def _action_said(action: Action) -> str:
    match action:
        case Send():
            between = " and " if action.channel_mode == "all" else ", else "
            media = [
                _word(medium.channel)
                + (f" · template {medium.template_id}" if medium.template_id else "")
                for medium in action.media[:MAX_RULE_PARTS]
            ]
            return f"send {between.join(media)}"
        case UpdateTrait():
            return f"set {_word(action.trait)} = {_value(action.value)}"
        case AddToSegment():
            return f"add to segment {action.segment_id or ELLIPSIS}"
        case Webhook():
            return f"call {_host(action.url)}"
        case EnterJourney():
            return f"enter journey {action.journey_id or ELLIPSIS}"
        case Task():
            title = f": {inline(action.title, MAX_WORD_CHARACTERS)}" if action.title else ""
            return f"task {action.task.replace('_', ' ')}{title}"
    assert_never(action)


def _host(url: str) -> str:
    """The host alone: the rest of a webhook's url may hold a secret."""
    try:
        return _word(urlsplit(url).hostname or "")
    except ValueError:
        return ELLIPSIS


_SYMBOLS = {"eq": "=", "neq": "≠", "gt": ">", "gte": "≥", "lt": "<", "lte": "≤"}


def rule_said(definition: Mapping[str, Any] | None, most: int = MAX_LINE_CHARACTERS) -> str:
    """A segment definition as a short sentence, its depths left out.

    >>> rule_said({"root": {"any": [{"trait": "plan", "op": "eq", "value": "pro"},
    ...     {"event": "purchase", "op": "gte", "count": 2, "within": "30d"}]}})
    'plan = "pro" or did purchase ≥ 2 times within 30d'
    """
    if definition is None:
        return ELLIPSIS
    return inline(_rule_part(definition.get("root", {}), MAX_RULE_DEPTH), most)


def _rule_part(rule: Any, depth: int) -> str:
    match rule:
        case {} if not rule:
            return "everybody"
        case {"all": list(parts)} | {"any": list(parts)} | {"none": list(parts)}:
            return _rule_parts(next(iter(rule)), parts, depth)
        case {"not": part}:
            return f"not ({_rule_part(part, depth - 1)})" if depth else ELLIPSIS
        case {"event": name}:
            return f"did {_word(name)}{_happened(rule)}"
        case {"trait": name} | {"property": name}:
            return f"{_word(name)} {_compared(rule, 'value')}"
        case {"segment": number}:
            return f"in segment {_word(number)}"
        case {"journey": number}:
            return f"in journey {_word(number)}"
        case {"local": part}:
            return f"local {_word(part)} {_compared(rule, 'value')}"
        case {"bucket": _}:
            return "in a bucket"
        case _:
            return ELLIPSIS


def _rule_parts(join: str, parts: list[Any], depth: int) -> str:
    if not depth:
        return ELLIPSIS
    word = " and " if join == "all" else " or "
    said = [_rule_part(part, depth - 1) for part in parts[:MAX_RULE_PARTS]]
    said += [ELLIPSIS] if len(parts) > MAX_RULE_PARTS else []
    inner = word.join(f"({text})" if word.strip() in text.split() else text for text in said)
    return f"none of ({inner})" if join == "none" else inner or ELLIPSIS


def _compared(leaf: Mapping[str, Any], field: str) -> str:
    op = leaf.get("op")
    sign = _SYMBOLS.get(op, _word(op).replace("_", " ")) if isinstance(op, str) else ELLIPSIS
    return f"{sign} {_value(leaf[field])}" if field in leaf else sign


def _happened(leaf: Mapping[str, Any]) -> str:
    times = ""
    if "count" in leaf and (leaf.get("op"), leaf["count"]) != ("gte", 1):
        times = f" {_compared(leaf, 'count')} times"
    elif "value" in leaf:
        times = f" {_word(leaf.get('aggregate') or '')} {_compared(leaf, 'value')}"
    return times + (f" within {_word(leaf['within'])}" if leaf.get("within") else "")


def _filtered(comparisons: list[dict[str, Any]]) -> str:
    if not comparisons:
        return ""
    more = f" and {ELLIPSIS}" if len(comparisons) > 2 else ""
    return f" with {' and '.join(_rule_part(part, 0) for part in comparisons[:2])}{more}"


def _value(value: object) -> str:
    match value:
        case str():
            return f'"{_word(value)}"'
        case None | bool():
            return {None: "null", True: "true", False: "false"}[value]
        case int() | float():
            return inline(str(value), MAX_WORD_CHARACTERS)
        case list() | tuple():
            more = f", {ELLIPSIS}" if len(value) > MAX_RULE_PARTS else ""
            return ", ".join(map(_flat, value[:MAX_RULE_PARTS])) + more
        case _:
            return ELLIPSIS


def _flat(value: object) -> str:
    return ELLIPSIS if isinstance(value, list | tuple) else _value(value)


def _word(value: object) -> str:
    return inline(str(value), MAX_WORD_CHARACTERS) or ELLIPSIS


def _count(amount: int, unit: str) -> str:
    return f"{amount} {unit}" if amount == 1 or unit == ELLIPSIS else f"{amount} {unit}s"


def inline(text: str, most: int = MAX_LINE_CHARACTERS) -> str:
    """Text that a person typed, fit to stand in a line: white space folded, what cannot be
    printed replaced by "\ufffd", shortened to `most` characters, and isolated where it runs from
    right to left, so that it turns nothing around it."""
    text = shortened(cleaned(text), most)
    return isolated(text)


def cleaned(text: str) -> str:
    """The text in one line, without what turns its surroundings or cannot be printed.

    >>> cleaned("one\\n two \\x00")
    'one two �'
    """
    if text.isascii() and text.isprintable():
        return " ".join(text.split())
    plain = "".join(ch for ch in text if ch not in _TURNING)
    return "".join("\ufffd" if _unprintable(ch) else ch for ch in " ".join(plain.split()))


def _unprintable(ch: str) -> bool:
    return unicodedata.category(ch) in ("Cc", "Cs") or ch in _NOT_XML


def shortened(text: str, most: int) -> str:
    """At most so many characters, the cut shown by "…" and never between a letter and its mark."""
    if len(text) <= most:
        return text
    end = most - len(ELLIPSIS)
    while end > 1 and unicodedata.category(text[end])[0] == "M":
        end -= 1
    return text[:end].rstrip() + ELLIPSIS


def isolated(text: str) -> str:
    """Right-to-left text between two marks that keep its direction to itself."""
    if text.isascii() or text.startswith(_ISOLATE):
        return text
    if any(unicodedata.bidirectional(ch) in ("R", "AL", "AN") for ch in text):
        return f"{_ISOLATE}{text}{_END_ISOLATE}"
    return text
