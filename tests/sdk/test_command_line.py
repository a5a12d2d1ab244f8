"""The command `journeykit`, as a person and as a program use it: through real processes where the
behaviour is of the process, in this one where it is only of the command."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from journeykit import __main__ as command_line

ROOT = Path(__file__).parents[2]
PACKAGES = [str(ROOT / home) for home in ("engine", "sdk", "server")]
TEN = "2026-06-01T10:00:00Z"
PATIENCE_SECONDS = 60  # for a process on a slow machine to come as far as is waited for
GRAPH: dict[str, Any] = {
    "journey_id": 1,
    "version": 2,
    "entry_id": "t",
    "nodes": [
        {
            "id": "t",
            "kind": "trigger",
            "next": "ask",
            "trigger": {"kind": "event", "event": "added"},
        },
        {
            "id": "ask",
            "kind": "wait",
            "next": "won",
            "wait": {"kind": "for_event", "event": "bought", "timeout": "1h", "on_timeout": "s"},
        },
        {
            "id": "s",
            "kind": "action",
            "next": "end",
            "action": {"kind": "send", "channel": "push", "template_id": 3},
        },
        {"id": "won", "kind": "exit"},
        {"id": "end", "kind": "exit"},
    ],
}
STEPS = {
    "steps": {
        "wait": {"type": "wait", "params": {"duration": "2bd"}, "next": {"then": "done"}},
        "done": {"type": "end"},
    },
    "entry": "wait",
}
SVG_START = b"<svg"
STARTS = {".svg": SVG_START, ".png": b"\x89PNG", ".pdf": b"%PDF", ".html": b"<!DOCTYPE html>"}


class Done(NamedTuple):
    """What a call came to."""

    code: int
    out: str
    err: str


class Call:
    """The command in this process, in a folder with `cart.json` and `events.jsonl`."""

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        self.folder = folder
        self.monkeypatch = monkeypatch
        self.capsys = capsys

    def __call__(self, *words: str) -> Done:
        stopped = signal.getsignal(signal.SIGTERM)
        self.monkeypatch.setattr(sys, "argv", ["journeykit", *words])
        try:
            with pytest.raises(SystemExit) as left:
                command_line.main()
        finally:
            signal.signal(signal.SIGTERM, stopped)
        out, err = self.capsys.readouterr()
        return Done(int(left.value.code or 0), out, err)

    def refused(self, *words: str) -> str:
        """What a refused call says; it has answered nothing and left nothing behind."""
        before = sorted(self.folder.iterdir())
        done = self(*words)
        assert (done.code, done.out) == (1, "")
        assert done.err.startswith("journeykit: ")
        assert sorted(self.folder.iterdir()) == before
        return done.err.removeprefix("journeykit: ").removesuffix("\n")

    def written(self, name: str, content: object) -> str:
        text = content if isinstance(content, str) else json.dumps(content)
        (self.folder / name).write_text(text, "utf-8")
        return name


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "cart.json").write_text(json.dumps({"name": "Cart", "graph": GRAPH}))
    (tmp_path / "events.jsonl").write_text(
        f'{{"type":"track","messageId":"m1","userId":"ann","event":"added","timestamp":"{TEN}"}}\n'
        '{"type":"track","userId":7,"event":"added","timestamp":"2026-06-01T12:15:00+02:00"}\n'
        '{"type":"track","userId":"ann","event":"bought","timestamp":"2026-06-01T11:00:00Z"}\n'
    )
    return tmp_path


@pytest.fixture
def call(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    return Call(folder, monkeypatch, capsys)


def environment(**more: str) -> dict[str, str]:
    path = [*PACKAGES, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path)), **more}


def command(*words: str) -> list[str]:
    return [sys.executable, "-W", "error", "-m", "journeykit", *words]


def process(*words: str, given: bytes = b"", **more: str) -> Done:
    """The command in a process of its own."""
    done = subprocess.run(
        command(*words),
        input=given,
        capture_output=True,
        env=environment(**more),
        timeout=PATIENCE_SECONDS,
    )
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


# Help.


def test_alone_it_prints_its_help(call: Call) -> None:
    alone = call()

    assert alone == call("--help") == call("-h")
    assert alone == (0, HELP, "")


HELP = """\
Usage: journeykit [OPTIONS] COMMAND [ARGS]...

  Customer journeys: check them, walk one person or a whole history through
  them, draw them.

  Examples:
    journeykit validate cart.json
    journeykit simulate cart.json --user-id sara
    journeykit replay cart.json --events events.jsonl
    journeykit render cart.json -o cart.svg

