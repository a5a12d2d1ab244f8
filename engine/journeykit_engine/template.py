"""Messages with a person's values in them: Liquid, strict, and without a clock.

Traits stand at the top level (`{{ rank }}`), what the causing event carried under `event.`
(`{{ event.rank }}`), and neither ever answers for the other. A message that would
be printed with a hole in it is not rendered at all: the answer is the names that had no value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any, NamedTuple, overload

from whenever import Date, Instant, OffsetDateTime, PlainDateTime, Time

MAX_EVENT_PROPERTIES = 32
"""Properties of an event that travel to its message."""

MAX_PROPERTY_BYTES = 512
"""UTF-8 bytes of one such value; a longer one is dropped, for a cut one would stop halfway."""

MAX_TEXT_BYTES = 256 * 1024
"""Bytes of one text of a template; mail programs cut a message off after about 100 KiB."""

MAX_OUTPUT_BYTES = 1024 * 1024
"""Bytes one rendered text may have, so that a loop cannot fill the memory."""

MAX_LOOPS = 10_000
"""Turns of all loops of one text together; about 0.1 s."""

MAX_LOCAL_BYTES = 256 * 1024
"""Bytes of everything a text assigns or captures; doubling a text 18 times passes it."""

MAX_GROWTH_BYTES = 16 * 1024 * 1024
"""What `replace` and `join` may make at most: they multiply the lengths of two texts."""

MAX_WORK = 2_000_000
"""Characters and elements of all values that one text looks up and puts through filters; well below
0.5 s. A filter that compares every element with every other, `uniq`, counts for their square."""


class BadTemplate(ValueError):
    """A text that is no Liquid template, or one that breaks a limit while it is rendered."""


class Rendered(NamedTuple):
    """Every text of the template (subject, body, …) with its values filled in."""

    texts: dict[str, str]


class Missing(NamedTuple):
    """Why nothing was rendered: all names without a value, sorted, like ("event.rank", "name")."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Template:
    """Parsed texts by name, and the variables they read, sorted (`event.rank`, `plan`)."""

    texts: Mapping[str, Any]
    names: tuple[str, ...]


def parse_template(texts: Mapping[str, str]) -> Template:
    """The texts made ready for `render`; BadTemplate names the text, the fault and the line.

    >>> parse_template({"subject": "{{ event.rival }} passed you", "body": "Hi {{ name }}"}).names
    ('event.rival', 'name')
    """
    parsed = {name: _parsed(name, text) for name, text in texts.items()}
    read = {variable for template in parsed.values() for variable in _reads(template)}
    return Template(parsed, tuple(sorted(read)))


def render(
    template: Template, traits: Mapping[str, Any], event: Mapping[str, Any] | None
) -> Rendered | Missing:
    """The texts for one person, or every name that had no value where one was needed.

    null and "" are no value, 0 and false are. A name is needed where it is printed, looped over
    or computed with; `default` fills in for it, and asking about it (`{% if name %}`) is no need:
    the answer is no. `event` is what `event_values` let travel, None where no event caused the
    step. A value is never read as a template itself.

    >>> hello = parse_template({"body": "Hi {{ name }}, you are {{ event.rank }}."})
    >>> render(hello, {"name": "Sara"}, {"rank": 4})
    Rendered(texts={'body': 'Hi Sara, you are 4.'})
    >>> render(hello, {"name": ""}, None)
    Missing(names=('event.rank', 'name'))
    """
    values = {name: value for name, value in traits.items() if name != "event"}
    if event:
        values["event"] = event
    needed: set[str] = set()
    texts = {
        name: _rendered(name, parsed, values, needed) for name, parsed in template.texts.items()
    }
    return Missing(tuple(sorted(needed))) if needed else Rendered(texts)


