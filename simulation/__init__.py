"""The whole relay in one process, against a seeded adversary: the same seed, the same run.

`relay simulate` runs this package in a process of its own (`__main__`), which puts its own clocks,
chance, network and waits into the product's seams (`seams`) before anything of the product is
loaded.  Then K nodes (`node`: real settings, resources, tree and supervisor of the product) live in
one run of Trio on a virtual clock, with one real PostgreSQL (`database`), a simulated network
(`network`), people and machines around them (`workload`), faults (`faults`) and a judge (`judge`).

docs/simulation.md says what that covers, and what it does not.
"""
