"""The forms of what the tools take and answer.

One declaration is the schema that an agent reads, the check of what it sent and the shape of what
it gets, so they cannot differ.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class Arguments(BaseModel):
    """What a tool takes; an unknown name is an error, so that a misspelt one is not ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Result(BaseModel):
    """What a tool answers."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)


Address = Annotated[str, Field(min_length=3, description="the inbox, as create_inbox gave it")]
Timeout = Annotated[
    float, Field(ge=0, le=3600, description="seconds to wait for mail that is not there yet")
]
Sender = Annotated[
    str | None,
    Field(alias="from", description="only mail whose From contains this, in any case"),
]
Subject = Annotated[
    str | None, Field(description="only mail whose subject contains this, in any case")
]
MessageId = Annotated[
    str | None, Field(description="look at this message only; else at the newest that has one")
]


class CreateInbox(Arguments):
    """Arguments of create_inbox."""

    ttl_minutes: Annotated[
        int | None, Field(ge=1, description="how long it lives; the plan's default when left out")
    ] = None
    local_part: Annotated[
        str | None, Field(description="the part before the @; a random one when left out")
    ] = None
    domain: Annotated[
        str | None, Field(description="one of the relay's domains; its first when left out")
    ] = None


class Inbox(Result):
    """A new inbox."""

    address: str
    expires_at: str
    plan: str


class WaitForMail(Arguments):
    """Arguments of wait_for_mail."""

    address: Address
    timeout: Timeout = 60.0
    sender: Sender = None
    subject: Subject = None
    after: Annotated[
        str | None,
        Field(description="only mail after this message id or RFC 3339 time; else any counts"),
    ] = None


class LatestMail(Arguments):
    """Arguments of latest_mail."""

    address: Address
    sender: Sender = None
    subject: Subject = None


class Attachment(Result):
    """A file that came with a message."""

    index: int
    filename: str | None
    content_type: str
    size: Annotated[int, Field(description="bytes")]


class Mail(Result):
    """A message."""

    id: str
    from_address: str | None
    to: str
    subject: str | None
    received_at: str
    code: Annotated[str | None, Field(description="the one-time code found in it")]
    links: Annotated[list[str], Field(description="likely confirmation links first")]
    text: Annotated[str | None, Field(description="its text; null when it has HTML only")]
    html: Annotated[str | None, Field(description="its HTML, where it has no text")]
    truncated: Annotated[bool, Field(description="whether text or html was cut")]
    attachments: list[Attachment]


class PlacedMail(Mail):
    """A message, and where it is."""

    mailbox: Annotated[str, Field(description="the inbox it is in")]
    tags: list[str]


class PlacedResult(Result):
    """A message of any inbox, or none."""

    found: Annotated[bool, Field(description="false: none came in time")]
    mail: PlacedMail | None


class MailResult(Result):
    """A message, or none."""

    found: Annotated[bool, Field(description="false: none came in time, or none is there")]
    mail: Mail | None


_SEARCH = (
    'words, "phrases", -not, from: to: subject: tag: has:attachment is:unread is:read '
    "before:2026-11-01 after: larger:100k smaller:, all of which must hold"
)


class SearchMail(Arguments):
    """Arguments of search_mail."""

    query: Annotated[str, Field(description=f"{_SEARCH}; all mail when left out")] = ""
    limit: Annotated[int, Field(ge=1, le=200, description="messages at most")] = 20


class Entry(Result):
    """A message as a list shows it."""

    id: str
    mailbox: Annotated[str, Field(description="the inbox it is in, as other tools take it")]
    from_address: str | None
    subject: str | None
    received_at: str
    is_read: bool
    tags: list[str]
    snippet: Annotated[str | None, Field(description="how its text begins")]
    has_attachments: bool | None


class SearchResult(Result):
    """What was found, newest first."""

    messages: list[Entry]
    more: Annotated[bool, Field(description="whether there may be older ones; narrow the query")]


class WaitAnywhere(Arguments):
    """Arguments of wait_for_any_mail."""

    query: Annotated[str, Field(description=f"{_SEARCH}; any mail when left out")] = ""
    timeout: Timeout = 60.0
    after: Annotated[
        str | None,
        Field(description="only mail after this message id or RFC 3339 time; else any counts"),
    ] = None


class OneMessage(Arguments):
    """Which message is meant."""

    address: Address
    message_id: Annotated[str, Field(min_length=1, description="as lists and other tools give it")]


class ReadMail(OneMessage):
    """Arguments of read_mail."""


class TagMail(OneMessage):
    """Arguments of tag_mail."""

    add: Annotated[list[str], Field(max_length=20, description="tags to add")] = []
    remove: Annotated[list[str], Field(max_length=20, description="tags to take away")] = []
    is_read: Annotated[bool | None, Field(description="mark it read or unread")] = None


class CheckMail(OneMessage):
    """Arguments of check_mail."""

    links: Annotated[
        bool, Field(description="ask whether its links answer, too (by HEAD; public hosts alone)")
    ] = False


class Check(Result):
    """One check."""

    result: Annotated[
        str, Field(description="pass, fail, softfail, neutral, none, permerror or temperror")
    ]
    detail: Annotated[str, Field(description="why")]


class Finding(Result):
    """One thing to mend."""

    id: str
    severity: Literal["error", "warning", "note"]
    text: str


class CheckResult(Result):
    """What the world would make of a message."""

    score: Annotated[float, Field(ge=0, le=10, description="10: nothing to mend")]
    reasons: Annotated[list[str], Field(description="what it is short of 10 for, and by")]
    spf: Check
    dkim: Check
    dmarc: Check
    findings: list[Finding]


class ReleaseMail(OneMessage):
    """Arguments of release_mail."""

    to: Annotated[list[str], Field(min_length=1, max_length=100, description="addresses")]
    idempotency_key: Annotated[
        str | None,
        Field(description="the same key and call within 24 hours releases it once"),
    ] = None


class ExtractCode(Arguments):
    """Arguments of extract_code."""

    address: Address
    message_id: MessageId = None
    sender: Sender = None
    subject: Subject = None
    timeout: Timeout = 0.0


class Code(Result):
    """A one-time code, and the message it came in."""

    code: str
    message_id: str
    from_address: str | None
    subject: str | None
    received_at: str


class ExtractLink(Arguments):
    """Arguments of extract_link."""

    address: Address
    message_id: MessageId = None
    contains: Annotated[
        str | None,
        Field(
            description="only a link to this host or its subdomains (shop.example), that begins so "
            "(https://shop.example/verify), or with this in its path or query (/verify)"
        ),
    ] = None
    sender: Sender = None
    subject: Subject = None
    timeout: Timeout = 0.0


class Link(Result):
    """The likeliest link of a message, and all of them."""

    link: str
    links: list[str]
    message_id: str
    from_address: str | None
    subject: str | None
    received_at: str


class CompleteSignup(Arguments):
    """Arguments of complete_signup."""

    address: Address
    timeout: Timeout = 60.0
    sender: Sender = None
    subject: Subject = None
    link_contains: Annotated[
        str | None,
        Field(
            description="open only a link to this host or its subdomains (shop.example), that "
            "begins so (https://shop.example/verify), or with this in its path or query (/verify)"
        ),
    ] = None
    open_link: Annotated[
        bool, Field(description="false: report code and link and open nothing")
    ] = True


class Opened(Result):
    """What opening the link led to."""

    status: Annotated[int, Field(description="HTTP status of the last page")]
    url: Annotated[str, Field(description="where redirects ended")]
    title: str
    text: Annotated[str, Field(description="the beginning of the page's text")]
    steps: Annotated[list[str], Field(description='each request, such as "GET 302"')]
    form_submitted: Annotated[bool, Field(description="a confirmation form was sent")]


class Signup(Result):
    """How far a sign-up came."""

    completed: Annotated[bool, Field(description="the link was opened and the site said yes")]
    note: Annotated[str, Field(description="what happened, or what is left to do")]
    code: str | None
    link: str | None
    message_id: str
    from_address: str | None
    subject: str | None
    opened: Opened | None


class Send(Arguments):
    """Arguments of send."""

    sender: Annotated[str, Field(alias="from", description="an address, or Name <address>")]
    to: Annotated[
        list[str] | str, Field(description="one address or several; each gets its own message")
    ]
    subject: str = ""
    text: str | None = None
    html: str | None = None
    priority: Literal["high", "normal", "bulk"] = "normal"
    send_at: Annotated[
        str | None, Field(description="not before this RFC 3339 time; else at once")
    ] = None
    idempotency_key: Annotated[
        str | None,
        Field(description="the same key and message within 24 hours is sent once"),
    ] = None


class Queued(Result):
    """One message of the queue."""

    id: Annotated[str, Field(description="for queue_state")]
    recipient: str
    status: str


class SendResult(Result):
    """What was queued, a message a recipient."""

    messages: list[Queued]


class QueueQuery(Arguments):
    """Arguments of queue_state."""

    message_id: Annotated[
        str | None, Field(description="a message that send gave; the whole queue when left out")
    ] = None


class Counts(Result):
    """The outbound queue at this moment."""

    paused: bool
    queued: int
    due: int
    processing: int
    held: int
    oldest_due_seconds: float | None
    last_hour: Annotated[dict[str, int], Field(description="what finished, by status")]


class Delivery(Result):
    """One outbound message."""

    id: str
    status: str
    recipient: str | None
    subject: str | None
    attempts: int
    next_retry_at: str | None
    sent_at: str | None
    error: str | None
    peer: Annotated[
        str | None, Field(description="the server of the last attempt, host[address]:port")
    ]
    tls: Annotated[str | None, Field(description="the version of TLS it was spoken to in")]
    reply: Annotated[
        str | None, Field(description="what was said to the message when it was taken")
    ]
    phases: Annotated[list[str], Field(description='each phase, such as "rcpt 250"')]


class QueueResult(Result):
    """The queue as a whole, or one message of it."""

    queue: Counts | None
    message: Delivery | None