def event_values(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The properties that travel with an event to its message.

    Those over 512 bytes drop out first, then the first 32 by code point stay, so that a second
    try carries the same. What is no text counts as its compact JSON.

    >>> event_values({"rank": 4, "essay": "x" * 513})
    {'rank': 4}
    """
    short = [name for name, value in properties.items() if _size(value) <= MAX_PROPERTY_BYTES]
    return {name: properties[name] for name in sorted(short)[:MAX_EVENT_PROPERTIES]}


def _size(value: object) -> int:
    if not isinstance(value, str):
        value = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return len(value.encode("utf-8", "surrogatepass"))


# --- parsing ---


def _parsed(name: str, text: str) -> Any:
    if len(text.encode("utf-8", "surrogatepass")) > MAX_TEXT_BYTES:
        raise BadTemplate(
            f'The text "{name}" has over {MAX_TEXT_BYTES} bytes. Shorten it, or link to the rest.'
        )
    try:
        parsed = _environment().from_string(text)
        unknown = set(parsed.analyze().filters) - set(_environment().filters)
        _bound_ranges(parsed)
    except Exception as error:  # whatever a foreign parser dies of, the text is the cause
        raise BadTemplate(
            f'The text "{name}" is no Liquid template: {_why(error)}. Mend it there.'
        ) from error
    if unknown:
        raise BadTemplate(
            f'The text "{name}" uses the filter "{min(unknown)}", which Liquid does not have. '
            "Remove it or mend its name."
        )
    return parsed


def _reads(parsed: Any) -> Iterator[str]:
    for variables in parsed.analyze().globals.values():
        yield from map(str, variables)


def _bound_ranges(parsed: Any) -> None:
    """Let no range of the text have more than `MAX_LOOPS` numbers. Its ends may be values of a
    person, so it is asked when they are known; where a range is only searched or cut, no turn of a
    loop would count."""
    from liquid import RenderContext
    from liquid.builtin.expressions.primitive import RangeLiteral

    context, nodes = RenderContext(parsed), list(parsed.nodes)
    while nodes:
        node = nodes.pop()
        nodes += node.children(context, include_partials=False)
        expressions = list(node.expressions())
        while expressions:
            expression = expressions.pop()
            expressions += expression.children()
            if type(expression) is RangeLiteral:
                expression.__class__ = _short_range_class()


@cache
def _short_range_class() -> Any:
    from liquid.builtin.expressions.primitive import RangeLiteral
    from liquid.exceptions import LoopIterationLimitError

    class ShortRange(RangeLiteral):
        __slots__ = ()

        def _make_range(self, start: Any, stop: Any) -> range:
            made: range = super()._make_range(start, stop)
            if made.stop - made.start > MAX_LOOPS:
                raise LoopIterationLimitError(
                    f"a range has over {MAX_LOOPS} numbers", token=self.token
                )
            return made

    return ShortRange


def _why(error: Exception) -> str:
    """The reason in one line; Liquid's own text draws the place over several."""
    if isinstance(error.__cause__ or error, RecursionError):
        return "it is nested too deep"
    reason = str(getattr(error, "message", None) or error or type(error).__name__)
    token = getattr(error, "token", None)
    if token is None or token.start_index < 0:
        return reason
    return f"{reason}, on line {token.source.count(chr(10), 0, token.start_index) + 1}"


# --- rendering ---


def _rendered(name: str, parsed: Any, values: Mapping[str, Any], needed: set[str]) -> str:
    """One text; what it lacks is added to `needed`, and then the text itself is worth nothing."""
    from liquid.output import LimitedStringIO

    out = LimitedStringIO(limit=MAX_OUTPUT_BYTES, newline="")  # "": a CR LF stays what it is
    context = _context_class()(parsed, globals=values)
    context.needed = needed
    try:
        # Node by node: the template's own render() would put a variable "partial" over the traits.
        for node in parsed.nodes:
            node.render(context, out)
    except Exception as error:  # whatever a foreign renderer dies of, the text is the cause
        if not needed:
            raise BadTemplate(
                f'The text "{name}" cannot be rendered: {_why(error)}. Mend it there.'
            ) from error
    return out.getvalue()


class _Absent(Sequence[object]):
    """A name without a value. Its use is what tells whether the value was needed.

    To Liquid it is nil when asked about, and an empty list when walked.
    """

    force_liquid_default = True  # how the filter `default` recognises it

    def __init__(self, names: frozenset[str], needed: set[str]) -> None:
        self.names = names
        self.needed = needed

    def __liquid__(self) -> None:
        return None

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        self.needed |= self.names
        return ""

    def __int__(self) -> int:
        self.needed |= self.names
        return 0

    def __len__(self) -> int:
        self.needed |= self.names
        return 0

    @overload
    def __getitem__(self, index: int) -> object: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[object]: ...
    def __getitem__(self, index: int | slice) -> object:
        self.needed |= self.names
        raise IndexError(index)


def _through(filter_name: str, liquid_filter: Callable[..., object]) -> Callable[..., object]:
    """A filter that hands an absent value on, for a later `default` or for whoever prints it."""

    @wraps(liquid_filter)
    def filtered(value: object, *arguments: object, **named: object) -> object:
        given = (value, *arguments, *named.values())
        absent = [one for one in given if isinstance(one, _Absent)]
        if absent:
            return _Absent(frozenset().union(*(one.names for one in absent)), absent[0].needed)
        if filter_name in ("replace", "join"):
            _refuse_growth(filter_name, value, arguments)
        return liquid_filter(value, *arguments, **named)

    return filtered


def _work(filter_name: str, value: object) -> int:
    """What there is to go through: a value that is looked up is compared, searched or printed."""
    if isinstance(value, _Absent) or not isinstance(value, Sequence):
        return 1
    return len(value) ** 2 if filter_name == "uniq" else len(value) + 1


def _refuse_growth(filter_name: str, value: object, arguments: Sequence[object]) -> None:
    pieces = len(value) if isinstance(value, Sequence) else 1
    if pieces * max((len(str(one)) for one in arguments), default=0) > MAX_GROWTH_BYTES:
        raise ValueError(f"the filter {filter_name} makes over {MAX_GROWTH_BYTES} bytes")


def _name(path: Sequence[object]) -> str:
    """A variable as Liquid writes it: `event.rank`, `event['a b']`, `list[0]`."""
    first, *rest = path
    return str(first) + "".join(
        f".{step}" if isinstance(step, str) and _PLAIN_STEP.fullmatch(step) else f"[{step!r}]"
        for step in rest
    )


@cache
def _context_class() -> Any:
    """How a text looks its variables up. Made late, because its parent is slow to import."""
    from liquid import RenderContext
    from liquid.exceptions import LoopIterationLimitError
    from liquid.undefined import UNDEFINED
    from liquid.utils import ReadOnlyChainMap

    class Context(RenderContext):
        needed: set[str]
        turns = 0
        work = 0

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            # Without Liquid's built-in names `now` and `today`, which read the clock.
            self.scope = ReadOnlyChainMap(self.locals, self.globals, self.counters)

        def get(self, path: list[object], *, token: Any, default: object = UNDEFINED) -> object:
            for step in path:
                if isinstance(step, _Absent):
                    return step
            found = super().get(path, token=token, default=None)
            self.go_through(_work("", found))
            if found is None or (found == "" and not self.assigned(path)):
                return _Absent(frozenset([_name(path)]), self.needed)
            return found

        def filter(self, name: str, token: Any) -> Callable[..., object]:
            found: Callable[..., object] = super().filter(name, token=token)

            def counted(value: object, *arguments: object, **named: object) -> object:
                self.go_through(_work(name, value))
                return found(value, *arguments, **named)

            return counted

        def go_through(self, work: int) -> None:
            self.work += work
            if self.work > MAX_WORK:
                raise ValueError(f"it goes through over {MAX_WORK} characters")

        def assigned(self, path: list[object]) -> bool:
            """Whether the text made this value itself: then "" is meant."""
            return len(path) == 1 and path[0] in self.locals

        def raise_for_loop_limit(self, length: int = 1) -> None:
            """Counts the turns of all loops, where Liquid looks at one nest of loops alone."""
            self.turns += length
            if self.turns > MAX_LOOPS:
                raise LoopIterationLimitError(f"it loops over {MAX_LOOPS} times", token=None)

    return Context


@cache
def _environment() -> Any:
    """Liquid as it is spoken here: strict, no other files, no clock, limits on everything."""
    from liquid import Environment

    class Dialect(Environment):
        local_namespace_limit = MAX_LOCAL_BYTES
        output_stream_limit = MAX_OUTPUT_BYTES

    dialect = Dialect()
    for reads_files in ("include", "render"):
        del dialect.tags[reads_files]
    dialect.filters["date"] = _date
    for name, liquid_filter in dialect.filters.items():
        if name != "default":
            dialect.filters[name] = _through(name, liquid_filter)
    return dialect


def _date(value: object, pattern: object) -> str:
    """The filter `date`: strftime on an ISO 8601 text or on seconds since 1970, in its own zone.

    Liquid's own takes "now" from the clock, seconds in the host's zone, and guesses at loose
    texts with today's date. What is no date is printed as it stands, as in Liquid.
    """
    if value in ("now", "today"):
        raise ValueError(f'the filter date was given "{value}", but a template has no clock')
    moment = _moment(value)
    if moment is None:
        return str(value)
    seconds = str(moment.timestamp())  # strftime's own %s is in the host's zone
    return moment.to_stdlib().strftime(_SECONDS.sub(rf"\g<1>{seconds}", str(pattern)))


def _moment(value: object) -> OffsetDateTime | None:
    try:
        match value:
            case bool():
                return None
            case int() | float():
                return Instant.from_timestamp(value).to_fixed_offset()
            case str() if value.isascii() and value.isdecimal():
                return Instant.from_timestamp(int(value)).to_fixed_offset()
            case str():
                return _moment_of_text(value)
            case _:
                return None
    except (ValueError, OverflowError):
        return None


def _moment_of_text(text: str) -> OffsetDateTime:
    """A text without an offset is read as it stands: its zone changes nothing that is printed."""
    try:
        return OffsetDateTime.parse_iso(text)
    except ValueError:
        pass
    try:
        return PlainDateTime.parse_iso(text).assume_utc().to_fixed_offset()
    except ValueError:
        return Date.parse_iso(text).at(Time()).assume_utc().to_fixed_offset()


_PLAIN_STEP = re.compile(r"[\u0080-\uFFFFa-zA-Z_][\u0080-\uFFFFa-zA-Z0-9_-]*")
_SECONDS = re.compile(r"(?<!%)((?:%%)*)%s")
