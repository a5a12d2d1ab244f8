"""A drawn journey: the picture as a notebook shows it, as a file, as a page of its own, and the
text that stands in for it where nothing can draw.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from journeykit.outline import cleaned

RENDER_SECONDS = 60  # for a renderer that is a program of its own
FONT = "Arial"  # every engine knows its widths; a list of fonts confuses some of them
FONTS_SHOWN = "Arial,Helvetica,'Segoe UI',Tahoma,sans-serif"
NO_RENDERER = (
    "No Graphviz renderer was found, so this is the journey as text. To draw it, install "
    'the package "pygraphviz" (pip install pygraphviz) or Graphviz itself (the program "dot").'
)


class CannotDraw(RuntimeError):
    """A picture was asked for that no installed renderer makes."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A drawn journey. `svg` is None where nothing could draw it; `hint` then says why."""

    dot: str
    outline: str
    svg: str | None = None
    renderer: str = ""
    hint: str = ""
    format: str = "svg"

    def __repr__(self) -> str:
        return self.text if self.svg is None else self.outline

    def __str__(self) -> str:
        return repr(self)

    @property
    def text(self) -> str:
        """The outline, and where there is no picture the hint and the DOT text."""
        return "\n\n".join(part for part in (self.hint, self.outline, self.dot) if part)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        bundle: dict[str, Any] = {"text/plain": repr(self)}
        if self.format == "png" and self.svg is not None:
            return {**bundle, "image/png": self.png()}
        return bundle if self.svg is None else {**bundle, "image/svg+xml": self.svg}

    def png(self) -> bytes:
        """The picture as PNG. Raises `CannotDraw` where no renderer makes one."""
        return self.rendered("png")

    def rendered(self, format: str) -> bytes:
        """The picture in a format of Graphviz. Raises `CannotDraw` where no renderer makes it."""
        if self.hint:
            raise CannotDraw(self.hint)
        for renderer in RENDERERS:
            raw = renderer.render(self.dot, format)
            if raw is not None:
                return raw
        raise CannotDraw(f'No installed renderer makes "{format}": install "pygraphviz".')

    def save(self, path: str | Path) -> Path:
        """Write the picture; the suffix says as what: .svg, .png, .pdf, .dot or .html.

        Raises `CannotDraw` where that cannot be drawn here, ValueError for another suffix.
        """
        path = Path(path)
        match path.suffix.lower():
            case ".png" | ".pdf" as suffix:
                path.write_bytes(self.rendered(suffix[1:]))
            case ".dot":
                path.write_text(self.dot, "utf-8")
            case ".html":
                path.write_text(html_page(self, path.stem), "utf-8")
            case ".svg" if self.svg is not None:
                path.write_text(self.svg, "utf-8")
            case ".svg":
                raise CannotDraw(self.hint or "The drawing was made without a picture.")
            case suffix:
                expected = "expected .svg, .png, .pdf, .dot or .html"
                raise ValueError(f'A drawing cannot be saved as "{suffix}": {expected}.')
        return path


def tidied(raw: bytes, figure_id: str, title: str, summary: str, style: str) -> str:
    """Graphviz' SVG made fit to stand inside a page: no prolog, no foreign names, a title and a
    role for those who listen to it, our own tooltips where Graphviz shows its names."""
    root = ElementTree.fromstring(raw)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.attrib.pop(f"{{{_XML}}}space", None)
        if element.get("font-family") == FONT:
            element.set("font-family", FONTS_SHOWN)
    for group in root.iter("g"):
        _title_group(group)
        if group.get("class") == "node":
            _centre_texts(group)
        if group.get("class") == "graph":
            group.set("id", f"{figure_id}-all")
    root[:0] = [_element("title", title), *([_element("style", style)] if style else [])]
    root.attrib |= {
        "xmlns": _SVG,
        "id": figure_id,
        "role": "img",
        "aria-label": summary,
        "style": "max-width:100%;height:auto",
    }
    return ElementTree.tostring(root, encoding="unicode")


def _element(tag: str, text: str) -> ElementTree.Element:
    element = ElementTree.Element(tag)
    element.text = text
    return element


_SVG = "http://www.w3.org/2000/svg"
_XML = "http://www.w3.org/XML/1998/namespace"
_TIP = "{http://www.w3.org/1999/xlink}title"


def _title_group(group: ElementTree.Element) -> None:
    """Lifts what Graphviz wraps in a link up into the node's group, the tooltip as its title."""
    for title in group.findall("title"):
        group.remove(title)
    for place, inner in enumerate(list(group)):
        link = inner.find("a") if inner.tag == "g" else None
        if link is None or group.get("class") not in ("node", "edge"):
            continue
        group[place : place + 1] = list(link)
        group.insert(0, _element("title", link.get(_TIP) or ""))
        return


def _centre_texts(group: ElementTree.Element) -> None:
    """Anchors a node's texts in its middle: Graphviz gives the left end of each, measured with a
    font that the reader may not have."""
    shape = next((part for part in group if part.get("points") or part.get("d")), None)
    if shape is None:
        return
    numbers = re.findall(r"-?[0-9.]+", shape.get("points") or shape.get("d") or "")
    across = [float(number) for number in numbers[::2]]
    middle = f"{(min(across) + max(across)) / 2:.2f}"
    for text in group.findall("text"):
        text.attrib |= {"x": middle, "text-anchor": "middle"}


