"""The demonstration: its figures word for word, what it writes, and that it can fail."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import pytest

from journeykit import demo

FIGURES = """
                              journeykit     by hand
people                            23,570      23,570
entries, one an order             69,659      69,659
passes closed by an order         22,705      22,705
messages sent                     46,954      46,954
  of them in June 1997             1,717       1,717
  of them in December 1997         1,649       1,649
people still waiting                   0           0

the two agree, month by month
wrote build/demo/funnel.svg
wrote build/demo/funnel.html
"""
ORDERS = """\
 00001 19970101  1   11.77
 00001 19970110  2   20.00
 00002 19970101  1    5.00
"""


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def few_orders(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = elsewhere / "orders.txt.gz"
    path.write_bytes(gzip.compress(ORDERS.encode()))
    monkeypatch.setattr(demo, "ORDERS", path)


def test_the_demonstration_agrees_with_the_plain_computation(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo.main() == 0

    told = capsys.readouterr().out
    assert told.endswith(f"to 1998-06-30 …\n{FIGURES}")
    assert "valid: no problems, no warnings" in told
    assert "69,659 orders of real customers, 1997-01-01" in told
    assert (elsewhere / "build/demo/funnel.svg").read_text("utf-8").startswith("<svg")
    page = (elsewhere / "build/demo/funnel.html").read_text("utf-8")
    assert "46,954" in page
    assert "The CDNOW order history, 1997-01-01 to 1998-06-30, replayed to 1998-07-31." in page


def test_a_disagreement_is_told_and_fails(
    few_orders: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    honest = demo.by_hand

    def broken(history: list[demo.Order]) -> Counter[str]:
        return Counter(honest(history)) + Counter(messages=1)

    monkeypatch.setattr(demo, "by_hand", broken)

    assert demo.main() == 1
    told = capsys.readouterr().out
    assert "messages sent                          2           3\n" in told
    assert "\nTHE TWO DISAGREE\n" in told


def test_few_orders_can_be_counted_on_one_hand(few_orders: None) -> None:
    history = list(demo.orders(demo.ORDERS))

    assert demo.by_hand(history) == {
        "people": 2,
        "entries": 3,
        "closed": 1,
        "messages": 2,
        "waiting": 0,
        "1997-01": 1,
        "1997-02": 1,
    }
    assert demo.main() == 0


def test_without_the_orders_the_demonstration_says_where_they_are(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "ORDERS", Path("notebooks/orders.txt.gz"))

    assert demo.main() == 1
    assert capsys.readouterr().err == (
        'The order history "notebooks/orders.txt.gz" is not there: it comes with the repository '
        "and not with the package. Run python3 dev.py demo in a checkout.\n"
    )
