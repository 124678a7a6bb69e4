"""Responses that are large: written piece by piece, within a memory budget.

`downloads.py` holds what is on its way to clients, `raw_mail.py` loads messages for it as they
came, `json_pieces.py` writes much mail as JSON, so that others have their turn in between.

Entered by `downloads.py` and `raw_mail.py`, and by `json_pieces.py` where an answer is of another
form than ours.
"""
