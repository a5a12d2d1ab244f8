"""What a process tells about its own running: one line a record, for people or for programs.

A record may carry figures: `log.info("timers", extra={"figures": {"claimed": 812}})`.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Literal

import orjson
from whenever import Instant

Style = Literal["text", "json"]


def write_lines(style: Style) -> None:
    """Let everything that journeykit logs go to standard error in this style."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLine() if style == "json" else TextLine())
    log = logging.getLogger("journeykit")
    log.handlers = [handler]
    log.setLevel(logging.INFO)
    log.propagate = False


class TextLine(logging.Formatter):
    """`2026-06-01T10:00:00.123Z INFO timers claimed=812 seconds=0.4`, a traceback below it."""

    def format(self, record: logging.LogRecord) -> str:
        figures = "".join(f" {name}={value}" for name, value in figures_of(record).items())
        line = f"{moment(record)} {record.levelname} {record.getMessage()}{figures}"
        return "\n".join([line, *traceback_of(self, record)])


class JsonLine(logging.Formatter):
    """The same as one JSON object: at, level, message, the figures, traceback."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {"at": moment(record), "level": record.levelname}
        told |= {"message": record.getMessage(), **figures_of(record)}
        for text in traceback_of(self, record):
            told["traceback"] = text
        return orjson.dumps(told, default=str).decode()


def figures_of(record: logging.LogRecord) -> dict[str, Any]:
    figures: dict[str, Any] = getattr(record, "figures", {})
    return figures


def moment(record: logging.LogRecord) -> str:
    """When, in UTC to the millisecond."""
    at = Instant.from_timestamp(int(record.created * 1_000), unit="millisecond")
    return at.format_iso(unit="millisecond")


def traceback_of(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    """Without the line in which PostgreSQL tells the values of the row that it refused: they are
    people's."""
    if not record.exc_info:
        return []
    lines = formatter.formatException(record.exc_info).split("\n")
    return ["\n".join(line for line in lines if not line.startswith("DETAIL:"))]
