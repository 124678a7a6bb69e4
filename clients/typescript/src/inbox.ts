/** `Inbox`: what comes to an address is waited for, and read. */

/// <reference lib="esnext.disposable" preserve="true" />

import { RelayError } from "./errors.js";
import type { Exchange } from "./exchange.js";
import { listed } from "./listing.js";
import { InboxHandle } from "./mailboxes.js";
import { type Ask, type ListOptions, Message } from "./message.js";
import { wait, waitMany, waitNone } from "./waiting.js";
import { TIMEOUT, type WaitOptions, type Wanted, waitable } from "./wanted.js";

const CLOSES_WITHIN = 2_000; // or is left to its time; of several in vain, see `Exchange`

/** Of Node.js before 18.18, which has none, the one that compilers put in its place. */
export const asyncDispose: typeof Symbol.asyncDispose =
  Symbol.asyncDispose ?? (Symbol.for("Symbol.asyncDispose") as typeof Symbol.asyncDispose);

/** An inbox: what comes to `address`. */
export class Inbox implements AsyncDisposable {
  readonly address: string;
  /** When it ends, of one that was made here: the plan may allow less than was asked for. */
  readonly expiresAt: Date | null;
  /** For how many milliseconds `wait` and `waitMany` wait at most unless that is said. */
  timeout = TIMEOUT;
  readonly #exchange: Exchange;
  readonly #handle: InboxHandle;
  readonly #owned: boolean;

  /** Made by `relay.inbox()` or `relay.mailbox()`. */
  constructor(
    exchange: Exchange,
    address: string,
    sessionToken: string | null,
    owned: boolean,
    expiresAt: Date | null = null,
  ) {
    this.#exchange = exchange;
    this.address = address;
    this.#handle = new InboxHandle(address, sessionToken, exchange.token, expiresAt);
    this.expiresAt = expiresAt;
    this.#owned = owned;
  }

  /** What opens an anonymous inbox; null where the relay's token does.  It is printed nowhere. */
  get sessionToken(): string | null {
    return this.#handle.sessionToken;
  }

  /** @internal */
  get handle(): InboxHandle {
    return this.#handle;
  }

  toString(): string {
    return this.address;
  }

  /**
   * End the inbox, and all that is in it; where that fails its time does, and with `strict` that is
   * an error.
   */
  async close({ strict = false }: { strict?: boolean } = {}): Promise<void> {
    const exchange = this.#exchange;
    const handle = this.#handle;
    handle.isClosed = true;
    handle.openInboxes?.delete(this);
    const began = performance.now();
    const within = strict ? CLOSES_WITHIN : Math.min(CLOSES_WITHIN, exchange.closesWithin);
    try {
      await exchange.call(handle.request("DELETE", ""), began + within);
    } catch (error) {
      exchange.closesWithin -= performance.now() - began;
      if (strict || !(error instanceof RelayError)) throw error;
    }
  }

  async [asyncDispose](): Promise<void> {
    if (this.#owned) await this.close();
  }

  /** The oldest message that matches, as soon as there is one; `WaitTimeout` if none comes. */
  async wait(wanted: WaitOptions = {}): Promise<Message> {
    const flow = wait(this.#handle, wanted, this.#limited(wanted));
    return new Message(this.#reader, await this.#exchange.run(flow));
  }

  #limited(wanted: WaitOptions): number {
    const limit = this.#handle.timeLimit?.() ?? Infinity;
    return Math.min(waitable(wanted.timeout ?? this.timeout), limit);
  }

  /** See for so many milliseconds that nothing matches; `UnexpectedMail` if something does. */
  async waitNone(milliseconds = 1_000, wanted: Wanted = {}): Promise<void> {
    await this.#exchange.run(waitNone(this.#handle, wanted, waitable(milliseconds)));
  }

  /** The first so many that match, the oldest first; `WaitTimeout` if too few come. */
  async waitMany(count: number, wanted: WaitOptions = {}): Promise<Message[]> {
    if (!Number.isInteger(count) || count < 0) {
      throw new RelayError(`so many messages cannot be waited for: ${String(count)}`);
    }
    const flow = waitMany(this.#handle, wanted, count, this.#limited(wanted));
    return (await this.#exchange.run(flow)).map((one) => new Message(this.#reader, one));
  }

  /** Read what is there, the newest first; `Unreachable` where that takes over `timeout` in all. */
  messages(limit = 100, options: ListOptions = {}): Promise<Message[]> {
    return this.#listed(undefined, limit, options);
  }

  /** Read what matches (`from:shop has:attachment -word "a phrase"`), in the same way. */
  search(q: string, limit = 100, options: ListOptions = {}): Promise<Message[]> {
    return this.#listed(q, limit, options);
  }

  #listed(q: string | undefined, limit: number, options: ListOptions): Promise<Message[]> {
    return listed(this.#exchange, this.#handle, this.#reader, q, limit, options);
  }

  readonly #reader: Ask = (method, path, more) =>
    this.#exchange.call({ ...this.#handle.request(method, path), ...more });
}
