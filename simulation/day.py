"""The day: when those around the relay are busy, and when faults come.

A day begins with a rush, so a run of less than an hour is busy throughout; then come a quiet
morning, lunch, two more rushes, the evening, and a night with a short batch of mail in it.
Who pauses by `after` does so in busy seconds: as many of them pass in a minute of rush as in hours
of the night.
"""

from __future__ import annotations

HOUR = 3600.0
DAY = 24 * HOUR

_SPANS = (
    (0.0, 1.0),  # the rush in the morning
    (0.75, 0.03),
    (3.0, 0.01),  # lunch
    (4.0, 1.0),  # the rush after it
    (4.05, 0.03),
    (8.0, 1.0),  # the last of the working day
    (8.05, 0.01),
    (13.0, 0.005),  # night
    (18.0, 2.0),  # its batch
    (18.05, 0.005),
    (22.0, 0.03),
)
"""From which hour on, and how busy: of the rush in the morning."""


def after(at: float, work: float) -> float:
    """Return the instant (virtual seconds) at which `work` busy seconds have passed since `at`."""
    share, ends = _share(at)
    while at + work / share > ends:
        work -= (ends - at) * share
        at = ends
        share, ends = _share(at)
    return at + work / share


def _share(at: float) -> tuple[float, float]:
    """Return how busy it is at an instant, and until when."""
    day, hour = at // DAY * DAY, at % DAY / HOUR
    for (began, share), (ended, _) in zip(_SPANS, (*_SPANS[1:], (24.0, 0.0)), strict=True):
        if began <= hour < ended:
            return share, max(day + ended * HOUR, at + 0.001)
    return _SPANS[-1][1], day + DAY
