/**
 * Messages, attachments, checks and the like, as plain values, as they are read of a relay.
 *
 * What needs another call (`raw`, an attachment's `content`, `checks()`) is added in `message.ts`.
 */

import { NoSuchLink } from "./errors.js";
import { isLike } from "./links.js";
import type { components } from "./schema.js";
import { MAX_LINK, inALine, quoted, shownMatch } from "./text.js";

const LISTED = 20; // links, where none is like the one that is wanted

type Schemas = components["schemas"];
/** A message, an entry of a list, and the like, as the relay writes them. */
export type MessageJson = Schemas["WholeMessage"];
/** @internal */
export type EntryJson = Schemas["PlacedEntry"];
/** @internal */
export type WholeEntryJson = Schemas["PlacedMessage"];
/** @internal */
export type RejectedJson = Schemas["RefusedEntry"];
/** @internal */
export type CapturedJson = Schemas["CapturedEntry"];
export type AttachmentJson = Schemas["AttachmentEntry"];
/** @internal */
export type InfoJson = Schemas["Info"];
/** @internal */
export type OutboundEntryJson = Schemas["OutboundMessage"];

/** A message's header fields, decoded; names in any case. */
export class MessageHeaders implements Iterable<[name: string, value: string]> {
  readonly #fields: readonly (readonly [name: string, values: readonly string[]])[];

  constructor(fields: Readonly<Record<string, string | readonly string[]>>) {
    this.#fields = Object.entries(fields).map(([name, found]) => [
      name,
      typeof found === "string" ? [found] : found,
    ]);
  }

  /** What a field says, the first of that name; undefined if there is none. */
  get(name: string): string | undefined {
    return this.getAll(name)[0];
  }

  /** What each field of that name says. */
  getAll(name: string): string[] {
    const key = name.toLowerCase();
    return this.#fields.flatMap(([one, values]) => (one.toLowerCase() === key ? values : []));
  }

  /** Whether there is a field of that name. */
  has(name: string): boolean {
    return this.getAll(name).length > 0;
  }

  *[Symbol.iterator](): Iterator<[name: string, value: string]> {
    for (const [name, values] of this.#fields) for (const value of values) yield [name, value];
  }

  toJSON(): Record<string, string | readonly string[]> {
    return Object.fromEntries(
      this.#fields.map(([name, values]) => [
        name,
        values.length === 1 ? String(values[0]) : values,
      ]),
    );
  }
}

/** What is known of an attachment before it is fetched. */
export class AttachmentData {
  readonly index: number;
  readonly filename: string | null;
  readonly contentType: string;
  /** Bytes of the content. */
  readonly size: number;
  readonly contentId: string | null;

  constructor(found: AttachmentJson) {
    this.index = found.index;
    this.filename = found.filename;
    this.contentType = found.content_type;
    this.size = found.size;
    this.contentId = found.content_id;
  }
}

/** A message as it came. */
export class MessageData<A extends AttachmentData = AttachmentData> {
  readonly id: string;
  /** The From header's address; null if there is none. */
  readonly sender: string | null;
  /** The recipient, as the sender's server named it. */
  readonly to: string;
  readonly subject: string | null;
  readonly receivedAt: Date;
  /** Bytes of the raw message. */
  readonly size: number;
  readonly text: string | null;
  readonly html: string | null;
  /** The likeliest one-time code in it. */
  readonly code: string | null;
  /** The links in it, each once. */
  readonly links: readonly string[];
  readonly headers: MessageHeaders;
  readonly attachments: readonly A[];

  constructor(found: MessageJson, attachment: (found: AttachmentJson) => A) {
    this.id = found.id;
    this.sender = found.from_address;
    this.to = found.to;
    this.subject = found.subject;
    this.receivedAt = new Date(found.received_at);
    this.size = found.size;
    this.text = found.body_text;
    this.html = found.body_html;
    this.code = found.otp;
    this.links = found.links;
    this.headers = new MessageHeaders(found.headers);
    this.attachments = found.attachments.map(attachment);
  }

