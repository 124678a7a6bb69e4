"""The kinds of problems: what each means, and what to do about it.

What: `TYPES` has every case that a `Problem` may have.  `/problems/<case>`, which is the `type` of
an answer, shows its entry; `/openapi.json` enumerates them; docs/http.md has them as a table.

Promises: a case never changes its meaning, and one that was here stays: programs decide by it.

Fails: a `Problem` with a case that is not here is a KeyError where it is raised; a test looks for
such cases in the source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MEDIA_TYPE = "application/problem+json"
PREFIX = "/problems/"
"""What the `type` of a problem begins with; its case follows.

A path, as it is the same for all relays: a program that compares it need not know where its relay
is.  RFC 9457 has a client resolve it against the address it called, and there is its page.
"""


@dataclass(frozen=True)
class ProblemType:
    """One kind of problem.

    `when`: what has happened, in a clause; `remedy`: what the caller does now, in sentences;
    `detail`: an example of the sentence that an answer has.  `waits`: it has `Retry-After`.
    """

    statuses: tuple[int, ...]
    title: str
    when: str
    remedy: str
    detail: str
    waits: bool = False
    errors: bool = False  # an answer has `errors`, one sentence for each fault
    recipients: tuple[str, ...] = ()  # an example of those whom an answer names

    def example(self, case: str, status: int = 0) -> dict[str, object]:
        """Return an answer of this kind, whose case is `case`; 0: with the usual status."""
        return {
            "type": PREFIX + case,
            "title": self.title,
            "status": status or self.statuses[0],
            "detail": self.detail,
            **({"errors": [self.detail]} if self.errors else {}),
            **({"recipients": [*self.recipients]} if self.recipients else {}),
        }


TYPES: Mapping[str, ProblemType] = {
    "administrator-only": ProblemType(
        (403,),
        "Administrator only",
        "only the administrator's token makes sign-in links",
        "Call with the administrator's token, which is in run/relay.json of the data directory, "
        "or run `relay open` on the relay's machine.",
        "Only the administrator's token makes sign-in links.",
    ),
    "account-not-found": ProblemType(
        (404,),
        "Account not found",
        "there is no such account, or it is somebody else's",
        "Take the id from `GET /api/v1/accounts`. A key sees the accounts that it made, the "
        "administrator all of them.",
        "There is no such account, or not of yours.",
    ),
    "actor-not-found": ProblemType(
        (404,),
        "Actor not found",
        "there is no actor or group of this name",
        "Take the name from `GET /api/v1/supervision`, which shows the tree as it runs.",
        "There is no actor or group named 'nobody'.",
    ),
    "address-taken": ProblemType(
        (409,),
        "Address taken",
        "the `local_part` that was asked for is taken",
        "Ask for another `local_part`, or for none: then it is random. An address never comes back "
        "while there are messages of it.",
        "That local_part is taken.",
    ),
    "attachment-not-found": ProblemType(
        (404,),
        "Attachment not found",
        "the message has no attachment of this index",
        "`attachments` of the message lists them, each with its `index`.",
        "The message has no attachment of this index.",
    ),
    "bad-request": ProblemType(
        (400,),
        "Bad Request",
        "the request cannot be understood",
        "Look at what was sent: its first line, its headers, the length of its body.",
        "The request cannot be understood.",
    ),
    "bucket-not-allowed": ProblemType(
        (403,),
        "Bucket not allowed",
        "SES mail lies in a bucket that the settings do not name",
        "Add the bucket to `RELAY_INGEST__S3_BUCKETS`, if it is yours, and start the relay again.",
        "This bucket is not in the setting ingest.s3_buckets.",
    ),
    "cannot-be-sent": ProblemType(
        (409,),
        "Cannot be sent",
        "what was queued by SQL is no message, so there are no bytes of it",
        "Cancel it, and queue it again with values that make a message; the entry's `error` says "
        "what is wrong.",
        "The message cannot be sent: to: it names nobody.",
    ),
    "device-rate": ProblemType(
        (429,),
        "Too many blobs",
        "this device takes no more blobs for now",
        "Push again after `Retry-After`.",
        "This device takes no more blobs for now.",
        waits=True,
    ),
    "dkim-not-found": ProblemType(
        (404,),
        "No DKIM keys",
        "the domain has no DKIM keys, or none with that selector; or none that sign",
        "`GET /api/v1/dkim` lists the domains that have keys.",
        "This domain has no DKIM keys.",
    ),
    "dkim-selector-taken": ProblemType(
        (409,),
        "Selector taken",
        "a DKIM key of the domain has this selector, be it retired",
        "Name another selector, or none.",
        "A key of the domain has this selector.",
    ),
    "dkim-standby": ProblemType(
        (409,),
        "Standby keys wait",
        "the domain has standby DKIM keys already",
        "Rotate, which uses them and takes no selector; or remove them by their selector.",
        "The domain has standby keys.",
    ),
    "email-taken": ProblemType(
        (409,),
        "Email taken",
        "another account has this email",
        "Use another email, or find the account that has it. Whose account it is makes no "
        "difference.",
        "Another account has this email.",
    ),
    "event-not-found": ProblemType(
        (404,),
        "Event not found",
        "no event of yours with this id was given up",
        "`GET /api/v1/webhooks/events` lists those that were. They are kept for a week.",
        "You have no such event that was given up.",
    ),
    "foreign-host": ProblemType(
        (403,),
        "Foreign host",
        "`Host` does not name this relay",
        "Call the relay by a name that it knows: localhost, the address of its port, or one of "
        "`RELAY_HTTP__PUBLIC_URL`, to which the name you use may be added.",
        "The Host header does not name this relay. RELAY_HTTP__PUBLIC_URL says by which addresses "
        "it is reached, one or a JSON list of them; localhost and the address of the port need not "
        "be said.",
    ),
    "foreign-origin": ProblemType(
        (403,),
        "Foreign origin",
        "a page of another origin calls",
        "Call from a server instead of a browser, or serve the page from one of "
        "`RELAY_HTTP__PUBLIC_URL`.",
        "Pages of other origins may not call this relay.",
    ),
    "foreign-sender": ProblemType(
        (403,),
        "Foreign sender",
        "this key may not send from this address",
        "Send from an address that the key is limited to (`from` in `GET /api/v1/keys`), or make a "
        "key that may.",
        "from: this key may not send from this address.",
    ),
    "forged-notification": ProblemType(
        (403,),
        "Forged notification",
        "an SNS signature does not hold",
        "Post what Amazon SNS signed, byte for byte. A proxy that rewrites bodies breaks it.",
        "The signature does not fit the message.",
    ),
    "idempotency-key-reused": ProblemType(
        (409,),
        "Idempotency key reused",
        "the key was used for another body within 24 hours",
        "Give each message a key of its own; repeat a key only with the very same values.",
        "The Idempotency-Key was used for another body within 24 hours.",
    ),
    "inbox-full": ProblemType(
        (507,),
        "Inbox full",
        "the device's inbox holds all it may",
        "Push again after `Retry-After`: the device has to fetch what waits, or it has to expire.",
        "The device's inbox holds all it may.",
        waits=True,
    ),
    "insufficient-storage": ProblemType(
        (503, 507),
        "Too little disk space",
        "the disk is nearly full: 507 for a blob, 503 otherwise",
        "Try again later; whoever runs the relay makes room, or lowers `RELAY_STORAGE__MIN_FREE`.",
        "Too little disk space is left here; try again later.",
        waits=True,
    ),
    "internal": ProblemType(
        (500,),
        "Internal Server Error",
        "a fault of the relay's; its log says what",
        "Look into the relay's log for `http.error` at that time, and report it.",
        "Something went wrong inside the relay; its log says what.",
    ),
    "invalid": ProblemType(
        (422,),
        "Invalid values",
        "values are malformed or out of range; `errors` names each",
        "Mend what `errors` names, and call again.",
        "ttl_minutes: Input should be greater than 0.",
        errors=True,
    ),
    "kept-in-postgresql": ProblemType(
        (409,),
        "Kept in PostgreSQL",
        "there is no file of blobs to copy: PostgreSQL keeps them",
        "Back up PostgreSQL: what waits for devices is in it.",
        "PostgreSQL keeps what waits for devices.",
    ),
    "key-not-found": ProblemType(
        (404,),
        "Key not found",
        "there is no such API key, or it has no end to move",
        "Take the id from `GET /api/v1/keys`. A key without an end needs no renewal.",
        "There is no such key, or it has no end.",
    ),
    "login-taken": ProblemType(
        (409,),
        "Login taken",
        "another account has this login",
        "Use another login, or find the account that has it.",
        "Another account has this login.",
    ),
    "mailbox-not-found": ProblemType(
        (404,),
        "Mailbox not found",
        "unknown, expired, deleted or somebody else's: one answer for all",
        "See whether the address is right, whether its time is over (`expires_at`), and whether "
        "you call with its session token, its owner's key or the administrator's token.",
        "There is no such mailbox, or it is over, or it is not yours.",
    ),
    "malformed-json": ProblemType(
        (400,),
        "Malformed JSON",
        "the body is not a JSON object",
        "Send one JSON object in UTF-8. In a shell, put it between single quotes.",
        "The body is not valid JSON.",
    ),
    "malformed-notification": ProblemType(
        (400,),
        "Malformed notification",
        "what was posted is no notification of SNS, or no report of an upstream",
        "Post what the call takes; `detail` says what is missing.",
        "The body is not a JSON object.",
    ),
    "message-not-found": ProblemType(
        (404,),
        "Message not found",
        "the mailbox has no such message",
        "Take the id from the mailbox's list of messages. What was deleted does not come back.",
        "There is no such message in this mailbox.",
    ),
    "method-not-allowed": ProblemType(
        (405,),
        "Method Not Allowed",
        "`Allow` says which methods there are",
        "Use one of the methods in the header `Allow`.",
        "This address does not take this method.",
    ),
    "missing-scope": ProblemType(
        (403,),
        "Missing scope",
        "the key lacks the scope that is named",
        "Make a key that has it: `relay key create --owner NAME --scope read,send`, or `POST "
        "/api/v1/keys`. The scopes of a key cannot be changed.",
        "This call needs a key with the scope 'admin'.",
    ),
    "no-upstream": ProblemType(
        (409,),
        "No upstream",
        "mail does not leave this relay, so none is released",
        "Name the server to hand mail to in `RELAY_OUTBOUND__UPSTREAM`, and start the relay again.",
        "Mail does not leave this relay: its upstream is loop:, so nothing is released. "
        "RELAY_OUTBOUND__UPSTREAM names the server to hand it to.",
    ),
    "not-found": ProblemType(
        (404,),
        "Not Found",
        "nothing is at this path",
        "See `/docs` for what there is. A slash in an address is written `%2F`.",
        "There is nothing at this address.",
    ),
    "not-from-the-page": ProblemType(
        (403,),
        "Not from the page",
        "tickets are for page sessions",
        "Send the key or the session token itself, in a header.",
        "Tickets are for page sessions.",
    ),
    "not-understood": ProblemType(
        (409,),
        "Command not understood",
        "nobody of this name has what was asked for (`sweep`: work done every so often; `report`: "
        "figures; `pause`: work that can wait)",
        "Send the command to an actor that has it; its group passes it on to those that do.",
        "writer does not understand 'sweep': it has nothing that it does every so often.",
    ),
    "outbound-not-found": ProblemType(
        (404,),
        "Message not found",
        "there is no such message, or it is somebody else's",
        "Take the id from what the send answered, or from `GET /api/v1/outbound`.",
        "There is no such message, or it is not yours.",
    ),
    "quota": ProblemType(
        (429,),
        "Quota used up",
        "the owner, or the address, has as many live mailboxes as the plan allows",
        "Delete mailboxes that are not needed, let them expire, or use a key of a larger plan; "
        "`GET /api/v1/quota` says how many there are and may be.",
        "There are as many live mailboxes as the plan allows.",
        waits=True,
    ),
    "refused": ProblemType(
        (400,),
        "Refused",
        "a refusal that has no case of its own; any status of 400 and above",
        "Decide by `status`.",
        "The request was refused.",
    ),
    "release-not-allowed": ProblemType(
        (403,),
        "Release not allowed",
        "a recipient matches no pattern of `RELAY_OUTBOUND__RELEASE_TO`",
        "Release to an address that the setting names, or add the address to it.",
        "to: mail is released to addresses of RELAY_OUTBOUND__RELEASE_TO only.",
    ),
    "repeated-parameter": ProblemType(
        (422,),
        "Repeated parameter",
        "a name is given more than once",
        "Give each query parameter, and each member of a JSON object, once.",
        "The query parameter 'limit' is given more than once.",
        errors=True,
    ),
    "request-timeout": ProblemType(
        (408,),
        "Request Timeout",
        "the body did not arrive in time",
        "Send the body faster, or in one piece.",
        "The body did not arrive in time.",
    ),
    "reserved-name": ProblemType(
        (403,),
        "Reserved name",
        "role names (postmaster, admin …) are the administrator's",
        "Choose another name, or call with the administrator's token.",
        "local_part: this name is reserved for the administrator.",
    ),
    "sender-not-found": ProblemType(
        (404,),
        "Sender not found",
        "there is no sender of this address",
        "`GET /api/v1/senders` lists yours.",
        "You have no sender with this address.",
    ),
    "source-rate": ProblemType(
        (429,),
        "Too many bytes",
        "this address has pushed all the bytes it may for now",
        "Push again after `Retry-After`.",
        "This address has pushed all it may for now.",
        waits=True,
    ),
    "store-full": ProblemType(
        (507,),
        "Store full",
        "all device inboxes together hold all they may",
        "Push again after `Retry-After`: devices have to fetch what waits, or it has to expire.",
        "All inboxes together hold all they may.",
        waits=True,
    ),
    "suppressed": ProblemType(
        (422,),
        "Suppressed recipient",
        "a recipient is on the suppression list: nothing was queued",
        "Leave those whom `recipients` names out, or take them off the list with `DELETE "
        "/api/v1/suppressions/{entry}` if they want your mail again.",
        "A recipient is on the suppression list, so nothing was queued.",
        recipients=("bob@example.org",),
    ),
    "suppression-not-found": ProblemType(
        (404,),
        "Suppression not found",
        "this address is not suppressed",
        "There is nothing to do: it gets mail. `GET /api/v1/suppressions` lists those that do not.",
        "You have no such suppression.",
    ),
    "token-needed": ProblemType(
        (403,),
        "Token needed",
        "from a page session, making a key needs the token again",
        "Send the administrator's token, or that of a key with `admin`, as `confirm`.",
        "This needs the token again: the administrator's, or an admin key's.",
    ),
    "token-refused": ProblemType(
        (400,),
        "Token refused",
        "used, expired, forged or unknown, or its code is missing or wrong: one answer for all, "
        "and the token is not used up",
        "See whether the token was copied whole, and whether a recovery came with the five digits "
        "of its mail; otherwise have another mail sent (`…/resend`, `…/recover`).",
        "This token, or its code, cannot be used.",
    ),
    "too-large": ProblemType(
        (413,),
        "Content Too Large",
        "the body is larger than this call takes",
        "Send less; the call's description says how many bytes it takes.",
        "The body is larger than this call takes.",
    ),
    "too-many-calls": ProblemType(
        (429,),
        "Too Many Requests",
        "the caller calls more often than it may",
        "Call again after `Retry-After`. To learn of new mail, wait or follow instead of asking "
        "again and again.",
        "This caller calls more often than it may; see Retry-After.",
        waits=True,
    ),
    "too-many-mails": ProblemType(
        (429,),
        "Too many mails",
        "the account was mailed five times within 15 minutes",
        "Ask again after `Retry-After`; the mails that were sent are on their way.",
        "Account 7 was mailed five times within 15 minutes.",
        waits=True,
    ),
    "too-many-waits": ProblemType(
        (429,),
        "Too many waits",
        "too many calls wait on this mailbox, of this owner, or from this address",
        "End waits and streams that are not needed; one stream tells of all mailboxes.",
        "At most 64 calls may wait on one mailbox, or of one owner on all mailboxes.",
        waits=True,
    ),
    "topic-not-allowed": ProblemType(
        (403,),
        "Topic not allowed",
        "the SNS topic is not among the settings",
        "Add the topic to `RELAY_INGEST__SNS_TOPICS`, if it is yours, and start the relay again.",
        "This topic is not in the setting ingest.sns_topics.",
    ),
    "unauthenticated": ProblemType(
        (401,),
        "Unauthorized",
        "a credential is needed and missing, or it opens nothing",
        "Send `Authorization: Bearer TOKEN`, with an API key or the administrator's token. The "
        "latter is new at each start of the relay unless the settings give one; a key may have "
        "been revoked, or have ended.",
        "The token is unknown or revoked.",
    ),
    "unavailable": ProblemType(
        (503,),
        "Service Unavailable",
        "a store does not answer, or a place is not free; `detail` says which",
        "Call again after `Retry-After`.",
        "A store that this call needs does not answer; try again.",
        waits=True,
    ),
    "unknown-parameter": ProblemType(
        (422,),
        "Unknown parameter",
        "a query parameter that the call does not have; `errors` names the nearest",
        "Use a name that the call's description has.",
        "There is no query parameter 'subjct' here; did you mean subject?",
        errors=True,
    ),
    "unsigned-notification": ProblemType(
        (401,),
        "Unsigned notification",
        "a report of an upstream has neither a valid signature nor a password",
        "Sign it with a secret that `RELAY_INGEST__NOTIFICATION_SECRETS` names, at the time of the "
        "post, over its bytes as they are; or send a secret as the password of Basic.",
        "The post has no valid signature of the last minutes, and no password.",
    ),
    "unsupported-media-type": ProblemType(
        (415,),
        "Unsupported Media Type",
        "the body must be `application/json`",
        "Send the header `Content-Type: application/json`.",
        "The body must be application/json.",
    ),
    "webhook-not-found": ProblemType(
        (404,),
        "Webhook not found",
        "there is no such webhook",
        "`GET /api/v1/webhooks` lists yours.",
        "You have no such webhook.",
    ),
    "chaos-off": ProblemType(
        (409,),
        "Chaos is off",
        "the relay was started without `RELAY_SMTP__CHAOS`",
        "Set `RELAY_SMTP__CHAOS=true`, and start the relay again.",
        "Set RELAY_SMTP__CHAOS=true and start the relay again.",
    ),
    "wrong-state": ProblemType(
        (409,),
        "Wrong state",
        "an outbound message is not in a state that allows this",
        "Look at its `status`: what is being delivered or is finished is neither cancelled nor "
        "held, and what is queued and due is not retried.",
        "A message that is sent cannot be cancelled.",
    ),
    "wrong-status": ProblemType(
        (409,),
        "Wrong status",
        "an account's status does not allow this",
        "Look at its `status`: an active account is mailed a recovery, a provisioned one an "
        "activation, a suspended one nothing.",
        "Account 7 is suspended, and must be active for this.",
    ),
}
"""Every case, with what it means."""
