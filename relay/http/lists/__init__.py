"""Lists: they come in pages, and go by a cursor.

`paging.py` has `limit`, `cursor` and the `Link` to the next page; `entries.py` declares the two
calls that every list of a caller's own things has.  Whoever follows the cursors sees each entry
that stays there once.

Entered by both.
"""
