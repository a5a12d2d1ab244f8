"""A whole installation in one thread: many processes, a database, an outside world, and a seed.

`python -m tests.sim.run` runs seeds; what one did once it does on every run.
"""
