"""A drawing as a page of its own."""

from __future__ import annotations

from journeykit.drawing import Drawing, html_page

PICTURE = Drawing("digraph journey {}", "Cart · 1 node", "<svg></svg>", "dot")


def test_a_page_holds_the_picture_and_the_table() -> None:
    rows = [{"node": "خرید", "entered": 4210}, {"node": "end", "entered": 12, "exited": 12}]
    page = html_page(PICTURE, "سبد", rows, "The last 30 days")

    assert "<figure><svg></svg></figure>" in page
    assert '<h1 dir="auto">سبد</h1>' in page
    assert '<p dir="auto">The last 30 days</p>' in page
    assert '<th dir="auto" class="n">entered</th><th dir="auto" class="n">exited</th>' in page
    assert '<td dir="auto">خرید</td><td dir="auto" class="n">4,210</td>' in page
    assert "prefers-color-scheme:dark" in page


def test_a_page_without_a_table_or_a_note_has_neither() -> None:
    page = html_page(PICTURE, "")

    assert '<h1 dir="auto">Journey</h1>' in page
    assert "<table" not in page
    assert "<p " not in page


def test_a_page_without_a_picture_shows_the_text() -> None:
    page = html_page(Drawing("digraph", "a <b> c", hint="Install it."), "x")

    assert '<pre dir="auto">Install it.\n\na &lt;b&gt; c\n\ndigraph</pre>' in page


def test_nothing_on_the_page_is_markup_that_was_typed() -> None:
    hostile = "</title><script>alert(1)</script>"
    page = html_page(PICTURE, hostile, [{hostile: hostile}], hostile)

    assert "<script" not in page
    assert page.count("&lt;script&gt;") == 5


def test_a_cell_without_a_figure_is_a_dash_and_not_a_zero() -> None:
    page = html_page(PICTURE, "x", [{"n": 1, "share": 0.25}, {"n": 0}, {"live": True}])

    assert '<td dir="auto" class="n">0.25</td>' in page
    assert '<td dir="auto" class="n">0</td><td dir="auto" class="n">–</td>' in page
    assert '<td dir="auto">yes</td>' in page
