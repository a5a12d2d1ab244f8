"""The interpreter: a person walks a journey, one step at a time, and nothing else happens.

`react` tells what an event does to a person, `resume` what the passing of time does. Both are
pure: no clock, no chance, no I/O, inputs untouched. What must be done outside comes back as data.
"""

from __future__ import annotations

from typing import NamedTuple

from whenever import Instant

from journeykit_engine import graph, rule, signal
from journeykit_engine.instance import ExitReason, Instance, Person, Wait, may_enter
from journeykit_engine.nodes import EventWaitOp, Op, Stop, Walker, new
from journeykit_engine.paths import MAX_STEPS
from journeykit_engine.program import Program
from journeykit_engine.signal import Event
from journeykit_engine.trail import (
    EFFECTS,
    Assigned,
    Effect,
    Entered,
    Entry,
    Exited,
    Failed,
    Paused,
    Refused,
    Resumed,
    Visited,
    Woke,
)

ALL_STEPS = range(MAX_STEPS)
AFTER_ENTRY = range(1, MAX_STEPS)  # the entry was the first


class Step(NamedTuple):
    """One step of one person: the instance as it is now and what happened on the way, in order.

    `instance` is None only when an entry was refused to somebody who never was inside. `person`
    is the snapshot with the walk's own writes. An empty trail means that nothing happened.
    """

    instance: Instance | None
    trail: tuple[Entry, ...]
    person: Person
    at: Instant

    @property
    def visits(self) -> tuple[str, ...]:
        """The ids of the nodes arrived at, in order."""
        return tuple(entry.node_id for entry in self.trail if isinstance(entry, Visited))

    @property
    def effects(self) -> tuple[Effect, ...]:
        """What must be done outside, in order."""
        return tuple(entry for entry in self.trail if isinstance(entry, EFFECTS))

    @property
    def exposures(self) -> tuple[Assigned, ...]:
        """The splits met, with the arm given."""
        return tuple(entry for entry in self.trail if isinstance(entry, Assigned))

    @property
    def waits_for(self) -> Wait | None:
        """What the person is parked for, None where they are not."""
        return self.instance.wait if self.instance else None

    @property
    def failure(self) -> Failed | None:
        """Why the step could not be taken (the instance is as it was), None where it could."""
        last = self.trail[-1] if self.trail else None
        return last if isinstance(last, Failed) else None


def react(
    program: Program, person: Person, instance: Instance | None, event: Event
) -> tuple[Step, ...]:
    """What one event does to one person: nothing, or one to three steps in order.

    `person` is the snapshot with this event already in its history and traits; `instance` the
    latest one of this person in any version of the journey, or None. In order: a wait whose time
    had passed before the event arrived goes on without it; the event ends the pass (`exit_on`, an
    opt-out, exit criteria that mention it) or wakes it; then the trigger is asked, so that one
    event may end a pass and start the next. A paused pass can be ended, never woken. A pass in
    another version is left alone: only the program of its own version can wake or end it.
    """
    if event.name not in program.hears_events and not program.hears(event):
        return ()
    if instance is None or not instance.is_live:
        return (enter(program, person, instance, event),) if triggers(program, event) else ()
    steps: list[Step] = []
    if instance.version == program.version:
        steps = hear(program, person, instance, event)
    if steps:
        instance, person = steps[-1].instance, steps[-1].person
    if triggers(program, event) and not (steps and steps[-1].failure):
        steps.append(enter(program, person, instance, event))
    return tuple(steps)


def hear(program: Program, person: Person, instance: Instance, event: Event) -> list[Step]:
    """What one event does to somebody who is inside: the first half of `react`, for a caller that
    has a program for the version in which they are and another one for whoever enters now."""
    steps: list[Step] = []
    if instance.wake_at is not None and instance.wake_at < event.at and not instance.paused_at:
        steps.append(resume(program, person, instance, event.at))
        person, after = steps[-1].person, steps[-1].instance
        if steps[-1].failure or after is None or not after.is_live:
            return steps
        instance = after
    names = signal.names(event, program.connected, (program.journey_id, instance.entry_count))
    if _ends(program, person, instance, event, names):
        walker = _walker(program, person, instance, event.at, event)
        steps.append(_exit(walker, instance, "exit_criteria"))
    elif not instance.paused_at:
        branch = _answered(program, instance, event, names)
        if branch is not None:
            walker = _walker(program, person, instance, event.at, event)
            steps.append(_go_on(walker, instance, branch))
    return steps


