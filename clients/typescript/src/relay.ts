/** `Relay`: it makes inboxes (`inbox.ts`), opens them, and sends (`sending.ts`). */

/// <reference lib="esnext.disposable" preserve="true" />

import * as answers from "./answers.js";
import { RelayError } from "./errors.js";
import { Exchange } from "./exchange.js";
import { Inbox, asyncDispose } from "./inbox.js";
import { type InboxOptions, newMailbox, saysOfNew } from "./mailboxes.js";
import type { RelayOptions } from "./options.js";
import { type Info, type InfoJson, parsedInfo } from "./records.js";
import type { components } from "./schema.js";
import { type NewMessage, Outbound, send } from "./sending.js";

type Schemas = components["schemas"];

/** What a test runner's fixture has set of its relay. @internal */
export interface SetByFixture {
  /** For how many milliseconds a call may go on, where the runner ends the test sooner. */
  timeLimit?: () => number | undefined;
  /** The inboxes that have been made and not closed, where the runner reports of those. */
  openInboxes?: Set<Inbox>;
}

/**
 * A relay at a URL.
 *
 * Without a token inboxes are anonymous, each opened by a token of its own, and nothing is sent.
 */
export class Relay implements AsyncDisposable {
  /** Where it is, without a slash at its end. */
  readonly url: string;
  readonly #exchange: Exchange;
  readonly #setByFixture: SetByFixture = {};

  constructor(options: RelayOptions = {}) {
    this.#exchange = new Exchange(options, () => this.#setByFixture.timeLimit?.());
    this.url = this.#exchange.url;
  }

  /** What opens it; null without.  It is on nothing that is printed of this object. */
  get token(): string | null {
    return this.#exchange.token;
  }

  /** No property of the relay itself: runners of tests print those. @internal */
  get setByFixture(): SetByFixture {
    return this.#setByFixture;
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
    inbox.handle.openInboxes = this.#setByFixture.openInboxes?.add(inbox);
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
