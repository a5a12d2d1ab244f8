"""The engine of journeykit: pure functions from a graph, a person and a moment to what happens.

No clock, no chance, no I/O. The modules in groups, from the ground up; a group never imports from
one below it in this list:

* values: `strict_json` JSON without its soft spots, `shape` a document's faults of shape in words,
  `zone` the zones of the clock, `timing` when, `allot` which arm, `template` with which words;
* people: `instance` who walks and where they stand, `signal` the event that arrived, `facts` all
  that a rule may look at;
* rules, for whom: `comparison` one value, `moment` one date, `history` the leaves about events,
  `leaf` all leaves, `rule_faults` what is wrong with a definition, `rule` the language itself;
* the document: `graph` as nodes, `steps` as outreach steps, `document` in any form that is handed
  over, `paths` the ways through it, and `check` what is wrong with it (`check_nodes` node by node,
  `check_warnings` what may surprise);
* the walk: `profile` what is stored of people's traits, `trail` what a walk tells, `nodes` what
  each kind of node does, `program` the graph ready to run, `walk` one step of one person;
* many steps: `simulate` one person, `replay` a whole history, with `looks` the scanner and
  `journal` the records and their sums.

To read a journey start with `graph`, to see it run with `walk`. Modules are imported by name
(`from journeykit_engine import walk`), so that a program loads only those it needs.
"""
