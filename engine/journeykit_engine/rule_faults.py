"""Everything that is wrong with a segment definition, in document order, each with its fix.

The walk keeps its own stack, so depth is only a number, and it stops where a limit is passed, so
its time is linear in the document. Any value may be given, none makes it raise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

from journeykit_engine import comparison, moment, timing
from journeykit_engine.comparison import is_count, is_operand_number, nearest, shown
from journeykit_engine.history import Aggregate
from journeykit_engine.instance import Status
from journeykit_engine.leaf import BUCKETS

MAX_DEPTH = 32
"""Rules inside rules: deeper than a person can read, and shallow enough for every later pass."""

MAX_LEAVES = 500
"""Rules without rules inside: each may become one condition of one SQL statement."""

GROUPS = ("all", "any", "none", "not")
LEAVES = ("trait", "event", "segment", "journey", "bucket", "local")
KINDS = (*GROUPS, *LEAVES)

VALUE_AGGREGATES: tuple[str, ...] = get_args(Aggregate)
TIME_AGGREGATES = ("last_at", "first_at")
STATUSES: tuple[str, ...] = get_args(Status)

ORDERED = ("eq", "neq", "in", "not_in", "gt", "gte", "lt", "lte", "between")
UNORDERED = ("eq", "neq", "in", "not_in")

PARTS: Mapping[str, tuple[Sequence[str], Sequence[object], str]] = MappingProxyType(
    {
        "hour": (ORDERED, range(24), "whole hours from 0 to 23"),
        "weekday": (UNORDERED, timing.DAY_NAMES, 'the names "mon" to "sun"'),
        "month": (ORDERED, range(1, 13), "whole months from 1 to 12"),
    }
)

MEANT: Mapping[object, str] = MappingProxyType(
    {
        **dict.fromkeys(("=", "==", "is", "equal", "equals"), "eq"),
        **dict.fromkeys(("!=", "<>", "ne", "is_not", "not_equals"), "neq"),
        ">": "gt",
        ">=": "gte",
        "<": "lt",
        "<=": "lte",
        "nin": "not_in",
        "is_set": "exists",
        "is_not_set": "not_exists",
        "like": "contains",
    }
)
"""What other tools call our operators, too unlike ours to be found by likeness."""

Body = Mapping[Any, Any]


class Fault(NamedTuple):
    """Something wrong with a definition: where (`root.all[2].op`), what, and what to do."""

    path: str
    message: str
    fix: str


def faults(definition: object) -> list[Fault]:
    """Every fault of `{"root": rule}`, [] when it is sound.

    Past MAX_LEAVES leaves the rest is not looked at, and what lies below MAX_DEPTH is told once.

    >>> [fault.path for fault in faults({"root": {"all": [{}, {"trait": "plan", "op": "is"}]}})]
    ['root.all[1].op']
    """
    if not isinstance(definition, dict):
        message = f'A segment definition is an object with a "root", not {shown(definition)}.'
        return [Fault("", message, 'Write {"root": {}} for everybody.')]
    found = list(_unknown_fields(definition, ("root",), "", "a segment definition"))
    if definition.get("root") is None:
        message = 'The segment definition has no "root".'
        return [Fault("root", message, 'Write {"root": {}} for everybody.'), *found]
    return found + _rule_faults(definition["root"])


def _rule_faults(root: object) -> list[Fault]:
    found: list[Fault] = []
    stack = [(root, "root", 1)]
    leaves, too_deep = 0, False
    while stack and leaves <= MAX_LEAVES:
        rule, path, depth = stack.pop()
        if depth > MAX_DEPTH:
            found += [] if too_deep else [_too_deep(path)]
            leaves, too_deep = leaves + 1, True
            continue
        found += _node_faults(rule, path)
        children = _children(rule, path)
        leaves += not children
        stack += [(child, below, depth + 1) for child, below in reversed(children)]
    return [_too_many(), *found] if leaves > MAX_LEAVES else found


def _too_deep(path: str) -> Fault:
    message = f"The rule is nested more than {MAX_DEPTH} levels deep."
    return Fault(path, message, 'Join nested "all" or "any" lists into one list.')


def _too_many() -> Fault:
    message = f"The rule has more than {MAX_LEAVES} leaves."
    return Fault("root", message, 'Join leaves that compare one trait with "in", or use a segment.')


def _children(rule: object, path: str) -> list[tuple[object, str]]:
    if not isinstance(rule, dict):
        return []
    below: list[tuple[object, str]] = []
    for kind in GROUPS:
        body = rule.get(kind)
        if kind == "not" and kind in rule:
            below.append((body, f"{path}.not"))
        elif isinstance(body, list):
            below += [(child, f"{path}.{kind}[{index}]") for index, child in enumerate(body)]
    return below


def _node_faults(rule: object, path: str) -> Iterator[Fault]:
    """The faults of one rule, those of the rules inside it left out."""
    if not isinstance(rule, dict):
        fix = 'Write a leaf such as {"trait": "plan", "op": "exists"}, or {} for everybody.'
        yield Fault(path, f"A rule is an object, not {shown(rule)}.", fix)
        return
    kinds = [kind for kind in KINDS if kind in rule]
    if len(kinds) > 1:
        both = " and ".join(f'"{kind}"' for kind in kinds)
        fix = 'Put each into a rule of its own and join them with "all".'
        yield Fault(path, f"The rule asks several things at once: {both}.", fix)
    elif kinds:
        yield from _FAULTS[kinds[0]](rule, path)
    elif rule:
        yield _no_kind(rule, path)


def _no_kind(rule: Body, path: str) -> Fault:
    known = ", ".join(f'"{kind}"' for kind in KINDS)
    meant = next(((key, near) for key in rule if (near := nearest(key, list(KINDS)))), None)
    fix = f"Write one of {known}."
    if meant is not None:
        fix = f'Did you mean "{meant[1]}" instead of {shown(meant[0])}? {fix}'
    return Fault(path, "The rule does not say what it asks.", fix)


def _list_faults(rule: Body, path: str) -> Iterator[Fault]:
    (kind,) = (kind for kind in GROUPS if kind in rule)
    yield from _unknown_fields(rule, (kind,), path, f'"{kind}"')
    if not isinstance(rule[kind], list):
        message = f'"{kind}" takes a list of rules, not {shown(rule[kind])}.'
        yield Fault(f"{path}.{kind}", message, "Put the rules between [ and ].")


def _not_faults(rule: Body, path: str) -> Iterator[Fault]:
    yield from _unknown_fields(rule, ("not",), path, '"not"')


def _trait_faults(rule: Body, path: str) -> Iterator[Fault]:
    yield from _name_faults(rule, "trait", path)
    yield from _test_faults(rule, path, (*comparison.OPERATORS, *moment.OPERATORS))
    yield from _unknown_fields(rule, ("trait", *_test_fields(rule)), path, "a trait")


def _event_faults(rule: Body, path: str) -> Iterator[Fault]:
    yield from _name_faults(rule, "event", path)
    aggregate = rule.get("aggregate")
    fields: tuple[str, ...] = ("event", "aggregate", "within", "since", "where")
    if "aggregate" not in rule:
        fields += ("op", "count")
        yield from _count_faults(rule, path)
    elif aggregate in TIME_AGGREGATES:
        fields += _test_fields(rule)
        yield from _test_faults(rule, path, tuple(moment.OPERATORS))
    elif aggregate in VALUE_AGGREGATES:
        fields += ("property", "op", "value")
        yield from _value_faults(rule, path)
    else:
        known = (*VALUE_AGGREGATES, *TIME_AGGREGATES)
        yield _not_among(aggregate, known, f"{path}.aggregate", "aggregate")
        fields += ("property", "op", "value", "annual", "compare")
    yield from _scope_faults(rule, path)
    yield from _unknown_fields(rule, fields, path, "an event")


def _count_faults(rule: Body, path: str) -> Iterator[Fault]:
    yield from _operator_faults({"op": "gte", **rule}, path, moment.COMPARES)
    if not is_count(rule.get("count", 1)):
        message = f'"count" is a whole number from 0 up, not {shown(rule["count"])}.'
        yield Fault(f"{path}.count", message, "Write for example 1.")


def _value_faults(rule: Body, path: str) -> Iterator[Fault]:
    yield from _name_faults(rule, "property", path)
    yield from _operator_faults(rule, path, moment.COMPARES)
    if not is_operand_number(rule.get("value")):
        message = f"An aggregate is compared with a number, not {shown(rule.get('value'))}."
        yield Fault(f"{path}.value", message, "Write for example 100.")


def _scope_faults(rule: Body, path: str) -> Iterator[Fault]:
    if "within" in rule and not moment.is_window(rule["within"]):
        message, fix = moment.operand_fault("within_last", rule["within"]) or ("", "")
        message = message.replace('The operator "within_last"', '"within"')
        yield Fault(f"{path}.within", message, fix)
    if "since" in rule and rule["since"] != "entry":
        message = f'"since" can only be "entry", not {shown(rule["since"])}.'
        yield Fault(
            f"{path}.since", message, 'Write "entry", or use "within" for a length of time.'
        )
    if "where" in rule:
        yield from property_faults(rule["where"], f"{path}.where")


def property_faults(tests: object, path: str) -> list[Fault]:
    """Every fault of a list of `{"property", "op", "value"}`, `path` being where the list stands.

    The operators are those of a trait's values and lists. Those of dates are left out: an event is
    judged once, when it arrives, and has no account's zone or later day to be looked at from.
    """
    if not isinstance(tests, (list, tuple)):
        message = f"A filter is a list of property tests, not {shown(tests)}."
        return [Fault(path, message, 'Write [{"property": "amount", "op": "gt", "value": 50}].')]
    found: list[Fault] = []
    for index, test in enumerate(tests):
        found += _property_faults(test, f"{path}[{index}]")
    return found


def _property_faults(test: object, path: str) -> Iterator[Fault]:
    if not isinstance(test, Mapping):
        fix = 'Write {"property": "amount", "op": "gt", "value": 50}.'
        yield Fault(path, f"A property test is an object, not {shown(test)}.", fix)
        return
    yield from _name_faults(test, "property", path)
    yield from _test_faults(test, path, tuple(comparison.OPERATORS))
    yield from _unknown_fields(test, ("property", "op", "value"), path, "a property test")


def _segment_faults(rule: Body, path: str) -> Iterator[Fault]:
    yield from _id_faults(rule, "segment", path)
    yield from _unknown_fields(rule, ("segment",), path, "a segment")


def _journey_faults(rule: Body, path: str) -> Iterator[Fault]:
    yield from _id_faults(rule, "journey", path)
    if "status" in rule and rule["status"] not in STATUSES:
        yield _not_among(rule["status"], STATUSES, f"{path}.status", "status")
    for key in ("node", "variant"):
        yield from _name_faults(rule, key, path) if key in rule else ()
    if "holdout" in rule and not isinstance(rule["holdout"], bool):
        message = f'"holdout" is true or false, not {shown(rule["holdout"])}.'
        yield Fault(f"{path}.holdout", message, "Write true or false without quotes.")
    fields = ("journey", "status", "node", "variant", "holdout")
    yield from _unknown_fields(rule, fields, path, "a journey")


def _bucket_faults(rule: Body, path: str) -> Iterator[Fault]:
    yield from _unknown_fields(rule, ("bucket",), path, "a bucket")
    bucket, path = rule["bucket"], f"{path}.bucket"
    if not isinstance(bucket, dict):
        fix = 'Write {"salt": "x", "from": 0, "to": 2500}.'
        yield Fault(path, f"A bucket is an object, not {shown(bucket)}.", fix)
        return
    yield from _name_faults(bucket, "salt", path)
    yield from _edge_faults(bucket, path)
    yield from _unknown_fields(bucket, ("salt", "from", "to"), path, "a bucket")


def _edge_faults(bucket: Body, path: str) -> Iterator[Fault]:
    wrong = [k for k in ("from", "to") if not is_count(bucket.get(k)) or bucket[k] > BUCKETS]
    for key in wrong:
        message = f'"{key}" is a whole number from 0 to {BUCKETS}, not {shown(bucket.get(key))}.'
        yield Fault(
            f"{path}.{key}", message, "Write basis points: 2500 is a quarter of all people."
        )
    if not wrong and bucket["from"] >= bucket["to"]:
        message = f"The bucket from {bucket['from']} to {bucket['to']} holds nobody."
        yield Fault(f"{path}.to", message, 'Make "to" larger than "from": it is not inside.')


def _local_faults(rule: Body, path: str) -> Iterator[Fault]:
    part = rule["local"]
    if not isinstance(part, str) or part not in PARTS:
        yield _not_among(part, tuple(PARTS), f"{path}.local", "part of the local time")
        return
    operators, values, wanted = PARTS[part]
    found = [*_test_faults(rule, path, operators)]
    yield from found
    if not found and not all(_is_among(item, values) for item in _items(rule["value"])):
        message = f"The local {part} is compared with {wanted}, not {shown(rule['value'])}."
        yield Fault(f"{path}.value", message, f"Write for example {_example(values)}.")
    yield from _unknown_fields(rule, ("local", "op", "value"), path, "a local time")


def _items(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else [value]


def _is_among(item: object, values: Sequence[object]) -> bool:
    return isinstance(item, (int, str)) and not isinstance(item, bool) and item in values


def _example(values: Sequence[object]) -> str:
    return shown(values[len(values) // 2])


_FAULTS: Mapping[str, Callable[[Body, str], Iterable[Fault]]] = MappingProxyType(
    {
        "all": _list_faults,
        "any": _list_faults,
        "none": _list_faults,
        "not": _not_faults,
        "trait": _trait_faults,
        "event": _event_faults,
        "segment": _segment_faults,
        "journey": _journey_faults,
        "bucket": _bucket_faults,
        "local": _local_faults,
    }
)


def _test_fields(rule: Body) -> tuple[str, ...]:
    counted = rule.get("op") in moment.COUNTED
    return ("op", "value", "annual", "compare") if counted else ("op", "value")


def _test_faults(body: Body, path: str, operators: Sequence[str]) -> Iterator[Fault]:
    """The operator, its operand, and what days_until and days_since take besides."""
    found = [*_operator_faults(body, path, operators)]
    yield from found
    if found:
        return
    op, value = body["op"], body.get("value")
    noun = moment if op in moment.OPERATORS else comparison
    fault = noun.operand_fault(op, value)
    if fault is not None and "value" not in body:
        yield Fault(f"{path}.value", f'The operator "{op}" has no "value".', fault[1])
    elif fault is not None:
        yield Fault(f"{path}.value", *fault)
    if op in moment.COUNTED:
        yield from _counted_faults(body, path)


def _counted_faults(body: Body, path: str) -> Iterator[Fault]:
    if not isinstance(body.get("annual", False), bool):
        message = f'"annual" is true or false, not {shown(body["annual"])}.'
        yield Fault(f"{path}.annual", message, "Write true for a birthday, false for a single day.")
    if body.get("compare", "eq") not in moment.COMPARES:
        yield _not_among(body["compare"], moment.COMPARES, f"{path}.compare", "comparison")


def _operator_faults(body: Body, path: str, operators: Sequence[str]) -> Iterator[Fault]:
    op = body.get("op")
    if "op" not in body:
        fix = f"Write one of {_listed(operators)}."
        yield Fault(f"{path}.op", 'There is no operator: "op" is missing.', fix)
    elif op not in operators:
        yield _not_among(op, operators, f"{path}.op", "operator")


def _not_among(given: object, known: Sequence[str], path: str, noun: str) -> Fault:
    meant = MEANT.get(given) if isinstance(given, str) else None
    near = meant if meant in known else nearest(given, list(known))
    fix = f'Did you mean "{near}"? ' if near else ""
    message = f"There is no {noun} {shown(given)} here."
    return Fault(path, message, f"{fix}Write one of {_listed(known)}.")


def _listed(words: Sequence[str]) -> str:
    return ", ".join(f'"{word}"' for word in words)


def _name_faults(body: Body, key: str, path: str) -> Iterator[Fault]:
    if key not in body:
        yield Fault(f"{path}.{key}", f'"{key}" is missing.', f'Write "{key}" with a name.')
    elif not isinstance(body[key], str) or not body[key]:
        message = f'"{key}" is a text of at least one character, not {shown(body[key])}.'
        yield Fault(f"{path}.{key}", message, "Write the name between quotes.")


def _id_faults(body: Body, key: str, path: str) -> Iterator[Fault]:
    if not is_count(body[key]) or body[key] == 0:
        message = f'"{key}" is the number of a {key}, from 1 up, not {shown(body[key])}.'
        yield Fault(f"{path}.{key}", message, "Write the number without quotes.")


def _unknown_fields(body: Body, known: Sequence[str], path: str, owner: str) -> Iterator[Fault]:
    for key in body:
        if key in known:
            continue
        near = nearest(key, [word for word in known if word not in body])
        fix = f'Did you mean "{near}"?' if near else f"Remove it; known are {_listed(known)}."
        where = f"{path}.{key}".lstrip(".") if isinstance(key, str) else path
        yield Fault(where, f"{shown(key)} is not a field of {owner}.", fix)
