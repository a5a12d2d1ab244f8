"""Files that appear whole or not at all, and where the records of a journal go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from journeykit_engine.journal import Lines, Sink

JOURNAL_BATCH = 5_000  # steps between two writes; memory stays flat, calls stay few
BESIDE = ".journeykit-"  # how the folder begins in which a file is made before it is moved


class CannotWrite(ValueError):
    """An output that cannot be what was asked; the message says why."""


def refuse_outputs(outputs: Mapping[str, Path | None], inputs: Mapping[str, Path | None]) -> None:
    """Raises `CannotWrite` before any work is done: for a folder, for a folder that is not there,
    and for two files of one call that are the same. Both are by the option that names them."""
    taken = {path.resolve(): option for option, path in inputs.items() if path is not None}
    for option, path in outputs.items():
        if path is None or _is_device(path):
            continue
        if str(path) == "-":
            raise CannotWrite(f'{option} "-" is no file; name one (/dev/stdout is one too).')
        if path.is_dir():
            raise CannotWrite(f'{option} "{path}" is a folder; name a file.')
        if not path.parent.is_dir():
            raise CannotWrite(
                f'{option} "{path}": there is no folder "{path.parent}"; make it first.'
            )
        other = taken.setdefault(path.resolve(), option)
        if other != option:
            raise CannotWrite(f'{other} and {option} are both "{path}"; name two files.')


@contextmanager
def place_for(path: Path) -> Iterator[Path]:
    """A path of the same name to write to; what is there is moved to `path` when all went well.

    Raises OSError; a device or a pipe (`/dev/stdout`) is written to as it is.
    """
    if _is_device(path):
        yield path
        return
    target = path.resolve()  # through a symbolic link, which stays one
    try:
        beside = TemporaryDirectory(prefix=BESIDE, dir=target.parent)
    except OSError as error:
        message = f'"{path}": nothing can be written in "{target.parent}": {error.strerror}.'
        raise CannotWrite(message) from None
    with beside as folder:
        made = Path(folder, target.name)
        yield made
        made.replace(target)


def _is_device(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()


@contextmanager
def whole(path: Path | None) -> Iterator[BinaryIO | None]:
    """An open file that appears at `path` when all went well; None for None."""
    if path is None:
        yield None
        return
    try:
        with place_for(path) as made, made.open("wb") as file:
            yield file
    except OSError as error:
        error.filename = error.filename or str(path)  # a full disk does not say which file it is
        raise


@contextmanager
def sink_to(file: BinaryIO | None) -> Iterator[Sink]:
    """Where a replay's journal goes: as JSON lines into the file, in batches, or nowhere."""
    if file is None:
        yield lambda record: None
        return
    import orjson

    kept: list[bytes] = []
    keep = kept.append

    def put(lines: bytes) -> None:
        keep(lines)
        if len(kept) >= JOURNAL_BATCH:
            file.write(b"".join(kept))  # at once, past the file's own small buffer
            kept.clear()

    yield Lines(orjson.dumps, put)
    file.write(b"".join(kept))
