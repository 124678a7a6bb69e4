"""What the judge says of letters and their links: by what their recipients got, and did with it."""

from __future__ import annotations

import base64
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from simulation.database import Database
from simulation.faults import BESIDE
from simulation.history import ACTIVATION, RECOVERY, Answer, Click, History, Letter
from simulation.places import LEASE
from simulation.world import EPOCH

_SUBJECTS = "Activate your account", "Recover your password"
_LONG = 890.0  # seconds: tokens that are good for less may end before they are mailed
_TAKING = 25.0  # seconds that may pass from when a token is taken until its letter is queued
_IN_HAND = LEASE + 5.0  # seconds for which who has claimed a letter may be delivering it
_HAS_WAITED = 9.0  # seconds, of ten
_MOMENT = 3.0  # seconds that are no matter of order
_LOCKED = 160.0  # seconds for which who was stopped may have kept a token locked
_NOT_NOTICED = 6.0  # seconds for which a relay may not notice that another server is the primary


@dataclass
class Token:
    """A token as the database has it, and what was seen of it."""

    email: str
    action: str
    code: str
    made_at: float
    """Virtual seconds."""
    expires_at: float
    is_used: bool
    account: str
    """The status of its account."""
    queued: list[tuple[str, float]] = field(default_factory=list)
    """The status of its letter, and when that was queued; of each, if it has several."""
    came: list[Letter] = field(default_factory=list)
    clicks: list[Click] = field(default_factory=list)
    """In the order in which they were made."""

    @property
    def fits(self) -> bool:
        """Whether its account is one that can use it."""
        return self.account == ("active" if self.action == RECOVERY else "provisioned")


def violations(database: Database, history: History) -> list[str]:
    """Return a sentence for every promise about letters and links that was broken."""
    tokens: dict[bytes, Token] = {}
    for secret, status, at, *rest in database.query(
        """
        SELECT t.secret, m.status, extract(epoch FROM m.created_at)::float8 - %(epoch)s,
               a.email, t.action::text, t.code, t.created_at::float8 - %(epoch)s,
               t.expires_at::float8 - %(epoch)s, t.consumed_at IS NOT NULL, a.status::text
        FROM relay.tokens t
        JOIN relay.accounts a ON a.id = t.account
        LEFT JOIN relay.outbound_letters l ON l.token = t.id
        LEFT JOIN relay.outbound_messages m ON m.id = l.id
        ORDER BY t.id
        """,
        {"epoch": EPOCH},
    ):
        known = tokens.setdefault(bytes(secret), Token(*rest))
        known.queued += [(status, at)] if status else []
    made = dict(database.query("SELECT email, status::text FROM relay.accounts"))
    found = _accounts(database, history, made)
    for letter in history.letters:
        token = tokens.get(_secret(letter.token))
        if token is None:
            found.append(f"{letter.recipient}: got a letter whose token there is not")
            continue
        token.came.append(letter)
        if (token.email, token.action) != (letter.recipient, letter.action) or (
            letter.action == RECOVERY and token.code != letter.code
        ):
            found.append(f"{letter.recipient}: got a letter that is not of its token")
    for click in history.clicks:
        if (clicked := tokens.get(_secret(click.token))) is not None:
            clicked.clicks.append(click)
    of: dict[str, list[Token]] = defaultdict(list)
    for token in tokens.values():
        token.clicks.sort(key=lambda click: click.asked_at)
        of[token.email].append(token)
    found += [each for email in made for each in _asked(history, email, of[email])]
    for token in tokens.values():
        found += _letter(history, token)
        found += _link(history, token, of[token.email])
    found += [
        f"{email}: is active, and nobody activated it"
        for email, status in made.items()
        if status == "active"
        and email in history.accounts
        and not any(
            _may_use(click)
            for token in of[email]
            if token.action == ACTIVATION
            for click in token.clicks
        )
    ]
    return [*found, *_in_order(history, tokens.values())]


def _asked(history: History, email: str, tokens: Sequence[Token]) -> Iterator[str]:
    """A token is made for each that was promised, and none besides."""
    if email not in history.accounts:
        return
    asked = [
        (ACTIVATION, Answer.KEPT),
        *history.asked.get(email, ()),
    ]  # it is there: so is its first
    for action in (ACTIVATION, RECOVERY):
        answers = [answer for what, answer in asked if what == action]
        n, kept = sum(token.action == action for token in tokens), answers.count(Answer.KEPT)
        if not kept <= n <= kept + answers.count(Answer.DOUBT):
            yield f"{email}: was promised {kept} letters ({action}), and has {n} tokens"


def _accounts(database: Database, history: History, made: Mapping[str, str]) -> list[str]:
    """An account that was promised is there, and active once that was said of it."""
    mailed = {row[0] for row in database.query("SELECT recipient FROM relay.outbound_messages")}
    found = []
    for email, answer in history.accounts.items():
        if answer is Answer.KEPT and email not in made:
            found.append(f"{email}: 201 was said, and there is no account")
        if answer is Answer.REFUSED and email in made:
            found.append(f"{email}: was refused, and there is an account")
        if email in made and email not in mailed:
            found.append(f"{email}: has an account and got no letter")
    suspended = {each.email for each in history.suspensions if each.ended == inf}
    for each in history.suspensions:
        if made.get(each.email) == "suspended" and each.email not in suspended:
            found.append(f"{each.email}: 200 was said to the end of its suspension, and it is on")
    for email in dict.fromkeys(history.activated):
        if made.get(email) != "active" and email not in suspended:
            found.append(f"{email}: was told that it is active, and is {made.get(email)}")
    return found


def _secret(token: str) -> bytes:
    return base64.urlsafe_b64decode(token + "==")[:32]


