"""Composing: what an author asks for, and the bytes that it becomes.

`message.py` has a message as it is meant, checked field by field; `compose.py` makes its bytes (RFC
5322, MIME).  Knows no queue and no network.

Entered by `message.py` (whoever asks for mail) and `compose.py` (whoever needs the bytes).
"""
