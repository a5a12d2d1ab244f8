"""Random graphs: valid ones of every kind and setting, and drafts in which anything may be wrong.

A valid graph is made so that it stays valid: every node leads to later ones only, except a wait
that surely ends, which may lead back. Then the nodes are shuffled, since their order means nothing.
"""

from __future__ import annotations

from typing import Any

from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from journeykit_engine.graph import Graph

Json = dict[str, Any]
MAX_NODES = 12  # beside the trigger; enough for joins inside branches inside loops
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")

texts = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=8)
words = st.sampled_from(["plan", "age", "birthday", "خرید", "class", "it's", 'say "hi"', "a.b%"])
events = st.sampled_from(["purchase", "reply", "reply:email", "booked", "ثبت نام", "x" * 80])
ids = st.one_of(
    st.sampled_from(["wait_1h", "exit", "exit_2", "send_push_3", "if_plan", "پایان", "\\N"]),
    texts.filter(lambda text: not text.endswith((":branch", ":jitter"))),
)
wholes = st.integers(-(2**63), 2**63 - 1)
numbers = wholes | st.floats(allow_nan=False, allow_infinity=False)
scalars = texts | st.booleans() | numbers
values = st.recursive(
    st.none() | scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
durations = st.sampled_from(["15m", "1h", "2d", "1w", "5bd"])
windows = st.sampled_from(["90m", "12h", "30d", "2w"])


@st.composite
def tests(draw: DrawFn) -> Json:
    """An operator with its operand, for a trait or a property."""
    some = st.lists(scalars, min_size=1, max_size=3)
    ordered = st.tuples(numbers, numbers).map(sorted)
    operand: dict[str, SearchStrategy[Any]] = {
        **dict.fromkeys(("eq", "neq", "includes"), scalars),
        **dict.fromkeys(("in", "not_in", "includes_any", "includes_all"), some),
        **dict.fromkeys(("gt", "gte", "lt", "lte"), numbers),
        **dict.fromkeys(("contains", "not_contains", "starts_with", "ends_with"), texts),
        **dict.fromkeys(("size_gt", "size_eq", "size_lt"), st.integers(0, 9)),
        "between": ordered,
        **dict.fromkeys(("exists", "not_exists", "is_true", "is_false"), st.none()),
    }
    op = draw(st.sampled_from(sorted(operand)))
    value = draw(operand[op])
    return {"op": op} if value is None else {"op": op, "value": value}


@st.composite
def dated_tests(draw: DrawFn) -> Json:
    """A date operator with its operand."""
    op = draw(
        st.sampled_from(["before", "after", "on_day", "within_last", "after_next", "days_until"])
    )
    if op == "days_until":
        more: Json = {"annual": True} if draw(st.booleans()) else {}
        compare = draw(st.sampled_from(["eq", "gt", "lte"]))
        more |= {"compare": compare} if compare != "eq" else {}
        return {"op": op, "value": draw(st.integers(0, 400)), **more}
    if op in ("before", "after", "on_day"):
        moments = ["2026-06-01"] if op == "on_day" else ["2026-06-01", "2026-06-01T10:00:00Z"]
        return {"op": op, "value": draw(st.sampled_from(moments))}
    return {"op": op, "value": draw(windows)}


def comparisons() -> SearchStrategy[list[Json]]:
    """A filter of an event's properties; it may be empty."""
    test = st.builds(lambda name, test: {"property": name, **test}, words, tests())
    return st.lists(test, max_size=3)


@st.composite
def scopes(draw: DrawFn) -> Json:
    scope: Json = {}
    if draw(st.booleans()):
        scope["within"] = draw(windows)
    if draw(st.booleans()):
        scope["since"] = "entry"
    if where := draw(comparisons()):
        scope["where"] = where
    return scope


@st.composite
def event_leaves(draw: DrawFn) -> Json:
    relation = st.sampled_from(["gte", "gt", "lte", "lt", "eq"])
    body = draw(
        st.sampled_from(["count", "short", "sum", "min", "max", "avg", "distinct", "last_at"])
    )
    leaf: Json = {"event": draw(events)}
    if body == "count":
        leaf |= {"op": draw(relation), "count": draw(st.integers(0, 9))}
    elif body == "last_at":
        leaf |= {"aggregate": draw(st.sampled_from(["last_at", "first_at"])), **draw(dated_tests())}
    elif body != "short":
        leaf |= {"aggregate": body, "property": draw(words)}
        leaf |= {"op": draw(relation), "value": draw(numbers)}
    return {**leaf, **draw(scopes())}


def other_leaves() -> SearchStrategy[Json]:
    asked = st.fixed_dictionaries(
        {"journey": st.integers(1, 99)},
        optional={
            "status": st.sampled_from(["waiting", "completed"]),
            "node": ids,
            "variant": texts,
            "holdout": st.booleans(),
        },
    )
    return st.one_of(
        st.builds(lambda number: {"segment": number}, st.integers(1, 99)),
        asked,
        st.builds(lambda salt: {"bucket": {"salt": salt, "from": 0, "to": 2500}}, texts),
        st.just({"local": "hour", "op": "between", "value": [9, 17]}),
        st.just({"local": "weekday", "op": "in", "value": ["mon", "tue"]}),
        st.just({"local": "month", "op": "eq", "value": 12}),
    )


def rule_bodies() -> SearchStrategy[Json]:
    """A rule of any shape, `{}` and empty groups among them."""
    leaves = st.one_of(
        st.builds(lambda name, test: {"trait": name, **test}, words, tests() | dated_tests()),
        event_leaves(),
        other_leaves(),
        st.just({}),
    )
    groups = st.sampled_from(["all", "any", "none"])
    return st.recursive(
        leaves,
        lambda inner: (
            st.builds(lambda kind, rules: {kind: rules}, groups, st.lists(inner, max_size=3))
            | st.builds(lambda rule: {"not": rule}, inner)
        ),
        max_leaves=5,
    )


def definitions() -> SearchStrategy[Json]:
    """A sound segment definition."""
    return rule_bodies().map(lambda body: {"root": body})


def triggers() -> SearchStrategy[Json]:
    return st.one_of(
        st.builds(lambda e, f: {"kind": "event", "event": e, "filter": f}, events, comparisons()),
        st.builds(
            lambda t, v: {"kind": "attribute_changed", "trait": t, "value": v}, words, values
        ),
        st.builds(
            lambda kind, rule: {"kind": kind, "definition": rule},
            st.sampled_from(["segment_enter", "segment_exit"]),
            definitions(),
        ),
        st.builds(
            lambda rule, hours: {"kind": "segment_periodic", "definition": rule, "hours": hours},
            definitions(),
            st.lists(st.integers(0, 23), min_size=1, max_size=3, unique=True),
        ),
        st.fixed_dictionaries(
            {"kind": st.just("date"), "trait": words},
            optional={
                "offset_days": st.integers(0, 365),
                "annual": st.booleans(),
                "hour": st.integers(0, 23),
                "definition": definitions(),
            },
        ),
        st.just({"kind": "api"}),
    )


def timers() -> SearchStrategy[Json]:
    """Waits that surely end."""
    units = st.sampled_from(["minute", "hour", "day", "week", "business_day"])
    return st.one_of(
        st.builds(
            lambda n, unit: {"kind": "duration", "amount": n, "unit": unit},
            st.integers(1, 99),
            units,
        ),
        st.fixed_dictionaries(
            {"kind": st.just("until_time"), "hour": st.integers(0, 23)},
            optional={
                "minute": st.integers(0, 59),
                "days": st.lists(st.sampled_from(DAYS), min_size=1, max_size=3, unique=True),
            },
        ),
        st.builds(lambda h: {"kind": "until_best_time", "fallback_hour": h}, st.integers(0, 23)),
    )


@st.composite
def sends(draw: DrawFn) -> Json:
    channels = st.sampled_from(["push", "email", "sms", "whatsapp", "in-app", "label", "پیامک"])
    names = draw(st.lists(channels, min_size=1, max_size=3, unique=True))
    media = [{"channel": name, "template_id": draw(st.integers(1, 9))} for name in names]
    is_list = len(media) > 1 or draw(st.booleans())
    more = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "channel_mode": st.sampled_from(["", "all"]),
                "category": texts,
                "priority": st.integers(0, 100),
                "budget": texts,
            },
        )
    )
    return {"kind": "send", **({"channels": media} if is_list else media[0]), **more}


