"""The people to whom letters come: they open the links, at times two at once, or once more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import trio

from simulation.around import Around
from simulation.around.shop import hold
from simulation.around.talk import HttpFailed, call
from simulation.history import RECOVERY, Click, Letter
from simulation.world import NODE

_KEPT = 20  # letters that somebody comes back to


@dataclass
class Opened:
    """A letter that somebody has opened."""

    letter: Letter
    used: bool = False
    """Whether its link was good."""
    refused: bool = False


async def person(around: Around, name: str, mean: float) -> None:
    """Open the links of letters that came, and come back to some of them."""
    NODE.set(name)
    rng = around.world.here
    opened: list[Opened] = []
    while await around.pause(rng, mean):
        # Whose link was refused, and was never good, does not understand that.
        puzzling = [each for each in opened if each.refused and not each.used]
        if opened and (not around.letters or rng.random() < 0.3):
            one = rng.choice(puzzling if puzzling and rng.random() < 0.8 else opened)
        elif around.letters:
            one = Opened(around.letters.pop(rng.randrange(len(around.letters))))
            opened.append(one)
            del opened[:-_KEPT]
        else:
            continue
        if rng.random() < 0.2:
            await _use(around, one, around.choose(rng), looks=True)
        await _open(around, one, rng, two=rng.random() < 0.25)


async def _open(around: Around, one: Opened, rng: Any, *, two: bool) -> None:
    """Use a link until it is known what became of it; `two`: from two machines at once."""
    hosts = rng.sample(around.hosts, min(len(around.hosts), 2)) if two else []
    async with trio.open_nursery() as nursery:
        if two and rng.random() < 0.6:
            # Until it is over neither knows of the other.
            await nursery.start(hold, around, one.letter.recipient, rng.uniform(0.05, 1.0))
        for host in hosts or [around.choose(rng)]:
            around.busy(host)
            nursery.start_soon(_use, around, one, host)
    for _ in range(2):
        if one.used or one.refused:
            return
        with trio.move_on_after(rng.uniform(0.0, 15.0)):
            await around.stopped.wait()
        await _use(around, one, around.choose(rng))


async def _use(around: Around, one: Opened, host: str, *, looks: bool = False) -> None:
    """Use a link; or look what its page says, which uses nothing."""
    letter, world = one.letter, around.world
    click = Click(letter.token, world.now(), looks=looks)
    said = None
    try:
        if looks:
            page = "recover" if letter.action == RECOVERY else "activate"
            click.status, _ = await call(around, host, "GET", f"/{page}?token={letter.token}")
        else:
            body = {"token": letter.token} | ({"code": letter.code} if letter.code else {})
            click.status, said = await call(around, host, "POST", "/api/v1/tokens/consume", body)
    except HttpFailed:
        pass
    click.answered_at = world.now()
    around.history.clicks.append(click)
    told = {"email": letter.recipient, "action": letter.action, "status": click.status}
    if looks:
        world.tell("link.looked_at", host=host, **told)
        return
    world.tell("token.answered", host=host, **told)
    if click.status == 200 and isinstance(said, dict):
        click.said = said["action"], said["login"]
        one.used = True
        if letter.action != RECOVERY:
            around.history.activated.append(letter.recipient)
    one.refused |= click.status == 400
