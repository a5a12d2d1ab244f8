"""What is wrong with a journey, as a table: in a notebook, in a terminal, or as values."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from journeykit_engine import check
from journeykit_engine.shape import Problem

HEADINGS = ("", "code", "node", "what is wrong", "what to do")


class Report:
    """The answer of `validate`: problems block publishing, warnings never do."""

    __slots__ = ("_report",)

    def __init__(self, report: check.Report) -> None:
        self._report = report

    @property
    def valid(self) -> bool:
        """True where there is no problem; warnings do not count."""
        return self._report.valid

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What must be mended, in document order."""
        return self._report.problems

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """What is worth a look, in document order."""
        return self._report.warnings

    def to_dict(self) -> dict[str, Any]:
        """`{"valid", "problems", "warnings"}`, ready for JSON."""
        return self._report.to_dict()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Report) and self._report == other._report

    def __hash__(self) -> int:
        return hash(self._report)

    def __repr__(self) -> str:
        lines = [self._verdict]
        for sort, problem in self._rows():
            node = f' node "{problem.node_id}"' if problem.node_id else ""
            lines.append(f"{sort} {problem.code}{node}: {_sentence(problem.message)} {problem.fix}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        verdict = f"<p>{escape(self._verdict)}</p>"
        rows = "".join(
            _row("td", (sort, problem.code, problem.node_id, problem.message, problem.fix))
            for sort, problem in self._rows()
        )
        if not rows:
            return verdict
        head = _row("th", HEADINGS)
        return f"{verdict}<table><thead>{head}</thead><tbody>{rows}</tbody></table>"

    @property
    def _verdict(self) -> str:
        counts = f"{_counted(len(self.problems), 'problem')}, "
        counts += _counted(len(self.warnings), "warning")
        return f"{'valid' if self.valid else 'not valid'}: {counts}"

    def _rows(self) -> Iterator[tuple[str, Problem]]:
        yield from (("problem", problem) for problem in self.problems)
        yield from (("warning", warning) for warning in self.warnings)


def _sentence(text: str) -> str:
    """The text with a full stop, where it has no ending of its own."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _counted(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def _row(cell: str, texts: tuple[str, ...]) -> str:
    cells = "".join(f'<{cell} dir="auto">{escape(text)}</{cell}>' for text in texts)
    return f"<tr>{cells}</tr>"