def actions() -> SearchStrategy[Json]:
    tasks = st.sampled_from(["call", "linkedin_message", "linkedin_connect", "custom"])
    return st.one_of(
        sends(),
        st.builds(lambda t, v: {"kind": "update_trait", "trait": t, "value": v}, words, values),
        st.builds(lambda n: {"kind": "add_to_segment", "segment_id": n}, st.integers(1, 99)),
        st.fixed_dictionaries(
            {"kind": st.just("webhook"), "url": st.just("https://example.org/hook?a=1")},
            optional={"headers": st.just({"X-Key": "1"}), "body": values},
        ),
        st.just({"kind": "enter_journey", "journey_id": 77}),
        st.fixed_dictionaries(
            {"kind": st.just("task"), "task": tasks},
            optional={"title": texts, "connected_outcomes": st.lists(texts, max_size=2)},
        ),
    )


def shares() -> SearchStrategy[float]:
    return st.sampled_from([1, 2, 0.5, 60])


class _Wiring:
    """Draws the targets of one node: `ahead` for any way out, `back` for a wait that ends."""

    def __init__(self, draw: DrawFn, ahead: list[str], back: list[str]) -> None:
        self.draw = draw
        self.ahead = ahead
        self.back = back

    def somewhere(self) -> str:
        return self.draw(st.sampled_from([*self.ahead[:4], *self.ahead[-1:]]))

    def maybe(self) -> str:
        return self.somewhere() if self.draw(st.integers(0, 3)) else ""

    def anywhere(self) -> str:
        return self.draw(st.sampled_from([*self.ahead[:3], *self.back, ""]))

    def wait(self) -> Json:
        if not self.draw(st.booleans()):
            return {"wait": self.draw(timers()), "next": self.anywhere()}
        timed = self.draw(st.booleans())
        go = self.anywhere if timed else self.maybe
        wait: Json = {"kind": "for_event", "filter": self.draw(comparisons())}
        if timed:
            wait |= {"timeout": self.draw(durations), "on_timeout": go()}
        if self.draw(st.booleans()):
            return {"wait": {**wait, "event": self.draw(events)}, "next": go()}
        listed = self.draw(st.lists(events, min_size=1, max_size=3, unique=True))
        wait["on"] = {event: go() for event in listed}
        if self.draw(st.booleans()):
            wait["events"] = listed
        falls_on = timed and not wait["on_timeout"]
        return {"wait": wait, "next": go() if falls_on else ""}

    def condition(self) -> Json:
        ways = {"on_true": self.maybe(), "on_false": self.maybe()}
        return {"condition": {"definition": self.draw(definitions()), **ways}}

    def switch(self) -> Json:
        labels = self.draw(st.lists(texts, min_size=1, max_size=3, unique=True))
        cases = [
            {"label": label, "definition": self.draw(definitions()), "next": self.maybe()}
            for label in labels
        ]
        return {"switch": {"cases": cases, "default": self.somewhere()}}

    def split(self) -> Json:
        arms = st.sampled_from(["A", "B", "class", "held", "گروه", "self", "plan b"])
        variants = self.draw(st.lists(arms, min_size=1, max_size=3, unique=True))
        branches = [
            {"variant": variant, "weight": self.draw(shares()), "next": self.maybe()}
            for variant in variants
        ]
        split: Json = {"branches": branches, "holdout_percent": self.draw(st.sampled_from([0, 10]))}
        if split["holdout_percent"]:
            split["on_holdout"] = self.maybe()
        if self.draw(st.booleans()):
            split["salt"] = self.draw(texts | st.just(""))
        return {"split": split}

    def goal(self) -> Json:
        goal = {"event": self.draw(events), "window_days": self.draw(st.integers(0, 30))}
        goal |= {"filter": self.draw(comparisons()), "on_reached": self.maybe()}
        return {"goal": goal, "next": self.maybe()}

    def action(self) -> Json:
        return {"action": self.draw(actions()), "next": self.maybe()}

    def exit(self) -> Json:
        return {}


