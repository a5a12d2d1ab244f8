"""The ids that nodes are given, and the ends that the next step is tied to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from journeykit.sketch import End, Sketch, branched, free_id, grown, slug, wired


@given(st.sets(st.integers(2, 40)), st.booleans())
def test_a_free_id_is_free_and_the_number_before_it_is_taken(
    numbers: set[int], base_is_taken: bool
) -> None:
    taken = {f"wait_{number}": None for number in numbers}
    taken |= {"wait": None} if base_is_taken else {}
    found = free_id("wait", taken)

    assert found not in taken
    if base_is_taken:
        number = int(found.removeprefix("wait_"))
        assert number == 2 or f"wait_{number - 1}" in taken
    else:
        assert found == "wait"


def test_ids_in_a_row_are_counted() -> None:
    taken: dict[str, None] = {}
    for _ in range(40):
        taken[free_id("wait_1h", taken)] = None

    assert list(taken) == ["wait_1h", *(f"wait_1h_{number}" for number in range(2, 41))]


def test_a_slug_keeps_letters_of_any_script_and_an_end() -> None:
    assert slug("goal", "سبد خرید!", "") == "goal_سبد_خرید"
    assert slug("a.b%c:branch") == "a_b_c_branch"
    assert len(slug("x" * 500)) == 60


def test_every_open_end_is_tied_to_the_next_node() -> None:
    split = {"id": "t", "kind": "split", "split": {"branches": [{"next": ""}, {"next": ""}]}}
    sketch = grown(Sketch(), split, "", ())
    for index in range(2):
        end = End("t", ("split", "branches", index, "next"))
        sketch = branched(sketch, end, Sketch())

    assert len(sketch.ends) == 2
    tied = wired(sketch, "exit")
    assert tied.nodes["t"]["split"]["branches"] == [{"next": "exit"}, {"next": "exit"}]
    assert tied.ends == ()
    assert sketch.nodes["t"] == split
