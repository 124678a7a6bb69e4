/** What is sent: queued, looked at, and waited for. */

import * as answers from "./answers.js";
import { NotDelivered, RelayError, WaitTimeout } from "./errors.js";
import { type Exchange, paused } from "./exchange.js";
import { partOf } from "./mailboxes.js";
import { type OutboundEntry, type OutboundEntryJson, type State, parsedEntry } from "./records.js";
import type { components } from "./schema.js";
import { quoted } from "./text.js";
import { FIRST_LOOK, LAST_LOOK } from "./waiting.js";
import { TIMEOUT, waitable } from "./wanted.js";

type Schemas = components["schemas"];

const ENDS = new Set(["sent", "failed", "bounced", "cancelled"]);
const STATES: readonly State[] = [
  ...(["queued", "processing", "sent", "failed"] as const),
  ...(["bounced", "cancelled", "held"] as const),
];

/** A file to go with a message: what is in it, or where it is. */
export type NewAttachment = {
  /** By the file's name, for the commonest, unless said. */
  contentType?: string | undefined;
} & (
  | { filename: string; content: Uint8Array | string; path?: undefined }
  | { path: string; filename?: string | undefined; content?: undefined }
);

/** What is to be sent to whom. */
export interface NewMessage {
  /** An address, or `Name <address>`. */
  from: string;
  /** Each gets a message of its own. */
  to: string | readonly string[];
  subject?: string | undefined;
  text?: string | undefined;
  html?: string | undefined;
  /** Further header fields, such as Reply-To. */
  headers?: Readonly<Record<string, string>> | undefined;
  attachments?: readonly NewAttachment[] | undefined;
  /** Under one key the same message is queued once, however often it is sent in a day. */
  idempotencyKey?: string | undefined;
}

/** Queue a message. @internal */
export async function send(
  exchange: Exchange,
  {
    from,
    to,
    subject = "",
    text,
    html,
    headers = {},
    attachments = [],
    idempotencyKey,
  }: NewMessage,
): Promise<Outbound[]> {
  const body: Schemas["NewMessage"] = {
    from,
    to: typeof to === "string" ? to : [...to],
    subject,
    text: text ?? null,
    html: html ?? null,
    headers: { ...headers },
    attachments: await Promise.all(attachments.map(encoded)),
  };
  const { messages } = await exchange.json<Schemas["Sent"]>(
    {
      method: "POST",
      path: "/api/v1/messages/send",
      headers: { "Idempotency-Key": idempotencyKey ?? uniqueKey() },
      body,
    },
    answers.SENT,
  );
  return messages.map((one) => new Outbound(exchange, one.id, one.recipient));
}

/** A message that was sent, to one recipient. */
export class Outbound {
  readonly #exchange: Exchange;

  /** Made by `relay.send()` or `relay.outbound()`. */
  constructor(
    exchange: Exchange,
    readonly id: string,
    readonly recipient: string | null,
  ) {
    this.#exchange = exchange;
  }

  /** Where it is now: queued, processing, sent, failed, bounced, cancelled or held. */
  get status(): Promise<State> {
    return this.entry().then((found) => found.status);
  }

  /** Look at it: status, attempts, error, times. */
  entry(): Promise<OutboundEntry> {
    return this.#entry();
  }

  async #entry(deadline?: number): Promise<OutboundEntry> {
    const path = `/api/v1/outbound/${partOf(this.id)}`;
    const request = { method: "GET", path } as const;
    return parsedEntry(
      await this.#exchange.json<OutboundEntryJson>(request, answers.OUTBOUND, deadline),
    );
  }

  /** Wait until it has that status; `NotDelivered` once it never will, or `WaitTimeout`. */
  async wait(
    status: State = "sent",
    { timeout = TIMEOUT }: { timeout?: number } = {},
  ): Promise<void> {
    const deadline = performance.now() + waitable(timeout);
    if (!STATES.includes(status)) {
      const known = STATES.join(", ");
      const given = quoted(String(status));
      throw new RelayError(`${given} is no state of a message: it is one of ${known}`);
    }
    for (let pause = FIRST_LOOK; ; pause = Math.min(2 * pause, LAST_LOOK)) {
      const found = await this.#entry(Math.max(deadline, performance.now() + 1_000));
      if (found.status === status) return;
      if (ENDS.has(found.status)) throw new NotDelivered(found.status, status, found.error);
      const left = deadline - performance.now();
      if (left <= 0) {
        throw new WaitTimeout(`${this.id} to be ${status}`, timeout, `it is ${found.status}`);
      }
      await paused(Math.min(pause, left));
    }
  }
}

const TYPES: Readonly<Record<string, string>> = {
  csv: "text/csv",
  gif: "image/gif",
  html: "text/html",
  ics: "text/calendar",
  jpeg: "image/jpeg",
  jpg: "image/jpeg",
  json: "application/json",
  pdf: "application/pdf",
  png: "image/png",
  svg: "image/svg+xml",
  txt: "text/plain",
  webp: "image/webp",
  xml: "application/xml",
  zip: "application/zip",
};

async function encoded(given: NewAttachment): Promise<Schemas["NewAttachment"]> {
  const { path, contentType } = given;
  const filename = given.filename ?? path?.split(/[/\\]/).pop() ?? "";
  // Not from the start: who sends no file by its path needs no Node.js.
  const content = given.content ?? (await (await import("node:fs/promises")).readFile(path ?? ""));
  const ending = filename.split(".").pop()?.toLowerCase() ?? "";
  return {
    filename,
    content_type: contentType ?? TYPES[ending] ?? "application/octet-stream",
    content: base64(typeof content === "string" ? new TextEncoder().encode(content) : content),
  };
}

function base64(bytes: Uint8Array): string {
  const pieces: string[] = [];
  // As many at a time as a call may have arguments.
  for (let at = 0; at < bytes.length; at += 0x8000) {
    pieces.push(String.fromCharCode(...bytes.subarray(at, at + 0x8000)));
  }
  return btoa(pieces.join(""));
}

function uniqueKey(): string {
  const bytes = new Uint8Array(16);
  // Node.js 18 has no global `crypto` yet; the key has to differ, not to be a secret.
  if (globalThis.crypto) globalThis.crypto.getRandomValues(bytes);
  else bytes.forEach((_, at) => (bytes[at] = Math.floor(256 * Math.random())));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
