/** `Inbox`: what comes to an address is waited for, and read. */

/// <reference lib="esnext.disposable" preserve="true" />

import * as answers from "./answers.js";
import type { Shape } from "./call.js";
import { Refused, RelayError, UnexpectedMail, WaitTimeout } from "./errors.js";
import { type Exchange, MESSAGE_BYTES, type RepeatableRequest, paused } from "./exchange.js";
import { PAGE, type Query, listed } from "./listing.js";
import { pathOf, saysOf } from "./mailboxes.js";
import { type Ask, type ListOptions, Message } from "./message.js";
import type { CapturedJson, EntryJson, InfoJson, MessageJson, RejectedJson } from "./records.js";
import {
  BY_KEY,
  FIRST_LOOK,
  LAST_LOOK,
  LOOKS_THROUGH,
  NO_TOKEN,
  OTHERS,
  PART,
  TIMEOUT,
  type WaitOptions,
  type Wanted,
  administrators,
  areParsed,
  fits,
  inVain,
  inWords,
  isCaptured,
  lineOf,
  pauses,
  unmade,
  waitQuery,
  waitable,
} from "./waiting.js";

const CLOSES_WITHIN = 2_000; // or is left to its time; of several in vain, see `Exchange`
const LISTS_WITHIN = 2_000; // lines of other mail in a failure, or they are left out
const LOOK_CAPTURED = 250; // between two looks for a mailbox that its first mail makes

/** Of Node.js before 18.18, which has none, the one that compilers put in its place. */
export const asyncDispose: typeof Symbol.asyncDispose =
  Symbol.asyncDispose ?? (Symbol.for("Symbol.asyncDispose") as typeof Symbol.asyncDispose);

/** In what an inbox is kept until it is closed, where a test runner reports of it. @internal */
export const TRACKED_IN = new WeakMap<Inbox, Set<Inbox>>();

/** As whom the application signs in that sends to an inbox, where that is known. @internal */
export const LOGINS = new WeakMap<Inbox, string>();

/** For how many milliseconds an inbox may wait, where a runner ends the test sooner. @internal */
export const WAIT_LIMITS = new WeakMap<Inbox, () => number | undefined>();