def _letter(history: History, token: Token) -> Iterator[str]:
    """One token, one letter, and its recipient gets it."""
    email = token.email
    if (n := len(token.queued)) > 1:
        yield f"{email}: one token, {n} letters"
    if (n := len({each.id for each in token.came})) > 1:
        yield f"{email}: one token, and {n} letters came"
    for _, at in token.queued:
        if at > token.expires_at + _TAKING + history.apart:
            yield f"{email}: its letter was queued {at - token.expires_at:.3f} s after its end"
    for letter in token.came:
        late = letter.at - token.expires_at
        if late > _IN_HAND + history.apart and not any(
            each.kind in {"freeze", "partition"} and each.at_work(token.expires_at, letter.at)
            for each in history.troubles
        ):
            yield f"{email}: its letter came {late:.3f} s after its end"
    if token.came or email not in history.accounts:
        return
    status = token.queued[0][0] if token.queued else "not there"
    if status == "sent":
        yield f"{email}: its letter is said to be sent, and nobody got it"
    elif status in {"failed", "bounced"}:
        if not history.refused(email):
            yield f"{email}: its letter is {status}, and nobody refused it"
    elif (
        status != "held"
        and token.fits
        and not token.is_used
        and token.expires_at - token.made_at >= _LONG
        and not history.suspended(email, token.expires_at - _LONG / 2, token.expires_at)
    ):
        yield f"{email}: its letter ({token.action}) is {status}, and never came"


def _link(history: History, token: Token, of_account: Sequence[Token]) -> Iterator[str]:
    """A link is good once, as long as it may be, and of no use after that."""
    email, clicks = token.email, [each for each in token.clicks if not each.looks]
    good = [each for each in clicks if each.status == 200]
    if len(good) > 1:
        yield f"{email}: its link is good once, and was good {len(good)} times"
    if good and not token.is_used:
        yield f"{email}: 200 was said to its link, and that is not used"
    if token.is_used and not any(_may_use(each) for each in clicks):
        yield f"{email}: its link is used, and nobody used it"
    for click in good:
        if click.asked_at >= token.expires_at + history.apart:
            yield f"{email}: its link was good at {click.answered_at:.3f}, after its end"
        if any(
            each.email == email and each.since <= click.asked_at <= click.answered_at <= each.until
            for each in history.suspensions
        ):
            yield f"{email}: its link was good at {click.answered_at:.3f}, while it was suspended"
        if click.said != (token.action, email):
            yield f"{email}: its link was taken for {click.said}"
    for click in token.clicks:
        if click.status == 400 and not _may_be_refused(history, token, click, of_account):
            yield f"{email}: its link was refused at {click.answered_at:.3f}, and is good"
        later = [each for each in token.clicks if each.asked_at >= click.answered_at]
        for each in later:
            dead = (
                (click.status == 400 and not click.looks)
                and not history.suspended(email, click.asked_at, click.answered_at)
            ) or (click in good and each.looks)
            if dead and each.status == 200 and not _of_the_old(history, each, click):
                yield (
                    f"{email}: its link was of no use from {click.answered_at:.3f} on, and is of"
                    f" some at {each.answered_at:.3f}"
                )
                return


def _may_use(click: Click) -> bool:
    """Whether a click has used its link, or may have."""
    return not click.looks and (click.status in {0, 200} or click.status >= 500)


def _may_be_refused(
    history: History, token: Token, click: Click, of_account: Sequence[Token]
) -> bool:
    """Whether a link may have been refused: it was over, or used; or its account is active."""
    return (
        token.expires_at <= click.answered_at + history.apart
        or history.suspended(token.email, click.asked_at, click.answered_at)
        or any(
            _may_use(each) and each is not click and each.asked_at <= click.answered_at
            for other in of_account
            if other is token or token.action == other.action != RECOVERY
            for each in other.clicks
        )
        or _of_the_old(history, click)
    )


def _in_order(history: History, tokens: Collection[Token]) -> list[str]:
    """A recovery goes before an activation, but for one in a batch that has waited for long."""
    waited: dict[str, list[tuple[float, float, str]]] = {ACTIVATION: [], RECOVERY: []}
    for token in tokens:
        if token.queued and not history.suspended(token.email, token.made_at, token.queued[0][1]):
            waited[token.action].append((token.made_at, token.queued[0][1], token.email))
    batches = Counter(at for _, at, _ in waited[ACTIVATION])
    return [
        f"{email}: went before the recovery of {other}, which had waited"
        for made, at, email in waited[ACTIVATION]
        if at - made < _HAS_WAITED or batches[at] > 1
        for since, then, other in waited[RECOVERY]
        if since + _MOMENT < at < then - _MOMENT
        and not history.troubled(at - _LOCKED, at + _MOMENT, but=("clock", "peer"))
    ]


def _of_the_old(history: History, *clicks: Click) -> bool:
    """Whether one of them may have asked a primary that lived on beside the promoted one."""
    return any(
        trouble.how == BESIDE and trouble.at_work(each.asked_at - _NOT_NOTICED, each.answered_at)
        for trouble in history.troubles
        for each in clicks
    )


def budget(database: Database, rate: float | None) -> list[str]:
    """At no time had more letters gone out than the budget had paid for."""
    if rate is None:
        return []
    rows = database.query(
        "SELECT recipient, extract(epoch FROM created_at)::float8"
        " FROM relay.outbound_messages WHERE subject IN (%s, %s) ORDER BY created_at, id",
        list(_SUBJECTS),
    )
    return [
        f"{recipient}: is letter {number}, and the budget paid for {paid:.1f} by then"
        for number, (recipient, at) in enumerate(rows, 1)
        if number > (paid := 1.0 + rate * (at - EPOCH + _MOMENT))
    ][:1]
