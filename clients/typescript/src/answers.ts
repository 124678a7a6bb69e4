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

const MAX_LINKS = 1_000; // of a message; a relay lists 200

const text: Shape = (value) => typeof value === "string";
/** Beyond 2^53 another number is read than is written, and what JSON writes as 1e999 is infinite. */
const number: Shape = (value) => typeof value === "number" && Math.abs(value) < 2 ** 53;
const truth: Shape = (value) => typeof value === "boolean";
const count: Shape = (value) => Number.isSafeInteger(value) && (value as number) >= 0;
const id: Shape = (value) => typeof value === "string" && ID.test(value);
const time: Shape = (value) =>
  typeof value === "string" && TIME.test(value) && !Number.isNaN(Date.parse(value));

/** host:port. */
const place: Shape = (value) =>
  typeof value === "string" && Number(PLACE.exec(value)?.[1] ?? NaN) <= 65535;

/** Whether a value is a token, as a header can carry it: no blank is in one. */
export function isToken(value: unknown): value is string {
  return typeof value === "string" && /^[!-~]+$/.test(value);
}

/** Whether a value is an address, as a path can carry it. */
export function isAddress(value: unknown): value is string {
  return typeof value === "string" && ADDRESS.test(value);
}

/** What is so, or null. */
const maybe =
  (shape: Shape): Shape =>
  (value) =>
    value === null || shape(value);

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

/** Each costs time where one is looked for, and of empty ones a page of 32 MiB has 11 million. */
const links: Shape = (value) => texts(value) && (value as unknown[]).length <= MAX_LINKS;

const fields: Shape = (value) =>
  record({})(value) && Object.values(value as object).every(
    (one) => text(one) || (texts(one) && (one as unknown[]).length > 0),
  );

export const INBOX = record({ address: isAddress, session_token: maybe(isToken), expires_at: time });

export const LIST = every(
  record({ id, from_address: maybe(text), subject: maybe(text), received_at: time }),
);

export const REJECTED = every(record({ address: text, reply: text }));

export const CAPTURED = every(record({ address: text, count }));

export const MESSAGE = record({
  id,
  from_address: maybe(text),
  to: text,
  subject: maybe(text),
  received_at: time,
  size: count,
  body_text: maybe(text),
  body_html: maybe(text),
  otp: maybe(text),
  links,
  headers: fields,
  attachments: every(
    record({
      index: count,
      filename: maybe(text),
      content_type: text,
      size: count,
      content_id: maybe(text),
    }),
  ),
});

export const MESSAGES = every(MESSAGE);

export const MESSAGE_OR_NONE = maybe(MESSAGE);

const check = record({ result: text, detail: text });

export const CHECKS = record({
  spf: check,
  dkim: check,
  dmarc: check,
  score: number,
  reasons: texts,
  findings: every(record({ id: text, severity: text, text })),
});

export const SENT = record({ messages: every(record({ id, recipient: maybe(text) })) });

export const OUTBOUND = record({
  id,
  sender: maybe(text),
  recipient: maybe(text),
  subject: maybe(text),
  status: text,
  attempts: count,
  next_retry_at: maybe(time),
  sent_at: maybe(time),
  priority: text,
  error: maybe(text),
  created_at: time,
  not_after: maybe(time),
  tag: maybe(text),
  peer: maybe(text),
  tls: maybe(text),
  reply: maybe(text),
});

export const INFO = record({
  version: text,
  smtp: maybe(place),
  submission: maybe(place),
  domains: texts,
  capture: truth,
  starttls: truth,
  public_url: text,
});
