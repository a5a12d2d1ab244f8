"""What is wrong with one node: its id and its configuration, judged by themselves.

Every function yields all it finds in the order of the node's fields. How the nodes hang together is
judged in `check`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple, assert_never
from urllib.parse import urlsplit

from journeykit_engine import graph, rule, timing
from journeykit_engine.comparison import shown
from journeykit_engine.shape import Problem
from journeykit_engine.strict_json import write_json

MAX_EVENT_CHARACTERS = 200  # of an event's name; it is a key of the event history
MAX_CHANNEL = 50  # characters of a channel's name; it is a part of ids
ALL_CHANNELS = "*"  # what consent calls every channel
MAX_CASES = 50  # of a switch; every case is asked for every person, one after the other
MAX_OFFSET_DAYS = {True: 365, False: 3650}
"""Days before a date, by `annual`: an anniversary is never further away than a year, and ten years
before a single date are more than any journey means."""
ENDINGS = ("timeout", "exit")  # how a wait closes without an event: no event may bear such a name
HASH_SUFFIXES = (":branch", ":jitter")  # what a node's own hashes append to its id
MAX_WEIGHT = 2**63  # of a branch: where whole numbers in JSON end, and far from where floats do
MAX_VALUE_BYTES = 64 * 1024  # of a trait's value as JSON: it is read with its person, every time
RESERVED_TRAIT = "event"  # in a text `event.` is what happened, so such a trait could not be read
HOURS, MINUTES = range(24), range(60)
PERCENT = range(101)  # both ends are allowed, decimals too
PRIORITIES = range(101)

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


class Place(NamedTuple):
    """Where something stands in the document and how a message calls it."""

    node_id: str
    path: str
    noun: str

    def problem(self, code: str, field: str, message: str, fix: str) -> Problem:
        """`message` goes on after the noun; `field` is the path inside this place."""
        path = f"{self.path}.{field}" if field else self.path
        return Problem(code, self.node_id, path, f"{self.noun} {message}", fix)


def place_of(node: graph.Node, index: int) -> Place:
    """The node at this position; an action is called by what it does, the rest by their kind."""
    kind = node.action.kind if node.kind == "action" and node.action else node.kind
    return Place(node.id, f"nodes[{index}]", f"The {kind} node {shown(node.id)}")


def node_problems(document: graph.Graph, node: graph.Node, index: int) -> Iterator[Problem]:
    """Everything wrong with a node as it stands."""
    place = place_of(node, index)
    yield from _id_problems(node, place)
    yield from _mismatches(node, place)
    config = node.config
    if config is None:
        return
    inner = place._replace(path=f"{place.path}.{node.kind}")
    match config:
        case (
            graph.EventTrigger()
            | graph.AttributeChanged()
            | graph.SegmentEnter()
            | graph.SegmentExit()
            | graph.SegmentPeriodic()
            | graph.DateTrigger()
            | graph.ApiTrigger()
        ):
            yield from _trigger_problems(config, inner)
        case graph.DurationWait() | graph.UntilTime() | graph.UntilBestTime() | graph.ForEvent():
            yield from _wait_problems(config, inner)
        case graph.Condition():
            yield from _definition_problems(config.definition, inner, "definition")
        case graph.Switch():
            yield from _switch_problems(config, inner)
        case graph.Split():
            yield from _split_problems(config, inner)
        case graph.Goal():
            yield from event_problems(config.event, inner, "event")
            yield from _goal_problems(config, inner)
        case _:
            yield from _action_problems(config, inner, document)


def _id_problems(node: graph.Node, place: Place) -> Iterator[Problem]:
    if not node.id:
        message = f"The node at position {place.path[6:-1]}, counted from 0, has an empty id."
        yield Problem("BAD_ID", "", f"{place.path}.id", message, "Give the node a name of its own.")
    elif len(node.id) > graph.MAX_ID_CHARACTERS:
        message = f"has an id of {len(node.id)} characters; at most {graph.MAX_ID_CHARACTERS} fit."
        yield place.problem("BAD_ID", "id", message, "Shorten the id.")
    elif CONTROL.search(node.id):
        yield place.problem("BAD_ID", "id", "has a control character in its id.", "Remove it.")
    if node.id.endswith(HASH_SUFFIXES):
        suffix = node.id[node.id.rindex(":") :]
        message = f'has an id that ends in "{suffix}", which would share a hash with another node.'
        yield place.problem("RESERVED_ID", "id", message, "Choose another ending.")


def _mismatches(node: graph.Node, place: Place) -> Iterator[Problem]:
    """Exactly one configuration, named after the kind; an exit has none."""
    given = node.configs
    if node.kind != "exit" and node.kind not in given:
        message = f'has no "{node.kind}" object, which says what the node does.'
        yield place.problem("CONFIG_MISMATCH", node.kind, message, f'Add "{node.kind}": {{…}}.')
    for name in given:
        if name != node.kind:
            message = f'has a "{name}" object, which belongs to a node of the kind "{name}".'
            yield place.problem("CONFIG_MISMATCH", name, message, f'Remove "{name}".')


def event_problems(event: str, place: Place, field: str) -> Iterator[Problem]:
    """What is wrong with a name that is listened for."""
    if not event.strip():
        yield place.problem("NO_EVENT", field, "has no event to listen for.", "Name the event.")
    elif event == graph.RESERVED_EVENT:
        message = f'listens for "{event}", which is reserved for entries.'
        fix = "Listen for an event of your own; to enter people by a call, use an api trigger."
        yield place.problem("RESERVED_EVENT", field, message, fix)
    elif len(event) > MAX_EVENT_CHARACTERS:
        message = f"listens for an event of {len(event)} characters; at most {MAX_EVENT_CHARACTERS}"
        yield place.problem("EVENT_TOO_LONG", field, f"{message} fit.", "Shorten the name.")
    elif CONTROL.search(event):
        message = f"listens for the event {shown(event)}, which holds a control character."
        yield place.problem("BAD_EVENT", field, message, "Remove the character.")


def _trigger_problems(trigger: graph.Trigger, place: Place) -> Iterator[Problem]:
    match trigger:
        case graph.EventTrigger():
            yield from event_problems(trigger.event, place, "event")
            yield from _filter_problems(trigger.filter, place)
        case graph.AttributeChanged():
            yield from _trait_problems(trigger.trait, place)
        case graph.SegmentEnter() | graph.SegmentExit():
            yield from _definition_problems(trigger.definition, place, "definition")
        case graph.SegmentPeriodic():
            yield from _definition_problems(trigger.definition, place, "definition")
            yield from _sweep_problems(trigger.hours, place)
        case graph.DateTrigger():
            yield from _date_problems(trigger, place)
        case graph.ApiTrigger():
            pass
        case _:
            assert_never(trigger)


def _trait_problems(trait: str, place: Place) -> Iterator[Problem]:
    if not trait.strip():
        yield place.problem("NO_TRAIT", "trait", "names no trait.", 'Name the trait in "trait".')


def _write_problems(action: graph.UpdateTrait, place: Place) -> Iterator[Problem]:
    if action.trait == RESERVED_TRAIT:
        message = f'writes the trait "{RESERVED_TRAIT}", a name that texts use for what happened.'
        fix = "Choose another name for the trait."
        yield place.problem("TRAIT_RESERVED", "trait", message, fix)
    size = len(write_json(action.value).encode("utf-8", "surrogatepass"))
    if size > MAX_VALUE_BYTES:
        message = f"writes a value of {size} bytes; at most {MAX_VALUE_BYTES} fit."
        fix = "Keep long texts elsewhere, and write where they lie."
        yield place.problem("VALUE_TOO_LARGE", "value", message, fix)


def _sweep_problems(hours: Sequence[int], place: Place) -> Iterator[Problem]:
    if not hours:
        fix = 'Write for example "hours": [11, 18].'
        yield place.problem("NO_HOURS", "hours", "has no hours, so it never sweeps.", fix)
    for i, hour in enumerate(hours):
        yield from _number_problems("BAD_HOUR", hour, HOURS, place, f"hours[{i}]", "hour")


def _date_problems(trigger: graph.DateTrigger, place: Place) -> Iterator[Problem]:
    yield from _trait_problems(trigger.trait, place)
    days, most = trigger.offset_days, MAX_OFFSET_DAYS[trigger.annual]
    if days < 0:
        message = f"starts {shown(days)} days before the date; an offset only runs before it."
        fix = "Write 0 or more; for a time after the date, use a wait node."
        yield place.problem("NEGATIVE_OFFSET", "offset_days", message, fix)
    elif days > most:
        message = f"starts {shown(days)} days before the date; at most {most} are possible."
        yield place.problem("OFFSET_TOO_LARGE", "offset_days", message, "Write a smaller number.")
    yield from _number_problems("BAD_HOUR", trigger.hour, HOURS, place, "hour", "hour")
    if trigger.definition is not None:
        yield from _definition_problems(trigger.definition, place, "definition")


def _number_problems(
    code: str, value: float, allowed: range, place: Place, field: str, word: str
) -> Iterator[Problem]:
    """`allowed` is a range of whole numbers, both of its ends included."""
    first, last = allowed[0], allowed[-1]
    if not first <= value <= last:
        message = f"has the {word} {shown(value)}; expected {first} to {last}."
        fix = f"Write a number from {first} to {last}."
        yield place.problem(code, field, message, fix)


def _definition_problems(definition: object, place: Place, field: str) -> Iterator[Problem]:
    """A definition that must be there, with the faults of its rule."""
    if definition is None:
        fix = f'Add "{field.rpartition(".")[2]}": {{"root": {{…}}}}; {{"root": {{}}}} is everybody.'
        yield place.problem("BAD_SEGMENT", field, "has no segment definition.", fix)
    else:
        yield from rule_problems(rule.faults(definition), place, field)


def rule_problems(faults: Sequence[rule.Fault], place: Place, field: str) -> Iterator[Problem]:
    """The faults of a definition that stands at `field`."""
    for fault in faults:
        where = f"{field}.{fault.path}" if fault.path else field
        message = f"has a bad segment definition: {fault.message}"
        yield place.problem("BAD_SEGMENT", where, message, fault.fix)


def _filter_problems(tests: graph.Comparisons, place: Place) -> Iterator[Problem]:
    for fault in rule.property_faults(tests, "filter"):
        message = f"has a bad filter: {fault.message}"
        yield place.problem("BAD_SEGMENT", fault.path, message, fault.fix)


def _wait_problems(wait: graph.WaitConfig, place: Place) -> Iterator[Problem]:
    match wait:
        case graph.DurationWait():
            fault = timing.duration_fault(wait.amount, wait.unit)
            if fault is not None:
                field = "amount" if wait.unit in timing.MAX_AMOUNTS else "unit"
                yield _told(place, "BAD_DURATION", field, fault)
        case graph.UntilTime():
            yield from _until_time_problems(wait, place)
        case graph.UntilBestTime():
            yield from _best_time_problems(wait.fallback_hour, place)
        case graph.ForEvent():
            yield from _event_wait_problems(wait, place)
            yield from _filter_problems(wait.filter, place)
            yield from duration_problems(wait.timeout, place, "timeout")
        case _:
            assert_never(wait)


def _told(place: Place, code: str, field: str, fault: str) -> Problem:
    wrong, fix = wrong_and_fix(fault)
    message = f"{place.noun}: {wrong[:1].lower()}{wrong[1:]}."
    return Problem(code, place.node_id, f"{place.path}.{field}", message, fix)


def wrong_and_fix(fault: str) -> tuple[str, str]:
    """A sentence of `timing` in two: what is wrong, without a full stop, and what to do. The last
    semicolon parts them: an earlier one stands in a text that the sentence repeats.

    >>> wrong_and_fix('"5; bd" is not a duration; write it as "5bd".')
    ('"5; bd" is not a duration', 'Write it as "5bd".')
    """
    wrong, _, fix = fault.rpartition("; ")
    return wrong, fix[:1].upper() + fix[1:]


def duration_problems(text: str, place: Place, field: str) -> Iterator[Problem]:
    """What is wrong with an optional duration text; "" is none."""
    if text:
        try:
            timing.parse_duration(text)
        except timing.BadDuration as fault:
            yield _told(place, "BAD_DURATION", field, str(fault))


def _until_time_problems(wait: graph.UntilTime, place: Place) -> Iterator[Problem]:
    if wait.hour is None:
        fix = 'Write "hour", a number from 0 to 23.'
        yield place.problem("BAD_HOUR", "hour", "has no hour to wait for.", fix)
    else:
        yield from _number_problems("BAD_HOUR", wait.hour, HOURS, place, "hour", "hour")
    yield from _number_problems("BAD_HOUR", wait.minute, MINUTES, place, "minute", "minute")
    if wait.days is not None:
        for fault in timing.day_faults(wait.days):
            yield _told(place, "BAD_HOUR", "days", fault)


def _best_time_problems(hour: int | None, place: Place) -> Iterator[Problem]:
    if hour is None:
        message = "has no hour for people of whom too little is known."
        fix = 'Write "fallback_hour", a number from 0 to 23.'
        yield place.problem("NO_FALLBACK_HOUR", "fallback_hour", message, fix)
    else:
        yield from _number_problems("BAD_HOUR", hour, HOURS, place, "fallback_hour", "hour")


def _event_wait_problems(wait: graph.ForEvent, place: Place) -> Iterator[Problem]:
    if wait.event and wait.on is not None:
        message = 'has both "event" and "on"; they are two ways to say one thing.'
        yield place.problem("BAD_EVENT", "event", message, 'Keep "on" and remove "event".')
    elif wait.event:
        yield from _awaited_problems(wait.event, place, "event")
    elif not wait.on and not wait.events:
        fix = 'Name one event in "event", or several in "on", each with the node it leads to.'
        yield place.problem("NO_EVENT", "event", "has no event to wait for.", fix)
    for event in wait.on or ():
        yield from _awaited_problems(event, place, f"on.{event}")
    if wait.events is not None:
        yield from _listing_problems(wait, wait.events, place)


def _awaited_problems(event: str, place: Place, field: str) -> Iterator[Problem]:
    if event in ENDINGS:
        message = f'waits for an event called "{event}", which is how a wait ends without one.'
        yield place.problem("BAD_EVENT", field, message, "Give the event another name.")
    else:
        yield from event_problems(event, place, field)


def _listing_problems(wait: graph.ForEvent, listed: list[str], place: Place) -> Iterator[Problem]:
    wired = dict(wait.on or {}) if wait.on is not None or not wait.event else {wait.event: ""}
    names = set(listed)
    for i, event in enumerate(listed):
        if event not in wired:
            message = f"lists the event {shown(event)}, which leads nowhere."
            fix = f"Wire {shown(event)} to a node, or take it off the list."
            yield place.problem("BAD_EVENT", f"events[{i}]", message, fix)
    for event in wired:
        if event not in names:
            message = f'wires the event {shown(event)}, which its list "events" leaves out.'
            fix = f'Add {shown(event)} to "events", or remove the list.'
            yield place.problem("BAD_EVENT", "events", message, fix)


def _switch_problems(switch: graph.Switch, place: Place) -> Iterator[Problem]:
    if not switch.cases:
        fix = "Add at least one case, or wire the default straight to the node before."
        yield place.problem("NO_BRANCHES", "cases", "has no cases.", fix)
    if len(switch.cases) > MAX_CASES:
        message = f"has {len(switch.cases)} cases; at most {MAX_CASES} are allowed."
        yield place.problem("TOO_MANY_CASES", "cases", message, "Split it into two switches.")
    seen: set[str] = set()
    for i, case in enumerate(switch.cases):
        if case.label and case.label in seen:
            message = f"has two cases with the label {shown(case.label)}."
            fix = "Give each case a label of its own: reports tell the ways apart by it."
            yield place.problem("DUPLICATE_LABEL", f"cases[{i}].label", message, fix)
        seen.add(case.label)
        yield from _definition_problems(case.definition, place, f"cases[{i}].definition")
    if not switch.default:
        message = "has no default, so people who match no case would leave the journey here."
        fix = 'Wire "default" to a node, for example to an exit.'
        yield place.problem("NO_DEFAULT", "default", message, fix)


def _split_problems(split: graph.Split, place: Place) -> Iterator[Problem]:
    if not split.branches:
        fix = 'Add at least one branch, as {"weight": 1, "next": "…"}.'
        yield place.problem("NO_BRANCHES", "branches", "has no branches.", fix)
    weights = [branch.weight for branch in split.branches]
    for i, weight in enumerate(weights):
        if weight < 0:
            message = f"has a branch of the weight {shown(weight)}; a share cannot be negative."
            fix = "Write 0 or more; 0 gives the branch nobody."
            yield place.problem("NEGATIVE_WEIGHT", f"branches[{i}].weight", message, fix)
    if weights and all(weight == 0 for weight in weights):
        message = "has weights that sum to 0, so nobody could be given a branch."
        fix = "Give at least one branch a weight above 0."
        yield place.problem("ZERO_WEIGHTS", "branches", message, fix)
    for i, weight in enumerate(weights):
        if not weight <= MAX_WEIGHT and not weight < 0:
            message = (
                f"has a branch of the weight {shown(weight)}; no share needs to be that large."
            )
            fix = "Write small numbers such as 1 and 2."
            yield place.problem("BAD_NUMBER", f"branches[{i}].weight", message, fix)
    for i, branch in enumerate(split.branches):
        if branch.variant == "holdout":
            message = 'has a branch of the variant "holdout", the word under which held-out people'
            fix = "Give the variant another name."
            path = f"branches[{i}].variant"
            yield place.problem("BAD_VARIANT", path, f"{message} are counted.", fix)
    percent = split.holdout_percent
    yield from _number_problems(
        "BAD_HOLDOUT", percent, PERCENT, place, "holdout_percent", "holdout percentage"
    )


def _goal_problems(goal: graph.Goal, place: Place) -> Iterator[Problem]:
    days = range(timing.MAX_AMOUNTS["day"] + 1)
    word = "window in days"
    yield from _number_problems("BAD_DURATION", goal.window_days, days, place, "window_days", word)
    yield from _filter_problems(goal.filter, place)


def _action_problems(
    action: graph.Action, place: Place, document: graph.Graph
) -> Iterator[Problem]:
    match action:
        case graph.Send():
            yield from _send_problems(action, place)
            yield from _never_open_problems(action, place, document.settings.send_window)
        case graph.UpdateTrait():
            yield from _trait_problems(action.trait, place)
            yield from _write_problems(action, place)
        case graph.AddToSegment():
            if action.segment_id is None or action.segment_id <= 0:
                fix = 'Write the number of the segment in "segment_id".'
                yield place.problem("NO_SEGMENT", "segment_id", "names no segment.", fix)
        case graph.Webhook():
            yield from _url_problems(action.url, place)
            yield from _header_problems(action.headers, place)
        case graph.EnterJourney():
            yield from _jump_problems(action.journey_id, place, document.journey_id)
        case graph.Task():
            pass
        case _:
            assert_never(action)


def _send_problems(send: graph.Send, place: Place) -> Iterator[Problem]:
    if send.channels and (send.channel or send.template_id):
        fix = 'Move them into "channels", or remove "channels".'
        message = 'has "channels", and a "channel" or "template_id" beside them that is lost.'
        yield place.problem("CONFIG_MISMATCH", "channel", message, fix)
    seen: set[str] = set()
    for i, medium in enumerate(send.media):
        at = f"channels[{i}]." if send.channels else ""
        if not medium.channel.strip():
            fix = 'Name it in "channel", for example "email".'
            yield place.problem("NO_CHANNEL", f"{at}channel", "has no channel to send by.", fix)
        elif medium.channel == ALL_CHANNELS or medium.channel != plain_channel(medium.channel):
            message = f"names the channel {shown(medium.channel)}, which is no plain name."
            fix = f"Write it in small letters without spaces around, {MAX_CHANNEL} at most."
            yield place.problem("BAD_CHANNEL", f"{at}channel", message, fix)
        elif medium.channel in seen:
            message = f"names the channel {shown(medium.channel)} twice."
            fix = "Keep one of the two: their messages would share an id."
            yield place.problem("DUPLICATE_CHANNEL", f"{at}channel", message, fix)
        seen.add(medium.channel)
        if not medium.template_id or medium.template_id < 0:
            fix = 'Choose a template and write its number in "template_id".'
            yield place.problem("NO_TEMPLATE", f"{at}template_id", "has no text to send", fix)
    yield from _number_problems(
        "BAD_PRIORITY", send.priority, PRIORITIES, place, "priority", "priority"
    )


def plain_channel(name: str) -> str:
    """A channel as rules, consent and addresses know it: "SMS" must not pass by what is said of
    "sms"."""
    return name.strip().lower()[:MAX_CHANNEL]


def _never_open_problems(
    send: graph.Send, place: Place, window: graph.SendWindow | None
) -> Iterator[Problem]:
    """Text messages have a fixed window besides; on one clock the two must share a minute."""
    if window is None or window.tz != "contact":
        return
    if timing.window_faults(window.days, window.from_, window.to):
        return
    ours = timing.window("UTC", window.days, window.from_, window.to)
    if not timing.never_meet([ours, timing.sms_window("UTC")]):
        return
    for i, medium in enumerate(send.media):
        if medium.channel == "sms":
            field = f"channels[{i}].channel" if send.channels else "channel"
            message = "can never send: the send window has no minute between 08:00 and 21:00."
            fix = "Text messages go out from 08:00 to 21:00 only; widen the send window."
            yield place.problem("WINDOW_NEVER_OPENS", field, message, fix)


def _url_problems(url: str, place: Place) -> Iterator[Problem]:
    if not url:
        fix = 'Write the address in "url", as "https://example.com/hook".'
        yield place.problem("NO_URL", "url", "has no address to call.", fix)
        return
    fault = url_fault(url)
    if fault is not None:
        message = f"has the address {shown(_without_password(url))}, {fault[0]}."
        yield place.problem("BAD_URL", "url", message, fault[1])


def url_fault(url: str) -> tuple[str, str] | None:
    """What is wrong with an address, and what to do; None for one that can be called. Where it
    leads, and whether that is a private place, is asked when it is called.

    >>> url_fault("ftp://example.com/x")
    ('which is no http or https address', 'Write an address that begins with "https://".')
    """
    if CONTROL.search(url) or any(each.isspace() for each in url) or "\\" in url:
        return "which holds a space, a backslash or a control character", "Percent-encode it."
    try:
        parts = urlsplit(url)
        host, user, _ = parts.hostname, parts.username, parts.port
    except ValueError:
        return "which cannot be read", 'Write an address such as "https://example.com/hook".'
    if parts.scheme not in ("http", "https"):
        return "which is no http or https address", 'Write an address that begins with "https://".'
    if not host:
        return "which names no host", 'Write an address such as "https://example.com/hook".'
    if user is not None:
        return "which holds a user name", 'Send credentials in a header, as "Authorization".'
    return None


def _without_password(url: str) -> str:
    """A message must not repeat a secret."""
    return re.sub(r"//[^/?#]*@", "//…@", url)


def _header_problems(headers: dict[str, str], place: Place) -> Iterator[Problem]:
    for name, value in headers.items():
        if not HEADER_NAME.fullmatch(name):
            message = f"has a header with the name {shown(name)}, which HTTP does not allow."
            fix = "Use letters, digits and hyphens."
            yield place.problem("BAD_HEADER", f"headers.{name}", message, fix)
        if re.search(r"[\x00-\x08\x0a-\x1f\x7f]", value):
            message = f"has a line break or control character in the header {shown(name)}."
            yield place.problem("BAD_HEADER", f"headers.{name}", message, "Write it on one line.")


def _jump_problems(target: int | None, place: Place, own: int) -> Iterator[Problem]:
    if target is None or target <= 0:
        fix = 'Write the number of the journey in "journey_id".'
        yield place.problem("NO_JOURNEY", "journey_id", "names no journey to enter.", fix)
    elif target == own:
        message = f"enters its own journey, {target}."
        fix = "Name another journey; to repeat this one, lead back to a node before a wait."
        yield place.problem("ENTERS_ITSELF", "journey_id", message, fix)