@st.composite
def settings(draw: DrawFn) -> Json:
    window = {"days": ["mon", "fri"], "from": "08:30", "to": "18:00"}
    fields: Json = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "journey_id": st.integers(1, 50),
                "version": st.integers(1, 50),
                "exit_criteria": definitions(),
                "max_duration_days": st.integers(1, 90),
                "settings": st.fixed_dictionaries(
                    {},
                    optional={
                        "timezone": st.sampled_from(["Asia/Tehran", "America/New_York"]),
                        "send_window": st.sampled_from([window, {**window, "tz": "sender"}]),
                        "jitter": st.just("15m"),
                        "exit_on": st.lists(events, min_size=1, max_size=2, unique=True),
                        "workweek": st.just(["sat", "sun", "mon"]),
                    },
                ),
            },
        )
    )
    gaps: list[Json] = [{}, {"cooldown_hours": 5}, {"reentry_window": "day"}]
    gap = draw(st.sampled_from(gaps))
    return {**fields, **gap, "entry_rule": draw(st.sampled_from(["once", "every_time"]))}


@st.composite
def valid_graphs(draw: DrawFn, max_nodes: int = MAX_NODES) -> Graph:
    """A graph that `check` finds nothing wrong with (there may be warnings)."""
    names = draw(st.lists(ids, min_size=2, max_size=max_nodes + 1, unique=True))
    kinds = st.sampled_from(["wait", "condition", "switch", "split", "action", "goal", "exit"])
    door = {"kind": "trigger", "next": names[1], "trigger": draw(triggers())}
    nodes: list[Json] = [{"id": names[0], **door}]
    for index, name in enumerate(names[1:], 1):
        ahead = names[index + 1 :]
        kind = draw(kinds) if ahead else "exit"
        wiring = _Wiring(draw, ahead, names[1:index])
        nodes.append({"id": name, "kind": kind, **getattr(wiring, kind)()})
    for node in nodes:
        if draw(st.integers(0, 3)) == 0:
            node |= {"label": draw(texts), "x": draw(st.integers(-9, 9)), "y": 0.5}
    order = draw(st.permutations(nodes)) if draw(st.booleans()) else nodes
    return Graph.parse({**draw(settings()), "entry_id": names[0], "nodes": order})


@st.composite
def drafts(draw: DrawFn) -> Graph:
    """A graph that parses and in which a few fields of its nodes are lost or wrong."""
    value = draw(valid_graphs(max_nodes=6)).to_value()
    for _ in range(draw(st.integers(1, 4))):
        node = draw(st.sampled_from(value["nodes"]))
        part = draw(st.sampled_from([part for part in (node, node.get(node["kind"])) if part]))
        field = draw(st.sampled_from(sorted(part)))
        wrongs: list[Any] = [None, "", "nowhere", -1, 0, [], {}]
        wrong = draw(st.sampled_from(wrongs))
        if field == "id":
            part[field] = draw(st.sampled_from([node["id"] for node in value["nodes"]] + [""]))
        elif field not in ("kind", node["kind"]):
            part[field] = wrong if type(wrong) is type(part[field]) else part[field]
            if wrong is None:
                del part[field]
    value["entry_id"] = draw(st.sampled_from([value["entry_id"], "", "nowhere"]))
    graph, problems = Graph.salvage(value)
    assume(graph is not None and not problems)
    assert graph is not None
    return graph
