"""Previews: the pictures that a message shows.

`pictures.py` tells by its first bytes whether an attachment is one, `picture_links.py` signs the
address of each, for a short time.  Pure; `resources/previews.py` serves them.

Entered by both.
"""