class Renderer(NamedTuple):
    """A way to have Graphviz draw: `render(dot, format)` gives the picture, None where this
    machine or the format does not allow it."""

    name: str
    render: Callable[[str, str], bytes | None]


def _by_dot(dot: str, format: str) -> bytes | None:
    if shutil.which("dot") is None:
        return None
    try:
        import graphviz
    except ImportError:
        return None
    try:
        return bytes(graphviz.pipe("dot", format, dot.encode(), quiet=True))
    except (OSError, graphviz.ExecutableNotFound, graphviz.CalledProcessError):
        return None


def _by_pygraphviz(dot: str, format: str) -> bytes | None:
    try:
        import pygraphviz
    except ImportError:
        return None
    try:
        with _quiet_fonts():
            return bytes(pygraphviz.AGraph(string=dot).draw(format=format, prog="dot"))
    except (OSError, ValueError, RuntimeWarning):
        return None


@contextmanager
def _quiet_fonts() -> Iterator[None]:
    """The font library inside pygraphviz' wheel is older than the configuration of some hosts, and
    says so from C, past `sys.stderr`: the descriptor itself must look away while it draws."""
    try:
        kept = os.dup(2)
    except OSError:  # a process without standard error has nothing to be kept quiet
        yield
        return
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _by_graphviz_pure(dot: str, format: str) -> bytes | None:
    program = shutil.which("graphviz-pure", path=str(Path(sys.prefix) / "bin"))
    program = program or shutil.which("graphviz-pure")
    if program is None or format == "pdf":
        return None
    try:
        done = subprocess.run(
            [program, f"-T{format}"],
            input=dot.encode(),
            capture_output=True,
            timeout=RENDER_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 and done.stdout else None


RENDERERS = (
    Renderer("dot", _by_dot),
    Renderer("pygraphviz", _by_pygraphviz),
    Renderer("graphviz-pure", _by_graphviz_pure),
)


def html_page(
    drawing: Drawing, title: str, table: Sequence[Mapping[str, object]] = (), note: str = ""
) -> str:
    """A page of its own: the picture, and a table under it. `table` is rows by column name, the
    columns in the order they first appear. The page is light or dark as the reader's system is;
    a drawing made with theme="auto" follows it.

    >>> "<h1 dir=\\"auto\\">a &lt; b</h1>" in html_page(Drawing("", "a journey"), "a < b")
    True
    """
    name = escape(cleaned(title)) or "Journey"
    picture = drawing.svg or f'<pre dir="auto">{escape(drawing.text)}</pre>'
    remark = f'<p dir="auto">{escape(cleaned(note))}</p>\n' if note else ""
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{name}</title>\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{_PAGE_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f'<h1 dir="auto">{name}</h1>\n{remark}<figure>{picture}</figure>\n'
        f"{_html_table(table)}</main>\n</body>\n</html>\n"
    )


_PAGE_STYLE = """
:root{color-scheme:light dark;--paper:#fefefe;--ink:#1c2530;--soft:#556170;--line:#dfe4ea}
@media (prefers-color-scheme:dark){
:root{--paper:#12161d;--ink:#e9eef4;--soft:#aeb9c6;--line:#2c3541}}
body{margin:0;background:var(--paper);color:var(--ink)}
body{font:15px/1.5 Arial,Helvetica,Tahoma,sans-serif}
main{max-width:1080px;margin:0 auto;padding:32px 20px 64px}
h1{font-size:26px;margin:0 0 8px}
p{color:var(--soft);margin:0 0 16px}
figure{margin:20px 0 32px;text-align:center;overflow-x:auto}
pre{text-align:start;white-space:pre-wrap}
div{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:7px 12px;border-bottom:1px solid var(--line);text-align:left}
th{color:var(--soft);font-size:13px;border-bottom-width:2px}
th.n,td.n{text-align:right}
"""


def _html_table(table: Sequence[Mapping[str, object]]) -> str:
    if not table:
        return ""
    columns = list(dict.fromkeys(column for row in table for column in row))
    numeric = {column: all(_is_figure(row.get(column)) for row in table) for column in columns}
    head = "".join(_cell("th", column, numeric[column]) for column in columns)
    body = "".join(
        f"<tr>{''.join(_cell('td', row.get(column), numeric[column]) for column in columns)}</tr>\n"
        for row in table
    )
    start = f"<div><table>\n<thead><tr>{head}</tr></thead>\n"
    return f"{start}<tbody>\n{body}</tbody>\n</table></div>\n"


def _is_figure(value: object) -> bool:
    return isinstance(value, int | float | None) and not isinstance(value, bool)


def _cell(tag: str, value: object, is_number: bool) -> str:
    match value:
        case None:
            text = "–"
        case bool():
            text = "yes" if value else "no"
        case int():
            text = f"{value:,}"
        case float():
            text = f"{value:,.4g}"
        case _:
            text = escape(cleaned(str(value)))
    side = ' class="n"' if is_number else ""
    return f'<{tag} dir="auto"{side}>{text}</{tag}>'
