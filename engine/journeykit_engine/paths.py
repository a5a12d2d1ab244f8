"""The ways through a graph: loops, reach, the longest path. Linear in the graph, no recursion."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from journeykit_engine.graph import Graph

Ways = Mapping[str, Sequence[str]]
MAX_STEPS = 100  # nodes in one step of a walk; a loop without a wait would never end otherwise


def ways(graph: Graph) -> dict[str, list[str]]:
    """For each node id the ids it leads to, in port order; edges to nowhere are left out."""
    known = graph.by_id
    return {
        node.id: [port.target for port in node.ports() if port.target in known]
        for node in known.values()
    }


def reachable(ways: Ways, *starts: str) -> set[str]:
    """Every node that can be reached from any of `starts`, themselves included; a start that is
    no node reaches nothing."""
    todo = [start for start in starts if start in ways]
    found = set(todo)
    while todo:
        for target in ways[todo.pop()]:
            if target not in found:
                found.add(target)
                todo.append(target)
    return found


def knots(ways: Ways) -> list[list[str]]:
    """The strongly connected components that hold a loop, each in the order its nodes were met;
    Tarjan's algorithm with a stack of its own."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    found: list[list[str]] = []
    for root in ways:
        if root not in index:
            _knots_from(root, ways, index, low, stack, on_stack, found)
    return found


def _knots_from(
    root: str,
    ways: Ways,
    index: dict[str, int],
    low: dict[str, int],
    stack: list[str],
    on_stack: set[str],
    found: list[list[str]],
) -> None:
    trail = [(root, iter(ways[root]))]
    index[root] = low[root] = len(index)
    stack.append(root)
    on_stack.add(root)
    while trail:
        node, targets = trail[-1]
        for target in targets:
            if target not in index:
                index[target] = low[target] = len(index)
                stack.append(target)
                on_stack.add(target)
                trail.append((target, iter(ways[target])))
                break
            if target in on_stack:
                low[node] = min(low[node], index[target])
        else:
            trail.pop()
            if trail:
                low[trail[-1][0]] = min(low[trail[-1][0]], low[node])
            if low[node] == index[node]:
                knot = _knot_off(stack, node)
                on_stack.difference_update(knot)
                if len(knot) > 1 or node in ways[node]:
                    found.append(knot)


def _knot_off(stack: list[str], root: str) -> list[str]:
    """Take the top of the stack down to `root`, in the order it was put there."""
    knot = [stack.pop()]
    while knot[-1] != root:
        knot.append(stack.pop())
    return knot[::-1]


def on_a_loop(graph: Graph) -> set[str]:
    """The ids of the nodes that can be visited twice in one entry."""
    return {node_id for knot in knots(ways(graph)) for node_id in knot}


def shortest_loop(ways: Ways, within: Sequence[str]) -> list[str]:
    """One shortest loop through the first node of a knot that stays inside it."""
    start, inside = within[0], set(within)
    came_from: dict[str, str] = {}
    todo = [start]
    for node in todo:
        for target in ways[node]:
            if target == start:
                loop = [node]
                while loop[-1] != start:
                    loop.append(came_from[loop[-1]])
                return loop[::-1]
            if target in inside and target not in came_from:
                came_from[target] = node
                todo.append(target)
    raise AssertionError(f'no loop through "{start}"')


def longest(ways: Ways, stops: Callable[[str], bool]) -> dict[str, int]:
    """For each node how many nodes the longest path from it visits, up to and including the first
    one that `stops` (or the end). The ways must have no loop without such a stop; nodes that lie
    on one are left out."""
    lengths: dict[str, int] = {}
    for node in _leaves_first(ways, stops):
        nexts = () if stops(node) else ways[node]
        lengths[node] = 1 + max((lengths.get(target, 0) for target in nexts), default=0)
    return lengths


def _leaves_first(ways: Ways, stops: Callable[[str], bool]) -> list[str]:
    """Kahn's order from the ends back, over the edges that do not leave a stop."""
    waiting = {node: 0 if stops(node) else len(targets) for node, targets in ways.items()}
    back: dict[str, list[str]] = {node: [] for node in ways}
    for node, targets in ways.items():
        if not stops(node):
            for target in targets:
                back[target].append(node)
    done = [node for node, count in waiting.items() if count == 0]
    for node in done:
        for before in back[node]:
            waiting[before] -= 1
            if waiting[before] == 0:
                done.append(before)
    return done
