/** `Relay`: it makes inboxes (`inbox.ts`), opens them, and sends (`sending.ts`). */

/// <reference lib="esnext.disposable" preserve="true" />

import * as answers from "./answers.js";
import { RelayError } from "./errors.js";
import { Exchange } from "./exchange.js";
import { Inbox, TRACKED_IN, asyncDispose } from "./inbox.js";
import { type InboxOptions, newMailbox, saysOfNew } from "./mailboxes.js";
import type { RelayOptions } from "./options.js";
import { type Info, type InfoJson, parsedInfo } from "./records.js";
import type { components } from "./schema.js";
import { type NewMessage, Outbound, send } from "./sending.js";

type Schemas = components["schemas"];

/** How many milliseconds a call may take, of relays whose calls a test runner limits. @internal */
export const TIME_LIMITS = new WeakMap<Relay, () => number | undefined>();

/** What inboxes have been made and not closed, of relays of which a test runner reports. @internal */
export const OPEN_INBOXES = new WeakMap<Relay, Set<Inbox>>();

/**
 * A relay at a URL.
 *
 * Without a token inboxes are anonymous, each opened by a token of its own, and nothing is sent.
 */
export class Relay implements AsyncDisposable {
  /** Where it is, without a slash at its end. */
  readonly url: string;
  readonly #exchange: Exchange;

  constructor(options: RelayOptions = {}) {
    this.#exchange = new Exchange(options, () => TIME_LIMITS.get(this)?.());
    this.url = this.#exchange.url;
  }

  /** What opens it; null without.  It is on nothing that is printed of this object. */
  get token(): string | null {
    return this.#exchange.token;
  }

  /** Make an inbox, which ends when it is closed, by `await using` or by hand, or with its time. */
  async inbox(wanted: InboxOptions = {}): Promise<Inbox> {
    const made = await this.#exchange.json<Schemas["CreatedMailbox"]>(
      {
        method: "POST",
        path: "/api/v1/mailboxes",
        body: newMailbox(wanted),
        idempotent: false,
        says: saysOfNew(wanted),
      },
      answers.INBOX,
    );
    const endsAt = new Date(made.expires_at);
    const inbox = new Inbox(this.#exchange, made.address, made.session_token, true, endsAt);
    const left = OPEN_INBOXES.get(this);
    if (left) TRACKED_IN.set(inbox, left.add(inbox));
    return inbox;
  }

  /**
   * An inbox that there is already: one made elsewhere, or captured mail's, which opens to the
   * administrator's token alone.  `await using` leaves it as it is.
   */
  mailbox(address: string, sessionToken: string | null = null): Inbox {
    const opens = sessionToken?.trim() ?? null;
    if (opens !== null && !answers.isToken(opens)) {
      throw new RelayError("the inbox's token has characters that no token has");
    }
    return new Inbox(this.#exchange, address, opens, false);
  }

  /**
   * Queue a message; one is returned for each recipient.  Where this client has to ask again it is
   * queued once; two calls queue it twice, unless they have one `idempotencyKey`.
   */
  send(message: NewMessage): Promise<Outbound[]> {
    return send(this.#exchange, message);
  }

  /** A message that was sent. */
  outbound(id: string): Outbound {
    return new Outbound(this.#exchange, id, null);
  }

  /** Ask where the relay takes mail; needs a token. */
  async info(): Promise<Info> {
    const request = { method: "GET", path: "/api/v1/info" } as const;
    return parsedInfo(await this.#exchange.json<InfoJson>(request, answers.INFO));
  }

  /** End what is under way: each call fails, with a `RelayError`. */
  async close(): Promise<void> {
    this.#exchange.close();
  }

  [asyncDispose](): Promise<void> {
    return this.close();
  }
}
