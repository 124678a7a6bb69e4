"""What happens in a tree is told as events that say what they are."""

import re

import supervisor
from supervisor import Event


def test_every_event_has_a_kind_of_its_own():
    """Logs and streams write it: the event's name, in snake_case."""
    events = [each for each in vars(supervisor).values() if isinstance(each, type)]
    told = [each for each in events if issubclass(each, Event) and each is not Event]
    assert len(told) > 10
    for each in told:
        assert each.kind == re.sub(r"(?<!^)(?=[A-Z])", "_", each.__name__).lower()