Options:
  --version   Print the version.
  -h, --help  Show this message and exit.

Commands:
  validate  List the problems and warnings of a journey.
  simulate  Walk one person through a journey.
  replay    Walk a whole history through a journey.
  render    Draw a journey.
  migrate   Bring a database to this version's schema.
  worker    Move people and deliver what is due, until stopped.
  doctor    Look for what keeps people from moving.
  verify    Compare the counters with a recount of the journal.
"""


@pytest.mark.parametrize("name", ["validate", "simulate", "replay", "render"])
def test_every_command_shows_examples_within_80_columns(name: str, call: Call) -> None:
    told = call(name, "--help").out

    assert max(map(len, told.splitlines())) <= 80
    assert f"  Examples:\n    journeykit {name} cart.json" in told
    assert "..." not in told


def test_the_version_is_that_of_the_package(folder: Path) -> None:
    packed = folder / "packed" / "journeykit-7.8.9.dist-info"
    packed.mkdir(parents=True)
    (packed / "METADATA").write_text("Metadata-Version: 2.1\nName: journeykit\nVersion: 7.8.9\n")

    told = process("--version", PYTHONPATH=os.pathsep.join([str(packed.parent), *PACKAGES]))

    assert told == (0, "journeykit 7.8.9\n", "")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["frob"], "No such command 'frob'."),
        (["validate"], "Missing argument 'JOURNEY'."),
        (["replay", "cart.json"], "Missing option '--events'."),
        (["validate", "cart.json", "--frob"], "No such option: --frob"),
    ],
)
def test_a_wrong_call_is_told_apart_from_a_wrong_journey(
    words: list[str], told: str, call: Call
) -> None:
    done = call(*words)

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("Usage: journeykit ")
    assert done.err.rstrip().endswith(f"Error: {told}")


# Validate.


def test_a_sound_journey_is_valid_in_every_form(call: Call) -> None:
    valid = (0, "valid: no problems, no warnings\n", "")

    assert call("validate", "cart.json") == valid
    assert call("validate", call.written("bare.json", GRAPH)) == valid
    assert call("validate", call.written("steps.json", {"steps": {}, "entry": ""})).code == 1
    assert call("validate", call.written("steps.json", STEPS)).out.startswith("valid: ")


def test_every_problem_is_told_at_once(call: Call) -> None:
    nodes = [*GRAPH["nodes"][:2], {"id": "s", "kind": "action", "action": {"kind": "send"}}]
    broken = call.written("broken.json", {**GRAPH, "nodes": nodes})

    code, told, _ = call("validate", broken, "--account-timezone", "Asia/Tehrn")

    assert code == 1
    assert told == (
        "not valid: 4 problems, no warnings\n"
        'problem BAD_TIMEZONE: The time zone "Asia/Tehrn" is unknown. '
        'Did you mean "Asia/Tehran"?\n'
        'problem DANGLING_EDGE node "ask": The edge "next" of node "ask" leads to "won", which '
        "does not exist. Wire it to a node that exists.\n"
        'problem NO_CHANNEL node "s": The send node "s" has no channel to send by. '
        'Name it in "channel", for example "email".\n'
        'problem NO_TEMPLATE node "s": The send node "s" has no text to send. '
        'Choose a template and write its number in "template_id".\n'
    )


def test_a_program_reads_the_report(call: Call) -> None:
    code, told, _ = call("validate", "cart.json", "--format", "json")
    assert (code, json.loads(told)) == (0, {"valid": True, "problems": [], "warnings": []})

    code, told, _ = call("validate", call.written("cut.json", '{"graph":'), "--format", "json")
    problem = {
        "code": "MALFORMED_JSON",
        "node_id": "",
        "path": "",
        "message": "The document ends too early; expected a value, line 1, column 10.",
        "fix": "Send the whole document.",
    }
    assert (code, json.loads(told)) == (1, {"valid": False, "problems": [problem], "warnings": []})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "[]",
            "WRONG_TYPE: The document must be an object, not a list. "
            'Send {"name": …, "graph": {…}}.',
        ),
        (
            '{"nodes": [], "nodes": []}',
            'DUPLICATE_KEY: The key "nodes" occurs twice at the top, line 1, column 15. '
            "Keep one of them.",
        ),
        (
            '{"journey_id": NaN}',
            "BAD_NUMBER: The number NaN at journey_id is no JSON number, line 1, column 16. "
            "Send a finite number.",
        ),
        (
            '\ufeff{"nodes": []}',
            "MALFORMED_JSON: The document begins with a byte order mark, line 1, column 1. "
            "Save it without one.",
        ),
    ],
)
def test_what_is_no_journey_is_a_problem_too(text: str, told: str, call: Call) -> None:
    done = call("validate", call.written("odd.json", text))

    assert (done.code, done.err) == (1, "")
    assert done.out == f"not valid: 1 problem, no warnings\nproblem {told}\n"


@pytest.mark.parametrize("name", ["validate", "simulate", "render"])
def test_a_file_that_is_not_there_is_named(name: str, call: Call) -> None:
    assert call.refused(name, "none.json") == 'there is no file "none.json".'
    assert call.refused(name, ".") == '"." is a folder; name a file.'
    empty = call.written("empty.json", " \n")
    assert call.refused(name, empty) == "empty.json is empty; a journey as JSON was expected."


@pytest.mark.parametrize("name", ["simulate", "render"])
def test_a_journey_that_cannot_be_read_is_told_whole(name: str, call: Call) -> None:
    odd = {"graph": {"nodes": [{"id": "a"}, {"id": 3, "kind": "exit"}], "foo": 1}}

    assert call.refused(name, call.written("odd.json", odd)) == (
        "odd.json is no journey.\n"
        'nodes[0].kind: Node "a": The field "kind" is missing. Add "kind".\n'
        'nodes[1].id: "id" must be text, not the number 3. Write text.\n'
        'foo: The field "foo" is not known here. Leave it out.'
    )
    assert call.refused(name, call.written("cut.json", "{\n")) == (
        "cut.json, line 2, column 1: The document ends too early; expected a key in double quotes. "
        "Send the whole document."
    )


# Simulate.


def test_a_person_is_walked(call: Call) -> None:
    code, told, err = call("simulate", "cart.json", "--user-id", "ann", "--at", TEN)

    assert (code, err) == (0, "")
    assert told.splitlines()[0] == '"ann" walks "Cart"'
    assert told.splitlines()[-1] == 'The person completes the journey at "won".'


def test_an_answer_chooses_the_way_and_a_program_reads_it(call: Call) -> None:
    person = call.written("sara.json", {"user_id": "sara", "traits": {"plan": "pro"}})
    words = ["--person", person, "--at", TEN, "--answer", "ask=timeout", "--format", "json"]

    told = json.loads(call("simulate", "cart.json", *words).out)

    assert (told["user_id"], told["sends"], told["reached"]) == ("sara", 1, True)
    assert told["outcome"] == 'The person completes the journey at "end".'


def test_a_draft_is_walked_and_fails(call: Call) -> None:
    draft = {**GRAPH, "nodes": [*GRAPH["nodes"], *GRAPH["nodes"][-2:]]}
    words = ["simulate", call.written("draft.json", draft), "--at", TEN]

    code, told, _ = call(*words)
    assert code == 1
    assert told.splitlines()[-1].endswith("block publishing; validate lists them.")
    code, told, _ = call(*words, "--format", "json")
    assert (code, json.loads(told)["problems"][0]["code"]) == (1, "DUPLICATE_ID")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--answer", "ask"], '--answer "ask" must be WAIT=EVENT or WAIT=timeout.'),
        (
            ["--answer", "s=timeout"],
            '"s" is no event wait of this journey; answers are by the id of one.',
        ),
        (
            ["--answer", "ask=sold"],
            '"sold" is no answer to the wait "ask"; give "bought" or "timeout".',
        ),
        (
            ["--at", "2026-06-01T10:00:00"],
            '"--at" is "2026-06-01T10:00:00", which does not say in which zone. '
            'Attach a timezone, as "2026-06-01T10:00:00Z" for UTC.',
        ),
        (
            ["--account-timezone", "Asia/Tehrn"],
            'The time zone "Asia/Tehrn" is unknown. Did you mean "Asia/Tehran"?',
        ),
        (
            ["--user-id", ""],
            "The user id is empty; expected a text or a whole number. "
            'Send the id as a text, for example "7".',
        ),
        (["--person", "none.json"], 'there is no file "none.json".'),
        (
            ["--person", "cart.json", "--user-id", "a"],
            "--person and --user-id are both given; keep one of them.",
        ),
    ],
)
def test_a_simulation_that_cannot_begin_is_told(words: list[str], told: str, call: Call) -> None:
    assert call.refused("simulate", "cart.json", *words) == told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "person.json: there is nothing in it. Write JSON."),
        (
            '{"user_id":',
            "person.json line 1, column 12: The document ends too early; expected a value. "
            "Send the whole document.",
        ),
        ("[]", 'person.json must hold an object, as {"user_id": "sara"}.'),
        ("{}", 'the person: "userId" is missing. Say who it was, as "7".'),
        (
            '{"user_id": "a", "events": 3}',
            '"events" of the person must be a list of objects, not 3. '
            'Write [{"event": "purchase", "timestamp": "2026-06-01T10:00:00Z"}].',
        ),
    ],
)
def test_a_person_that_cannot_be_used_is_told(text: str, told: str, call: Call) -> None:
    person = call.written("person.json", text)

    assert call.refused("simulate", "cart.json", "--person", person) == told


# Replay.

UNTIL = ["--until", "2026-06-02T00:00:00Z"]
REPLAY = ["replay", "cart.json", "--events", "events.jsonl", *UNTIL]
SUMMARY = {
    "people": 2,
    "events": 3,
    "entries": 2,
    "messages": 1,
    "nodes": {
        "t": {"entered": 2, "exited": 0, "suppressed": 0, "waiting": 0},
        "ask": {"entered": 2, "exited": 0, "suppressed": 0, "waiting": 0},
        "s": {"entered": 1, "exited": 0, "suppressed": 0, "waiting": 0},
        "won": {"entered": 1, "exited": 1, "suppressed": 0, "waiting": 0},
        "end": {"entered": 1, "exited": 1, "suppressed": 0, "waiting": 0},
    },
    "exits": {"completed": 2},
    "arms": {},
}


def test_a_history_is_replayed_into_a_journal_and_its_sums(call: Call) -> None:
    code, told, err = call(*REPLAY, "--journal", "j.jsonl", "--summary", "s.json")

    assert (code, err) == (0, "")
    assert told.startswith("people             2\nevents             3\n")
    assert json.loads((call.folder / "s.json").read_text()) == SUMMARY
    journal = list(map(json.loads, (call.folder / "j.jsonl").read_text().splitlines()))
    assert [record["at"] for record in journal] == sorted(record["at"] for record in journal)
    (woke,) = (r for r in journal if r["what"] == "woke" and r["user_id"] == "ann")
    assert woke["branch"] == "bought", "at the instant of the timeout the event is handled first"
    (sent,) = (r for r in journal if r["what"] == "effect")
    assert (sent["at"], sent["effect"]["message_id"]) == (
        "2026-06-01T11:15:00Z",
        "j1.v2.s.7.e1",
    )


def test_a_program_reads_the_sums_from_standard_output(call: Call) -> None:
    done = call(*REPLAY, "--format", "json")

    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out) == SUMMARY


def test_people_templates_and_the_beginning_are_heeded(call: Call) -> None:
    people = call.written("people.jsonl", '{"userId":"7","traits":{"name":"Bo"}}\n')
    texts = call.written("texts.json", {"3": "{{ name }}{{ age }}"})
    words = ["--people", people, "--templates", texts, "--since", "2026-06-01T10:15:00Z"]

    told = json.loads(call(*REPLAY, *words, "--format", "json").out)

    assert (told["entries"], told["messages"]) == (1, 0)
    assert told["nodes"]["s"]["suppressed"] == 1


def test_the_same_history_gives_the_same_bytes_whatever_the_hash_seed(folder: Path) -> None:
    made = []
    for seed in ("0", "1"):
        words = ["--journal", f"j{seed}", "--summary", f"s{seed}"]
        done = process(*REPLAY, *words, PYTHONHASHSEED=seed)
        assert done.code == 0
        made.append(
            (done.out, (folder / f"j{seed}").read_bytes(), (folder / f"s{seed}").read_bytes())
        )

    assert made[0] == made[1]


def test_a_history_of_nothing_is_told_beside_its_zeros(call: Call) -> None:
    empty = call.written("empty.jsonl", "\n")

    code, told, err = call("replay", "cart.json", "--events", empty, "--format", "json")

    assert (code, json.loads(told)["events"]) == (0, 0)
    assert err == 'journeykit: "empty.jsonl" holds no line; nothing happened.\n'


def test_an_end_before_the_first_line_is_told(call: Call) -> None:
    words = ["--events", "events.jsonl", "--until", "2020-01-01T00:00:00Z"]

    code, told, err = call("replay", "cart.json", *words)

    assert (code, told.splitlines()[1]) == (0, "events             0")
    assert err == (
        'journeykit: "events.jsonl" begins at 2026-06-01T10:00:00Z, after "--until"; '
        "nothing happened.\n"
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--events", "none.jsonl"], 'there is no file "none.jsonl".'),
        (["--events", "."], '"." is a folder; name a file.'),
        (["--people", "none.jsonl"], 'there is no file "none.jsonl".'),
        (["--journal", "."], '--journal "." is a folder; name a file.'),
        (
            ["--summary", "far/s.json"],
            '--summary "far/s.json": there is no folder "far"; make it first.',
        ),
        (
            ["--journal", "out", "--summary", "./out"],
            '--journal and --summary are both "out"; name two files.',
        ),
        (
            ["--journal", "events.jsonl"],
            '--events and --journal are both "events.jsonl"; name two files.',
        ),
        (
            ["--until", "2026-06-02T00:00:00"],
            '"--until" is "2026-06-02T00:00:00", which does not say in which zone. '
            'Attach a timezone, as "2026-06-02T00:00:00Z" for UTC.',
        ),
        (
            ["--until", "tomorrow"],
            '"--until" is "tomorrow", which is no instant. Write it like "2026-06-01T10:00:00Z".',
        ),
        (
            ["--since", "2026-06-03T00:00:00Z"],
            '"--until" is 2026-06-02T00:00:00Z, before "--since", 2026-06-03T00:00:00Z. '
            "Give a later end, or leave one of them out.",
        ),
        (
            ["--scan-every", "1d"],
            '"--scan-every" is "1d", which is no time between two looks. '
            'Write minutes or hours: "30m", "1h", "24h".',
        ),
        (
            ["--account-timezone", "Asia/Tehrn"],
            "cart.json cannot be replayed.\n"
            "not valid: 1 problem, no warnings\n"
            'problem BAD_TIMEZONE: The time zone "Asia/Tehrn" is unknown. '
            'Did you mean "Asia/Tehran"?',
        ),
        (
            ["--templates", "events.jsonl"],
            "events.jsonl line 2, column 1: The document goes on after its end. "
            "Remove the text after the value.",
        ),
    ],
)
def test_a_replay_that_cannot_begin_is_told(words: list[str], told: str, call: Call) -> None:
    assert call.refused(*REPLAY, *words) == told


def test_a_bad_line_leaves_no_output(call: Call) -> None:
    (call.folder / "j.jsonl").write_text("as before")
    with (call.folder / "events.jsonl").open("a") as file:
        file.write('{"type":"track","userId":"ann"}\n')

    told = call.refused(*REPLAY, "--journal", "j.jsonl", "--summary", "s.json")

    assert told == (
        'events.jsonl line 4: "timestamp" is missing. Say when it was, as "2026-06-01T10:00:00Z".'
    )
    assert (call.folder / "j.jsonl").read_text() == "as before"


def test_a_full_disk_leaves_no_output(call: Call) -> None:
    told = call.refused(*REPLAY, "--journal", "j.jsonl", "--summary", "/dev/full")

    assert told == '"/dev/full": No space left on device'


def test_a_folder_that_nothing_can_be_written_in_is_told(call: Call) -> None:
    told = call.refused(*REPLAY, "--journal", "/proc/j.jsonl")

    assert told == (
        '"/proc/j.jsonl": nothing can be written in "/proc": No such file or directory.'
    )


def test_outputs_go_through_links_and_into_devices(call: Call) -> None:
    (call.folder / "link").symlink_to("j.jsonl")

    assert call(*REPLAY, "--journal", "link", "--summary", os.devnull).code == 0

    assert (call.folder / "link").is_symlink()
    assert len((call.folder / "j.jsonl").read_text().splitlines()) == 16
    assert Path(os.devnull).is_char_device()


# Render.


@pytest.mark.parametrize("ending", [".svg", ".png", ".pdf", ".html", ".dot", ".SVG"])
def test_a_journey_is_drawn_by_the_ending_of_the_file(ending: str, call: Call) -> None:
    code, told, _ = call("render", "cart.json", "-o", f"cart{ending}", "--theme", "auto")

    assert (code, told) == (0, f"cart{ending}\n")
    drawn = (call.folder / f"cart{ending}").read_bytes()
    assert drawn.startswith(STARTS.get(ending.lower(), b"digraph journey {"))


def test_without_a_file_the_outline_is_printed(call: Call) -> None:
    code, told, err = call("render", "cart.json")

    assert (code, err) == (0, "")
    assert told.splitlines()[0] == "Cart · 5 nodes"


def test_what_only_a_picture_can_show_wants_a_file(call: Call) -> None:
    done = call("render", "cart.json", "--path", "t")

    assert (done.code, done.out) == (1, "")
    assert done.err == (
        "journeykit: --stats and --path are for a picture; name its file with --output.\n"
    )


def test_a_summary_becomes_a_funnel(call: Call) -> None:
    assert call(*REPLAY, "--summary", "s.json").code == 0

    assert call("render", "cart.json", "--stats", "s.json", "-o", "plain.dot").code == 0
    nodes = call.written("nodes.json", SUMMARY["nodes"])
    assert call("render", "cart.json", "--stats", nodes, "-o", "bare.dot").code == 0
    assert call("render", "cart.json", "--path", "t, ask,s", "-o", "path.dot").code == 0
    drawn = {name: (call.folder / f"{name}.dot").read_text() for name in ("plain", "bare", "path")}
    assert drawn["plain"] == drawn["bare"] != drawn["path"]


def test_a_broken_journey_is_drawn_with_its_problems(call: Call) -> None:
    broken = call.written("broken.json", {**GRAPH, "entry_id": "gone"})

    assert call("render", broken, "-o", "broken.dot").code == 0
    assert "NO_ENTRY" in (call.folder / "broken.dot").read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-o", "a.gif"], '--output "a.gif" must end in .svg, .png, .pdf, .html or .dot.'),
        (["-o", "a"], '--output "a" must end in .svg, .png, .pdf, .html or .dot.'),
        (["-o", "far/a.svg"], '--output "far/a.svg": there is no folder "far"; make it first.'),
        (
            ["--stats", "cart.json"],
            "cart.json is no summary of replay; give the file of its --summary.",
        ),
        (
            ["--stats", "events.jsonl"],
            "events.jsonl line 2, column 1: The document goes on after its end. "
            "Remove the text after the value.",
        ),
        (["--path", "t,gone"], '--path names the node "gone", which the journey has not.'),
    ],
)
def test_a_drawing_that_cannot_be_made_is_told(words: list[str], told: str, call: Call) -> None:
    if words[:2] == ["--stats", "cart.json"]:
        call.written("cart2.json", GRAPH)
        assert call.refused("render", "cart2.json", *words) == told
        return
    assert call.refused("render", "cart.json", *words) == told


def test_without_a_renderer_the_hint_is_told(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(call.folder))
    monkeypatch.setattr(sys, "prefix", str(call.folder))
    monkeypatch.setitem(sys.modules, "pygraphviz", None)

    assert call.refused("render", "cart.json", "-o", "cart.svg") == (
        "No Graphviz renderer was found, so this is the journey as text. To draw it, install "
        'the package "pygraphviz" (pip install pygraphviz) or Graphviz itself (the program "dot").'
    )
    assert call("render", "cart.json", "-o", "cart.dot").code == 0


# Of the process.


def test_a_dash_reads_standard_input(folder: Path) -> None:
    graph = json.dumps(GRAPH).encode()

    assert process("validate", "-", given=graph) == (0, "valid: no problems, no warnings\n", "")
    events = (folder / "events.jsonl").read_bytes()
    words = ["replay", "cart.json", "--events", "-", *UNTIL, "--format", "json"]
    assert json.loads(process(*words, given=events).out) == SUMMARY
    assert process("validate", "-") == (
        1,
        "",
        "journeykit: standard input is empty; a journey as JSON was expected.\n",
    )
    bad = process("replay", "cart.json", "--events", "-", given=b"{}")
    assert bad.err.startswith("journeykit: standard input line 1: ")


def test_standard_input_is_read_once_only(call: Call) -> None:
    assert call.refused("replay", "-", "--events", "-") == (
        "JOURNEY and --events both read standard input; name a file for one."
    )


def test_names_in_any_language_are_printed_whatever_the_terminal_says(folder: Path) -> None:
    (folder / "cart.json").write_text(json.dumps({"name": "سبد خرید", "graph": GRAPH}))

    done = process("render", "cart.json", PYTHONIOENCODING="ascii")

    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("\u2068سبد خرید\u2069 · 5 nodes\n")


@pytest.mark.parametrize("words", [["render", "cart.json"], ["--version"]])
def test_a_closed_pipe_is_no_fault_of_ours(words: list[str], folder: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            command(*words), stdout=writing, stderr=subprocess.PIPE, env=environment()
        )
    finally:
        os.close(writing)

    assert (done.returncode, done.stderr) == (command_line.NOBODY_READS, b"")


def test_an_answer_that_cannot_be_printed_is_told(folder: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command("validate", "cart.json"), stdout=full, stderr=subprocess.PIPE, env=environment()
        )

    assert done.returncode == 1
    assert done.stderr == b"journeykit: standard output: No space left on device.\n"


@pytest.fixture
def long_history(folder: Path) -> Path:
    """So many lines that a replay is still at work when it is interrupted."""
    one = '{{"type":"track","userId":"u{}","event":"added","timestamp":"2026-06-01T10:00:00Z"}}\n'
    path = folder / "long.jsonl"
    path.write_text("".join(map(one.format, range(60_000))))
    return path


@pytest.mark.parametrize(
    ("sent", "code"),
    [(signal.SIGINT, command_line.INTERRUPTED), (signal.SIGTERM, command_line.STOPPED)],
)
def test_an_interrupted_replay_leaves_nothing(
    sent: signal.Signals, code: int, folder: Path, long_history: Path
) -> None:
    before = sorted(folder.iterdir())
    words = ["--journal", "j.jsonl", "--summary", "s.json"]
    running = subprocess.Popen(
        command("replay", "cart.json", "--events", long_history.name, *words),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    wait_until(lambda: any(p.stat().st_size for p in folder.glob(".journeykit-*/j.jsonl")))
    running.send_signal(sent)
    out, err = running.communicate(timeout=PATIENCE_SECONDS)

    assert (running.returncode, out, err) == (code, b"", b"")
    assert sorted(folder.iterdir()) == before


def wait_until(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not happened():
        assert time.monotonic() < until, "it did not come as far"
        time.sleep(0.005)


def test_a_terminal_sees_progress(folder: Path, long_history: Path) -> None:
    mine, its = pty.openpty()
    termios.tcsetwinsize(its, (24, 80))
    running = subprocess.Popen(
        command("replay", "cart.json", "--events", long_history.name),
        stdout=subprocess.PIPE,
        stderr=its,
        env=environment(TERM="xterm", COLUMNS="80"),
    )
    seen = b""
    while running.poll() is None:
        if select.select([mine], [], [], 0.05)[0]:
            seen += os.read(mine, 65536)
    out, _ = running.communicate()
    os.close(its)
    os.close(mine)

    assert running.returncode == 0
    assert out.startswith(b"people        60,000\n")
    assert re.search(rb"\d+/60000 \[", seen)


def test_importing_starts_no_thread_and_writes_no_file(
    folder: Path, cases: Mapping[str, dict[str, Any]]
) -> None:
    expected = cases["timer-import-has-no-side-effects"]["expect"]
    before = sorted(folder.rglob("*"))
    script = (
        "import sys, threading, pkgutil, importlib\n"
        "opened = []\n"
        "sys.addaudithook(lambda what, about: opened.append(about[0]) if what == 'open' and "
        "isinstance(about[1], str) and set(about[1]) & set('wax+') else None)\n"
        "import journeykit, journeykit_engine, journeykit_server\n"
        "for package in (journeykit, journeykit_engine, journeykit_server):\n"
        "    for module in pkgutil.iter_modules(package.__path__, package.__name__ + '.'):\n"
        "        importlib.import_module(module.name) if '__main__' not in module.name else None\n"
        "print(threading.active_count() - 1, len(opened))\n"
    )

    done = subprocess.run(
        [sys.executable, "-B", "-c", script], capture_output=True, env=environment(), text=True
    )

    assert done.stderr == ""
    assert done.stdout == f"{expected['new_threads']} {expected['files_created']}\n"
    assert sorted(folder.rglob("*")) == before
