"""The whole relay in one process, against a seeded adversary: the same seed, the same run.

`relay simulate` runs this package in a process of its own (`__main__`, `command`), which puts its
own clocks, chance, network and waits into the product's seams (`seams`) before anything of the
product is loaded.  Then several nodes live in one run of Trio on a virtual clock (`run`):

- the world: its clock, chance and trace (`world`), its hosts and domains (`places`), its busy hours
  (`day`), its network (`network`), keys and certificates (`keys`);
- nodes: real settings, resources, tree and supervisor of the product (`node`), on one real
  PostgreSQL (`database`);
- people and machines around them (`around`);
- what goes wrong: kinds, plans, and who does what they say (`faults`), nodes that stand still
  (`freezing`);
- what was promised and seen (`history`), whether it was kept (`judge`), and the page that says what
  was not (`page`).

`many` runs a hundred seeds, `shrink` leaves out the faults that a broken promise does not need.
docs/simulation.md says what that covers, and what it does not.
"""