def _ends(
    program: Program, person: Person, instance: Instance, event: Event, names: tuple[str, ...]
) -> bool:
    """Whether this event ends the pass: by `exit_on`, as an opt-out, or by exit criteria that
    mention it."""
    if event.changed is None and (signal.OPT_OUT in names or not program.exit_on.isdisjoint(names)):
        return True
    if program.exit_rule is None:
        return False
    mentioned = (
        event.name in program.exit_references.events
        if event.changed is None
        else not program.exit_references.traits.isdisjoint(event.changed)
    )
    return mentioned and program.exit_rule(_walker(program, person, instance, event.at, event))


def _answered(
    program: Program, instance: Instance, event: Event, names: tuple[str, ...]
) -> str | None:
    """The branch of the open wait that this event answers, None where it answers none."""
    wait = instance.wait
    if wait is None or wait.kind != "event" or event.changed is not None:
        return None
    if event.id and event.id == instance.entered_by:
        return None  # a redelivery: what entered somebody is never the answer inside
    op = program.nodes[wait.node_id]
    return op.branch_for(event, names) if isinstance(op, EventWaitOp) else None


def triggers(program: Program, event: Event) -> bool:
    """Whether this event asks for an entry. What is not entered by an event or a trait write is
    entered by the reserved event alone, which carries the journey's id."""
    if program.entry_event:
        return (
            event.name == program.entry_event
            and event.changed is None
            and (program.filter is None or program.filter(event.properties))
        )
    match program.trigger:
        case graph.EventTrigger():
            return False
        case graph.AttributeChanged() as trigger:
            if event.changed is None or trigger.trait not in event.changed:
                return False
            return trigger.value is None or rule.equal(event.changed[trigger.trait], trigger.value)
        case _:
            asked = event.properties.get("journey_id")
            return event.name == graph.RESERVED_EVENT and rule.equal(asked, program.journey_id)


def enter(program: Program, person: Person, prior: Instance | None, event: Event) -> Step:
    """Start a pass for this person, or refuse to (the step tells which rule said no)."""
    entry = program.entry
    at = event.at
    refusal = None if prior is None else may_enter(program.reentry, prior, at, program.zone)
    if refusal is not None:
        return Step(prior, (Refused(entry.id, refusal),), person, at)
    count = 1 if prior is None else prior.entry_count + 1
    # The reserved event stands for a look, a date or a call: it has nothing to say to a message.
    cause = None if event.name == graph.RESERVED_EVENT else event
    walker = Walker(program, person, at, cause, count, at, event.id)
    walker.trail += (new(Entered, (entry.id, event.id)), entry.visited)
    if program.exit_rule is not None and program.exit_rule(walker):
        return _finish(walker, Exited(entry.id, "exit_criteria"))
    return _run(walker, entry.after, entry, prior, AFTER_ENTRY)


def resume(program: Program, person: Person, instance: Instance, at: Instant) -> Step:
    """Take the timer of a parked person: a wait that is over, a window that opened, the longest
    stay. Before `wake_at`, and while paused, nothing happens."""
    wake_at = instance.wake_at
    if wake_at is None or at < wake_at or instance.wait is None or instance.paused_at is not None:
        return Step(instance, (), person, at)
    return _go_on(_walker(program, person, instance, at, None), instance, "timeout")


def answer(program: Program, person: Person, instance: Instance, event: Event, branch: str) -> Step:
    """Wake a parked person on a branch that the caller chose (`react` finds it by itself); an event
    that ends the pass ends it here too."""
    walker = _walker(program, person, instance, event.at, event)
    names = signal.names(event, program.connected, (program.journey_id, instance.entry_count))
    if _ends(program, person, instance, event, names):
        return _exit(walker, instance, "exit_criteria")
    return _go_on(walker, instance, branch)


def pause(person: Person, instance: Instance, at: Instant) -> Step:
    """Hold one person where they are; signals no longer wake them, timers wait for `unpause`."""
    if not instance.is_live or instance.paused_at:
        return Step(instance, (), person, at)
    paused = instance._replace(paused_at=at, updated_at=at)
    return Step(paused, (Paused(instance.current_node),), person, at)


def unpause(program: Program, person: Person, instance: Instance, at: Instant) -> Step:
    """Let a paused person go on; a timer that passed during the pause is taken now, once.

    A timer due at this very moment is left to be taken as any other: an event of the same moment
    comes before it."""
    if not instance.is_live or not instance.paused_at:
        return Step(instance, (), person, at)
    awake = instance._replace(paused_at=None, updated_at=at)
    told = Resumed(instance.current_node)
    if awake.wake_at == at:
        return Step(awake, (told,), person, at)
    step = resume(program, person, awake, at)
    if step.failure is not None:
        return step._replace(instance=instance)
    return step._replace(trail=(told, *step.trail))


