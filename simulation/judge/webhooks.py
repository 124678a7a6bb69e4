"""Webhooks: who is to be told of mail is told, by posts that are what they say, and no oftener than
need be.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from math import inf

from simulation.history import Answer, History, Post

_SOON = 1.0  # seconds between what a post reads and the post
_POST_LASTS = 15.0  # seconds for which an answer to a post is waited for


def told(history: History, now: float) -> list[str]:
    tells = {box.address for box in history.mailboxes if box.tells and history.over_from(box) > now}
    return [
        f"{mail.marker}: arrived, and nobody was told"
        for mail in history.mail.values()
        if mail.answer is Answer.KEPT
        and mail.address in tells
        and mail.deletion_asked == inf
        and f"{mail.marker}/{mail.address}" not in history.told
    ]


def posts(history: History) -> list[str]:
    """Of each message there is one event, told once; an event has one id, and a signature."""
    found: list[str] = []
    over = {box.address: history.over_at(box) for box in history.mailboxes}
    gone = {
        f"{mail.marker}/{mail.address}": min(mail.deleted_at, over.get(mail.address, inf))
        for mail in history.mail.values()
    }
    events: dict[str, list[Post]] = defaultdict(list)
    for post in history.posts:
        what = f"{post.marker}/{post.mailbox}"
        events[what].append(post)
        if what not in gone:
            found.append(f"{what}: nobody sent it, and it was told of")
        if not post.named:
            found.append(f"{what}: was told of with another id than its event's")
        if not post.signed:
            found.append(f"{what}: was told of, and not signed")
        end = gone.get(what, inf)
        if post.at > end + _SOON and not history.troubled(end - _SOON, post.at, but=("clock",)):
            found.append(f"{what}: was told of {post.at - end:.3f} s after its end")
    for what, posts in events.items():
        if len({post.event for post in posts}) > 1:
            found.append(f"{what}: was told of by more than one event")
        for one, two in pairwise(sorted(posts, key=lambda post: post.at)):
            said = f"posted at {one.at:.3f} by {one.node} and again at {two.at:.3f} by {two.node}"
            if one.told_at is not None and one.told_at <= two.at:
                if not history.may_post_again(one, two):
                    found.append(f"{what}: {said}, though it was told, without excuse")
                continue
            both = two.at < min(one.ended_at, one.at + _POST_LASTS)
            if both and not history.may_post_both(one, two):
                found.append(f"{what}: {said}, both under way, without excuse")
    return found
