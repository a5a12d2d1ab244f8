"""Messages with a person's values in them, and the names that keep one from being sent."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journeykit_engine.template import (
    MAX_LOOPS,
    MAX_TEXT_BYTES,
    BadTemplate,
    Missing,
    Rendered,
    event_values,
    parse_template,
    render,
)

# --- the cases ---


@pytest.mark.parametrize(
    "case_id",
    [
        "tpl-missing-after-wait",
        "tpl-no-shadowing",
        "tpl-zero-and-false",
        "tpl-null-is-missing",
        "tpl-empty-string",
        "tpl-no-second-pass",
    ],
)
def test_a_message_as_the_case_tells_it(case_id: str, cases: Mapping[str, Any]) -> None:
    given_, expect = cases[case_id]["given"], cases[case_id]["expect"]

    result = told(given_["template"], given_.get("traits", {}), given_.get("event"))

    if expect.get("suppressed"):
        assert result == Missing(tuple(expect["missing_keys"]))
    elif "rendered" in expect:
        assert result == expect["rendered"]
    else:
        assert isinstance(result, str) and expect["rendered_contains"] in result


@pytest.mark.parametrize(
    "case_id",
    [
        "props-32-of-33",
        "props-512-exact",
        "props-too-long-does-not-use-a-place",
        "props-sort-order",
    ],
)
def test_the_properties_that_travel(case_id: str, cases: Mapping[str, Any]) -> None:
    case = cases[case_id]
    properties = properties_of(case["check"]["props"])

    travelled = event_values(properties)

    assert list(travelled) == case["expect"]["travel"]
    if "dropped" in case["expect"]:
        assert sorted(set(properties) - set(travelled)) == case["expect"]["dropped"]


@given(st.dictionaries(st.text(max_size=3), st.text(max_size=200) | st.integers(), max_size=80))
def test_the_same_properties_travel_whatever_their_order(properties: dict[str, Any]) -> None:
    backwards = dict(reversed(list(properties.items())))

    assert list(event_values(properties).items()) == list(event_values(backwards).items())
    assert len(event_values(properties)) <= 32


@pytest.mark.parametrize(
    ("value", "travels"),
    [
        ("é" * 256, True),
        ("é" * 256 + "a", False),
        (["a" * 508], True),  # ["…"] with its four signs: 512 bytes
        (["a" * 509], False),
        ({"é": "é" * 251}, True),  # not counted as \u00e9
        (10**511, True),
        (10**512, False),
        (None, True),
        (False, True),
    ],
)
def test_size_is_counted_in_bytes_of_the_text_form(value: object, travels: bool) -> None:
    assert (event_values({"p": value}) == {"p": value}) is travels


# --- what a name stands for ---


def test_every_text_of_a_template_is_rendered() -> None:
    template = parse_template({"subject": "{{ name }}!", "body": "Rank {{ event.rank }}"})

    assert render(template, {"name": "سارا"}, {"rank": 4}) == Rendered(
        {"subject": "سارا!", "body": "Rank 4"}
    )


def test_all_missing_names_of_all_texts_are_told_once_and_sorted() -> None:
    template = parse_template(
        {"subject": "{{ plan }} {{ name }}", "body": "{{ event.rank }} {{ name }} {{ city.zip }}"}
    )

    assert template.names == ("city.zip", "event.rank", "name", "plan")
    assert render(template, {"plan": "gold", "city": {}}, None) == Missing(
        ("city.zip", "event.rank", "name")
    )


def test_a_trait_called_event_never_answers_for_the_event() -> None:
    traits = {"event": {"rank": 9}}

    assert told("{{ event.rank }}", traits) == Missing(("event.rank",))
    assert told("{{ event.rank }}", traits, {"rank": 4}) == "4"
    assert told("{{ event.rank }}", {"rank": 9}, {}) == Missing(("event.rank",))


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("{{ n }}", "0"),
        ("{{ x }}", "0.0"),
        ("{{ no }}", "false"),
        ("{{ space }}", " "),
        ("{{ partial }}", "a trait like any other"),
        ("{{ now }}", "never"),
    ],
)
def test_these_are_values(text: str, rendered: str) -> None:
    traits = {"n": 0, "x": 0.0, "no": False, "space": " ", "now": "never"}

    assert told(text, {**traits, "partial": "a trait like any other"}) == rendered


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("{{ name | default: 'friend' }}", "friend"),
        ("{{ bare | default: 'friend' }}", "friend"),
        ("{{ null | default: 'friend' }}", "friend"),
        ("{{ name | upcase | default: 'friend' }}", "friend"),
        ("{{ name | default: nick }}", Missing(("nick",))),
        ("{{ name | append: nick }}", Missing(("name", "nick"))),
        ("{{ 5 | plus: n }}", Missing(("n",))),
        ("{{ 'x' | append: bare }}", Missing(("bare",))),
        ("{% assign hello = name %}{{ hello }}", Missing(("name",))),
        ("{% capture hello %}{% endcapture %}[{{ hello }}]", "[]"),
        ("{% for item in items %}{{ item }}{% endfor %}", Missing(("items",))),
        ("{% for n in (1..last) %}{{ n }}{% endfor %}", Missing(("last",))),
        ("{% for item in list %}{{ item }},{% endfor %}", Missing(("item",))),
        ("{{ list[0] }}{{ list[1] }}{{ list[7] }}", Missing(("list[1]", "list[7]"))),
        ("{{ event['a b'] }}", Missing(("event['a b']",))),
        ("{{ event[key] }}", Missing(("key",))),
        ("{{ event }}", Missing(("event",))),
    ],
)
def test_what_fills_a_hole_and_what_leaves_one(text: str, result: str | Missing) -> None:
    assert told(text, {"bare": "", "null": None, "list": ["a", None]}) == result


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("{% if name %}Hi {{ name }}{% else %}Hello{% endif %}", "Hello"),
        ("{% if bare %}Hi {{ bare }}{% else %}Hello{% endif %}", "Hello"),
        ("{% unless name %}Hello{% endunless %}", "Hello"),
        ("{% if name == nil %}Hello{% endif %}", "Hello"),
        ("{% if rank > 3 %}high{% else %}low{% endif %}", "low"),
        ("{% if tags contains 'vip' %}vip{% else %}all{% endif %}", "all"),
        ("{% case plan %}{% when 'gold' %}gold{% else %}plain{% endcase %}", "plain"),
    ],
)
def test_asking_about_a_missing_name_is_answered_no(text: str, rendered: str) -> None:
    assert told(text, {"bare": ""}) == rendered


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_a_value_is_printed_and_never_expanded(value: str) -> None:
    assert told("{{ name }}", {"name": value, "secret": "s3"}) == value


@given(st.text(alphabet="{}%| .namevtifd'\n", max_size=40))
def test_any_text_is_rendered_or_refused(text: str) -> None:
    try:
        told(text, {"name": "Sara"})
    except BadTemplate as refused:
        assert str(refused).startswith('The text "body" ')


# --- no clock, no files ---


def test_the_clock_cannot_be_read() -> None:
    assert told("{{ now }}{{ today }}", {}) == Missing(("now", "today"))
    with pytest.raises(BadTemplate) as refused:
        told("{{ 'now' | date: '%Y' }}", {})

    assert str(refused.value) == (
        'The text "body" cannot be rendered: the filter date was given "now", '
        "but a template has no clock. Mend it there."
    )


@pytest.mark.parametrize(
    ("value", "pattern", "printed"),
    [
        ("2026-03-05", "%d.%m.%Y", "05.03.2026"),
        ("2026-03-05T10:07:00", "%H:%M", "10:07"),
        ("2026-03-05T10:07:00+03:30", "%H:%M %z", "10:07 +0330"),
        ("2026-03-05T10:07:00Z", "%s %%s", "1772705220 %s"),
        (1_700_000_000, "%Y-%m-%d %H:%M", "2023-11-14 22:13"),
        ("1700000000", "%Y", "2023"),
        (10**30, "%Y", "1" + "0" * 30),
        ("10:30", "%Y", "10:30"),
        ("soon", "%Y", "soon"),
    ],
)
def test_dates_are_printed_as_they_stand(value: object, pattern: str, printed: str) -> None:
    assert told(f"{{{{ day | date: '{pattern}' }}}}", {"day": value}) == printed


@pytest.mark.parametrize("tag", ["include", "render"])
def test_no_other_file_can_be_read(tag: str) -> None:
    with pytest.raises(BadTemplate) as refused:
        parse_template({"body": f"{{% {tag} 'other' %}}"})

    assert str(refused.value) == (
        f"The text \"body\" is no Liquid template: unexpected tag '{tag}', on line 1. "
        "Mend it there."
    )


def test_liquid_is_imported_only_when_a_template_is() -> None:
    program = "import sys, journeykit_engine.template; print('liquid' in sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}; {program}"],
        check=True,
        capture_output=True,
        text=True,
    )

    assert answer.stdout.strip() == "False"


# --- what is no template ---


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "Hi,\n{{ name",
            "The text \"body\" is no Liquid template: expected '}}', found end of file, "
            "on line 2. Mend it there.",
        ),
        (
            "Hi\n\n{% if %}",
            'The text "body" is no Liquid template: missing expression, on line 3. Mend it there.',
        ),
        (
            "{{ name | shout }}",
            'The text "body" uses the filter "shout", which Liquid does not have. '
            "Remove it or mend its name.",
        ),
        (
            "{% if a %}" * 40 + "{% endif %}" * 40,
            'The text "body" is no Liquid template: block nesting limit reached, on line 1. '
            "Mend it there.",
        ),
        (
            "{{ " + "a[" * 5_000 + "b" + "]" * 5_000 + " }}",
            'The text "body" is no Liquid template: it is nested too deep. Mend it there.',
        ),
        (
            "x" * (MAX_TEXT_BYTES + 1),
            'The text "body" has over 262144 bytes. Shorten it, or link to the rest.',
        ),
    ],
    ids=["open", "empty-if", "filter", "blocks", "path", "long"],
)
def test_a_bad_text_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(BadTemplate) as refused:
        parse_template({"subject": "fine", "body": text})

    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "{% for i in (1..100000000) %}x{% endfor %}",
            f"a range has over {MAX_LOOPS} numbers, on line 1",
        ),
        (
            "{% for i in (1..200) %}{% for j in (1..200) %}x{% endfor %}{% endfor %}",
            f"it loops over {MAX_LOOPS} times",
        ),
        ("{% for i in (1..6000) %}{% endfor %}" * 2, f"it loops over {MAX_LOOPS} times"),
        (
            "{% assign x = 'a' %}{% for i in (1..99) %}{% assign x = x | append: x %}{% endfor %}",
            "local namespace limit reached",
        ),
        ("{% for i in (1..9000) %}{{ long }}{% endfor %}", "output stream limit reached"),
        ("{{ long | replace: 'a', long }}", "the filter replace makes over 16777216 bytes"),
        ("{{ long | split: '' | join: long }}", "the filter join makes over 16777216 bytes"),
        ("{{ 1 | divided_by: 0 }}", "divided_by: can't divide by 0, on line 1"),
    ],
)
def test_a_text_that_takes_too_much_is_stopped(text: str, reason: str) -> None:
    with pytest.raises(BadTemplate) as refused:
        told(text, {"long": "a" * 5_000})

    assert str(refused.value) == (f'The text "body" cannot be rendered: {reason}. Mend it there.')


def test_rendering_leaves_its_inputs_alone_and_forgets_them() -> None:
    template = parse_template({"body": "{% assign name = 'other' %}{{ name }}{{ event.n }}"})
    traits, event = {"name": "Sara", "event": 1}, {"n": 1}

    assert render(template, traits, None) == Missing(("event.n",))
    assert render(template, traits, event) == Rendered({"body": "other1"})
    assert (traits, event) == ({"name": "Sara", "event": 1}, {"n": 1})


# --- what the story needs ---


def told(
    text: str, traits: Mapping[str, Any], event: Mapping[str, Any] | None = None
) -> str | Missing:
    result = render(parse_template({"body": text}), traits, event)
    return result if isinstance(result, Missing) else result.texts["body"]


def properties_of(recipe: Mapping[str, Any]) -> dict[str, str]:
    properties: dict[str, str] = dict(recipe.get("literal", {}))
    for made in recipe.get("make", []):
        value = made.get("char", "v") * made.get("times", 1)
        if "range" in made:
            first, last = made["range"]
            properties |= {made["name"] % n: value for n in range(first, last + 1)}
        else:
            properties[made["name"]] = value
    return properties


@pytest.mark.parametrize(
    "body",
    [
        "{{ a | split: '' | uniq | size }}",
        "{% for i in (1..300) %}{{ a | split: '' | reverse | sort | size }}{% endfor %}",
        "{% for i in (1..9000) %}{{ a | replace: 'a', 'bbbbbbbbbbbbbbbb' | size }}{% endfor %}",
        "{% for i in (1..9999) %}{% if a contains b %}{% endif %}{% endfor %}",
        "{% for i in (1..9999) %}{% case a %}{% when b %}{% endcase %}{% endfor %}",
    ],
)
def test_what_would_take_minutes_is_refused(body: str) -> None:
    template = parse_template({"body": body})

    with pytest.raises(BadTemplate) as refused:
        render(template, {"a": "ab" * 90_000, "b": "ba" * 80_000}, None)

    assert str(refused.value) == (
        'The text "body" cannot be rendered: it goes through over 2000000 characters. '
        "Mend it there."
    )


@pytest.mark.parametrize(
    "body",
    [
        "{% assign r = (1..1000000000) %}{% if r contains 'x' %}y{% endif %}",
        "{% if (1..n) contains 5.5 %}y{% endif %}",
        "{% for i in (1..1000000000) offset: 999999995 %}{{ i }}{% endfor %}",
    ],
)
def test_a_range_has_as_many_numbers_as_there_are_turns(body: str) -> None:
    with pytest.raises(BadTemplate) as refused:
        render(parse_template({"body": body}), {"n": 10**11}, None)

    assert str(refused.value) == (
        'The text "body" cannot be rendered: a range has over 10000 numbers, on line 1. '
        "Mend it there."
    )


def test_a_range_of_ordinary_length_is_walked() -> None:
    template = parse_template({"body": "{% for i in (1..n) %}{{ i }},{% endfor %}"})

    assert render(template, {"n": 3}, None) == Rendered({"body": "1,2,3,"})