def leave(
    program: Program,
    person: Person,
    instance: Instance,
    at: Instant,
    reason: ExitReason = "ejected",
) -> Step:
    """Take a person out, by hand ("ejected") or with the journey ("journey_deleted")."""
    if not instance.is_live:
        return Step(instance, (), person, at)
    return _exit(_walker(program, person, instance, at, None), instance, reason)


def _walker(
    program: Program, person: Person, instance: Instance, at: Instant, event: Event | None
) -> Walker:
    # Taken apart as a plain tuple, in half the time of asking a named one for seven of its fields.
    _, _, _, _, count, _, _, since, _, _, cause, variant, held, _, arms, visits, _, _ = instance[:]
    return Walker(program, person, at, event, count, since, cause, variant, held, arms, visits)


def _go_on(walker: Walker, instance: Instance, branch: str) -> Step:
    """One step of a pass: exit criteria, then the longest stay, then on from the wait."""
    program, wait = walker.program, instance.wait
    assert wait is not None
    if program.exit_rule is not None and program.exit_rule(walker):
        return _exit(walker, instance, "exit_criteria")
    if program.longest is not None and walker.at >= walker.entered_at + program.longest:
        return _exit(walker, instance, "max_duration")
    op = program.nodes[wait.node_id]
    event = walker.event
    walker.trail.append(op.timed_out if event is None else Woke(op.id, branch, event.id))
    if wait.kind == "window":
        walker.held_open = True
        after = op.run(walker)
    else:
        after = op.woken(branch) if isinstance(op, EventWaitOp) else op.after
    return _run(walker, after, op, instance)


def _run(
    walker: Walker,
    stop: Stop | None,
    stands: Op,
    before: Instance | None,
    steps: range = ALL_STEPS,
) -> Step:
    """Follow the nodes until one parks the person or ends the pass; `stands` is where they are.

    Beyond `MAX_STEPS` nodes the step fails and leaves instance and person as they were before.
    """
    tell = walker.trail.append
    person = walker.person
    for _ in steps:
        if stop is None:
            break
        visited, run, stands = stop
        tell(visited)
        stop = run(walker)
    if stop is not None:
        return _failed(stop[0].node_id, before, person, walker.at)
    if walker.failed:
        return Step(before, tuple(walker.trail), person, walker.at)
    if walker.person is not person and walker.wait is not None and _may_leave(walker):
        return _finish(walker, Exited(stands.id, "exit_criteria"))
    return _finish(walker, walker.exited or stands.ends)


def _may_leave(walker: Walker) -> bool:
    """Whether what the walk itself wrote makes the exit rule hold: nobody is parked then."""
    rule_holds = walker.program.exit_rule
    if rule_holds is None or not rule_holds(walker):
        return False
    walker.wait = None
    return True


def _failed(node_id: str, before: Instance | None, person: Person, at: Instant) -> Step:
    message = (
        f'The walk passed {MAX_STEPS} nodes without a wait and stopped before "{node_id}". '
        "Put a wait into the path."
    )
    failed = Failed(node_id, "STEP_LIMIT", message)
    return Step(before, (failed,), person, at)


def _exit(walker: Walker, instance: Instance, reason: ExitReason) -> Step:
    """End the pass before any node runs; an open wait closes on its exit branch."""
    if instance.wait is not None:
        event_id = walker.event.id if walker.event else ""
        walker.trail.append(Woke(instance.wait.node_id, "exit", event_id))
    return _finish(walker, Exited(instance.current_node, reason))


_COMPLETED = frozenset({"completed", "no_next_node", "goal_reached"})


def _finish(walker: Walker, exited: Exited) -> Step:
    """The step's result: parked where `walker.wait` was set, ended as `exited` says otherwise."""
    program, wait, wake_at = walker.program, walker.wait, None
    if wait is not None:
        walker.trail.append(wait)
        status, node_id, reason, wake_at = "waiting", wait.node_id, "", wait.until
        if program.longest is not None:
            latest = walker.entered_at + program.longest
            wake_at = latest if wake_at is None or latest < wake_at else wake_at
    else:
        walker.trail.append(exited)
        node_id, reason = exited
        status = "completed" if reason in _COMPLETED else "exited"
    fields = (
        program.tenant_id,
        program.journey_id,
        program.version,
        walker.person.user_id,
        walker.entry_count,
        status,
        node_id,
        walker.entered_at,
        walker.at,
        wake_at,
        walker.entered_by,
        walker.variant,
        walker.is_holdout,
        reason,
        walker.assignments,
        walker.visits,
        wait,
        None,
    )
    step: Step = new(Step, (new(Instance, fields), tuple(walker.trail), walker.person, walker.at))
    return step
