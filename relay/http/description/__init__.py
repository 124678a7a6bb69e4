"""The description of every call (OpenAPI 3.1), made from the declarations that enforce them.

`openapi.py` makes it, with the values of `examples.py` and the programs of `samples.py`.  A call
that is declared is described; a field without an example is a bug.

Entered by `openapi.py` and `examples.py`.
"""