  /**
   * The first link that matches; `NoSuchLink` if none does.
   *
   * A text with a dot and no slash is a host, itself or a parent domain (`shop.example`), one with a
   * scheme the link's beginning, with its whole host (`https://shop.example/reset`); any other is a
   * part of path and query (`/reset`); a pattern is searched for in the whole link.  Without one it
   * is the first link of all.  What has a host that not everybody reads alike is like none but a
   * pattern.
   */
  link(match?: string | RegExp): string {
    for (const link of this.links) {
      if (match === undefined || matches(link, match)) return link;
    }
    const where = ` in ${described(this.subject)}`;
    if (match === undefined) throw new NoSuchLink(`no link${where}`);
    const listed = this.links.slice(0, LISTED).map((link) => `\n  ${inALine(link, MAX_LINK)}`);
    if (this.links.length > LISTED) listed.push(`\n  and ${this.links.length - LISTED} more`);
    throw new NoSuchLink(`no link like ${shownMatch(match)}${where}; its links:${listed.join("") || " none"}`);
  }
}

/** A message by its subject, as an error shows it. @internal */
export function described(subject: string | null): string {
  return subject === null ? "a message without a subject" : quoted(subject);
}

function matches(link: string, match: string | RegExp): boolean {
  if (typeof match !== "string") return link.search(match) >= 0;
  return isLike(link, match);
}

/** What SPF, DKIM or DMARC says: a `result` of its RFC, and why. */
export type Check = Schemas["Check"];

/** Something that receivers or readers would mind. */
export type Finding = Schemas["FindingEntry"];

/**
 * Whether the world would take a message; `score` is 0 to 10, `reasons` what it is short of 10 for.
 */
export type Checks = Schemas["Checks"];

/** Where a relay takes mail: `host:port` each, null for what it does not serve. */
export interface Info {
  version: string;
  smtp: string | null;
  submission: string | null;
  /** Its own domains; with `capture` it takes mail for all others, too. */
  domains: readonly string[];
  capture: boolean;
  starttls: boolean;
  publicUrl: string;
}

/** Read the answer of `/api/v1/info`. @internal */
export function parsedInfo(found: InfoJson): Info {
  const { version, smtp, submission, domains, capture, starttls, public_url: publicUrl } = found;
  return { version, smtp, submission, domains, capture, starttls, publicUrl };
}

/** Where a message that was sent is. */
export type State = Schemas["State"];

/** What has become of a message that was sent: status, attempts, error, times. */
export interface OutboundEntry {
  id: string;
  /** Its reverse-path. */
  sender: string | null;
  recipient: string | null;
  subject: string | null;
  status: State;
  attempts: number;
  nextRetryAt: Date | null;
  sentAt: Date | null;
  priority: string;
  error: string | null;
  createdAt: Date;
  notAfter: Date | null;
  tag: string | null;
  /** The server that the last attempt spoke to. */
  peer: string | null;
  /** The version of TLS of the last attempt. */
  tls: string | null;
  /** What the server said that took it, redacted as `error` is. */
  reply: string | null;
}

/** Read the answer of `/api/v1/outbound/{id}`. @internal */
export function parsedEntry(found: OutboundEntryJson): OutboundEntry {
  const { id, sender, recipient, subject, status, attempts, priority, error, tag } = found;
  const { peer, tls, reply } = found;
  const at = (time: string | null) => (time === null ? null : new Date(time));
  return {
    id,
    sender,
    recipient,
    subject,
    status,
    attempts,
    nextRetryAt: at(found.next_retry_at),
    sentAt: at(found.sent_at),
    priority,
    error,
    createdAt: new Date(found.created_at),
    notAfter: at(found.not_after),
    tag,
    peer,
    tls,
    reply,
  };
}
