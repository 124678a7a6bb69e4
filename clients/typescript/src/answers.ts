/**
 * What a relay's answers look like: what is otherwise was said by no relay.
 *
 * A shape is a function that tells whether a value has it.  Only what this client reads is looked
 * at, so a relay may say more than its clients know.  The Python client has the same (_answers.py).
 */

import type { Shape } from "./call.js";

const ID = /^[0-9a-zA-Z-]{1,64}$/;

/** No blank, no control character, no half of a character. */
const ADDRESS =
  /^[^\0-\x20\x7f-\xa0\ud800-\udfff]{1,256}@[^@\0-\x20\x7f-\xa0\ud800-\udfff]{1,255}$/u;

const PLACE =
  /^(?:\[[0-9a-fA-F:.%]{2,64}\]|[^\0-\x20\x7f-\xa0\ud800-\udfff[\]:/@]{1,255}):([0-9]{1,5})$/u;

const TIME =
  /^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?(?:Z|[+-][0-9]{2}:[0-9]{2})$/;

const text: Shape = (value) => typeof value === "string";
const maybeText: Shape = (value) => value === null || text(value);
const number: Shape = (value) => typeof value === "number";
const truth: Shape = (value) => typeof value === "boolean";
const count: Shape = (value) => Number.isSafeInteger(value) && (value as number) >= 0;
const id: Shape = (value) => typeof value === "string" && ID.test(value);
const time: Shape = (value) =>
  typeof value === "string" && TIME.test(value) && !Number.isNaN(Date.parse(value));
const maybeTime: Shape = (value) => value === null || time(value);

/** host:port, or null. */
const maybePlace: Shape = (value) =>
  value === null || (typeof value === "string" && Number(PLACE.exec(value)?.[1] ?? NaN) <= 65535);

/** Whether a value is a token, as a header can carry it: no blank is in one. */
export function isToken(value: unknown): value is string {
  return typeof value === "string" && /^[!-~]+$/.test(value);
}

/** Whether a value is an address, as a path can carry it. */
export function isAddress(value: unknown): value is string {
  return typeof value === "string" && ADDRESS.test(value);
}

const maybeToken: Shape = (value) => value === null || isToken(value);

const every =
  (shape: Shape): Shape =>
  (value) =>
    Array.isArray(value) && value.every(shape);

const record =
  (shapes: Record<string, Shape>): Shape =>
  (value) =>
    typeof value === "object" &&
    value !== null &&
    Object.entries(shapes).every(([name, shape]) =>
      shape((value as Record<string, unknown>)[name]),
    );

const texts = every(text);

const fields: Shape = (value) =>
  record({})(value) && Object.values(value as object).every(
    (one) => text(one) || (texts(one) && (one as unknown[]).length > 0),
  );

export const INBOX = record({ address: isAddress, session_token: maybeToken, expires_at: time });

export const LIST = every(
  record({ id, from_address: maybeText, subject: maybeText, received_at: time }),
);

export const REJECTED = every(record({ address: text, reply: text }));

export const CAPTURED = every(record({ address: text, count }));

export const MESSAGE = record({
  id,
  from_address: maybeText,
  to: text,
  subject: maybeText,
  received_at: time,
  size: count,
  body_text: maybeText,
  body_html: maybeText,
  otp: maybeText,
  links: texts,
  headers: fields,
  attachments: every(
    record({
      index: count,
      filename: maybeText,
      content_type: text,
      size: count,
      content_id: maybeText,
    }),
  ),
});

export const MESSAGES = every(MESSAGE);

/** A message, or null where none came. */
export const MESSAGE_OR_NONE: Shape = (value) => value === null || MESSAGE(value);

const check = record({ result: text, detail: text });

export const CHECKS = record({
  spf: check,
  dkim: check,
  dmarc: check,
  score: number,
  reasons: texts,
  findings: every(record({ id: text, severity: text, text })),
});

export const SENT = record({ messages: every(record({ id, recipient: maybeText })) });

export const OUTBOUND = record({
  id,
  sender: maybeText,
  recipient: maybeText,
  subject: maybeText,
  status: text,
  attempts: count,
  next_retry_at: maybeTime,
  sent_at: maybeTime,
  priority: text,
  error: maybeText,
  created_at: time,
  not_after: maybeTime,
  tag: maybeText,
  peer: maybeText,
  tls: maybeText,
  reply: maybeText,
});

export const INFO = record({
  version: text,
  smtp: maybePlace,
  submission: maybePlace,
  domains: texts,
  capture: truth,
  starttls: truth,
  public_url: text,
});