/** An inbox: what comes to `address`. */
export class Inbox implements AsyncDisposable {
  readonly address: string;
  /** When it ends, of one that was made here: the plan may allow less than was asked for. */
  readonly expiresAt: Date | null;
  /** For how many milliseconds `wait` and `waitMany` wait at most unless that is said. */
  timeout = TIMEOUT;
  readonly #exchange: Exchange;
  readonly #sessionToken: string | null;
  readonly #owned: boolean;
  #closed = false;
  #awaitsCapture: boolean | undefined; // whether its first mail makes it; nobody has asked yet

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
    this.#sessionToken = sessionToken;
    this.expiresAt = expiresAt;
    this.#owned = owned;
  }

  /** What opens an anonymous inbox; null where the relay's token does.  It is printed nowhere. */
  get sessionToken(): string | null {
    return this.#sessionToken;
  }

  toString(): string {
    return this.address;
  }

  /**
   * End the inbox, and all that is in it; where that fails its time does, and with `strict` that is
   * an error.
   */
  async close({ strict = false }: { strict?: boolean } = {}): Promise<void> {
    this.#closed = true;
    TRACKED_IN.get(this)?.delete(this);
    const exchange = this.#exchange;
    const began = performance.now();
    const within = strict ? CLOSES_WITHIN : Math.min(CLOSES_WITHIN, exchange.closesWithin);
    try {
      await exchange.call(this.#request("DELETE", ""), began + within);
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
    const timeout = this.#limited(wanted);
    const found = await this.#next(wanted, performance.now() + timeout);
    if (found === null) throw await this.#inVain(inWords(wanted), timeout);
    return new Message(this.#reader, found);
  }

  #limited(wanted: WaitOptions): number {
    return Math.min(waitable(wanted.timeout ?? this.timeout), WAIT_LIMITS.get(this)?.() ?? Infinity);
  }

  /** See for so many milliseconds that nothing matches; `UnexpectedMail` if something does. */
  async waitNone(milliseconds = 1_000, wanted: Wanted = {}): Promise<void> {
    const found = await this.#next(wanted, performance.now() + waitable(milliseconds));
    if (found !== null) {
      throw new UnexpectedMail(`mail came where none was to come:\n  ${lineOf(found)}`);
    }
  }

  /** The first so many that match, the oldest first; `WaitTimeout` if too few come. */
  async waitMany(count: number, wanted: WaitOptions = {}): Promise<Message[]> {
    if (!Number.isInteger(count) || count < 0) {
      throw new RelayError(`so many messages cannot be waited for: ${String(count)}`);
    }
    const timeout = this.#limited(wanted);
    const deadline = performance.now() + timeout;
    const found: Message[] = [];
    while (found.length < count) {
      const one = await this.#next({ ...wanted, after: found.at(-1) ?? wanted.after }, deadline);
      if (one === null) {
        const ids = found.map(({ id }) => id);
        throw await this.#inVain(inWords(wanted, count), timeout, ids);
      }
      found.push(new Message(this.#reader, one));
    }
    return found;
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
    return listed(
      this.#exchange,
      this.address,
      (...call) => this.#request(...call),
      this.#reader,
      q,
      limit,
      options,
    );
  }

  #list(query: Query): RepeatableRequest {
    return { ...this.#request("GET", "/messages", query), maxBytes: MESSAGE_BYTES };
  }

  async #next(wanted: Wanted, deadline: number): Promise<MessageJson | null> {
    let later: Wanted = wanted; // than what came and does not fit
    const part = (): RepeatableRequest => {
      const left = Math.min(PART, Math.max(0, deadline - performance.now()));
      const request = this.#request("GET", "/messages/wait", waitQuery(later, left));
      return { ...request, longPoll: left, maxBytes: MESSAGE_BYTES };
    };
    part(); // or is refused what was closed, which is not said to have been closed meanwhile
    const pauseAfter = pauses();
    for (;;) {
      const began = performance.now();
      const found = await this.#exchange
        .json<MessageJson | null>(
          part,
          answers.MESSAGE_OR_NONE,
          Math.max(deadline, performance.now() + 1_000),
        )
        .catch(async (error: unknown) => {
          // As a runner does that has given the test up.
          if (this.#closed) {
            const what = `was closed while ${inWords(wanted)} was waited for`;
            throw new RelayError(`the inbox ${this.address} ${what}`);
          }
          await this.#expect(error, Math.max(deadline, performance.now() + 1_000));
          return null;
        });
      const now = performance.now();
      if (found !== null && fits(wanted, found)) return found;
      if (found !== null && now < deadline + LOOKS_THROUGH) {
        later = { ...later, after: found.id };
        continue;
      }
      if (now >= deadline) return null;
      const pause = pauseAfter(now - began, deadline - began);
      await paused(this.#awaitsCapture ? Math.min(pause, LOOK_CAPTURED) : pause);
    }
  }

  /**
   * Throw what a wait failed with, unless the mailbox is one that its first mail makes: which is so
   * for the administrator, where the relay captures mail for the address.
   */
  async #expect(error: unknown, deadline: number): Promise<void> {
    if (!isNotThere(error) || this.sessionToken !== null) throw error;
    if (this.#awaitsCapture === undefined) {
      const info = await this.#info(deadline).catch((other: unknown) => {
        throw other instanceof RelayError ? error : other;
      });
      this.#awaitsCapture = isCaptured(this.address, info);
    }
    if (!this.#awaitsCapture) throw error;
    if (this.#exchange.byKey) {
      this.#awaitsCapture = false;
      throw administrators(error);
    }
  }

  #info(deadline: number): Promise<InfoJson> {
    const request = { method: "GET", path: "/api/v1/info" } as const;
    return this.#exchange.json<InfoJson>(request, answers.INFO, deadline);
  }

  /** What a wait in vain ends with; `found` are the ids of what was waited for and came. */
  async #inVain(
    what: string,
    timeout: number,
    found: readonly string[] = [],
  ): Promise<WaitTimeout> {
    const limit = Math.min(found.length + OTHERS + 1, PAGE);
    try {
      const request = this.#list({ limit });
      const deadline = performance.now() + LISTS_WITHIN;
      const until = (performance.now() + deadline) / 2;
      let entries: EntryJson[];
      for (let pause = FIRST_LOOK; ; pause = Math.min(2 * pause, LAST_LOOK)) {
        entries = await this.#exchange.json<EntryJson[]>(request, answers.LIST, deadline);
        if (areParsed(entries) || performance.now() + pause > until) break;
        await paused(pause);
      }
      const login = LOGINS.get(this);
      const ask = <T>(path: string, shape: Shape, query?: Query): Promise<T[]> =>
        known(this.#exchange.json<T[]>(this.#request("GET", path, query), shape, deadline), []);
      // Without a login: what is nearly the address alone, not what tests beside this one mistyped.
      const near = { login: login ?? "" };
      const rejected = await ask<RejectedJson>("/refused", answers.REJECTED, near);
      const sender = login === undefined ? undefined : { login };
      const captured = await ask<CapturedJson>("/captured", answers.CAPTURED, sender);
      const nothing = entries.length + found.length + rejected.length + captured.length === 0;
      // Mail may have been captured of which the relay does not tell who asks.
      const hides = { capture: false };
      let untold = "";
      if (nothing && this.#exchange.token === null) untold = NO_TOKEN; // and may not ask
      else if (nothing && this.#exchange.byKey && (await known(this.#info(deadline), hides)).capture)
        untold = BY_KEY;
      return inVain(what, timeout, entries, found, rejected, captured, untold);
    } catch (error) {
      if (!(error instanceof RelayError)) throw error;
      if (this.#awaitsCapture && isNotThere(error)) return unmade(what, timeout);
      return new WaitTimeout(what, timeout, `what came cannot be listed: ${error.message}`);
    }
  }

  readonly #reader: Ask = (method, path, more) =>
    this.#exchange.call({ ...this.#request(method, path), ...more });

  #request(method: RepeatableRequest["method"], path: string, query?: Query): RepeatableRequest {
    if (this.#closed && path) {
      const said = "was closed, and its mail is gone: read it before that";
      throw new RelayError(`the inbox ${this.address} ${said}`);
    }
    return {
      method,
      path: `${pathOf(this.address)}${path}`,
      says: saysOf(this),
      ...(query && { query }),
      ...(this.sessionToken && { headers: { "X-Session-Token": this.sessionToken } }),
    };
  }
}

/** What a relay says; `otherwise`, of one that does not say it. */
function known<T>(asked: Promise<T>, otherwise: T): Promise<T> {
  return asked.catch((error: unknown) => {
    if (error instanceof RelayError) return otherwise;
    throw error;
  });
}

function isNotThere(error: unknown): error is Refused {
  return error instanceof Refused && error.problem === "mailbox-not-found";
}
