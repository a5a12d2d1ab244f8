"""The engine of journeykit: pure functions from a graph, a person and a moment to what happens.

No clock, no chance, no I/O. The rooms, from the ground up:

* `timing` when, `allot` which arm, `rule` for whom, `template` with which words;
* `graph` the document, `document` every form it is written in, `check` what is wrong with it;
* `instance` who walks, `program` the graph ready to run, `walk` one step, `trail` what it tells;
* `simulate` one person, `replay` a whole history, `journal` as records and sums.

Modules are imported by name (`from journeykit_engine import walk`), so that a program loads only
the rooms it enters.
"""
