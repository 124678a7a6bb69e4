"""Feeds: answers that go on, or that wait until there is something to say.

`following_mail.py` gives pages of entries as they come, `event_streams.py` is for the log and the
tree's events, and `parsed.py` waits until what was accepted is shown.  A feed ends when the relay
stops, and when its caller would not be let in any more.

Entered by all three; who wakes them is `waiting`.
"""
