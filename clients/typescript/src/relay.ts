/**
 * `Relay`, and what it gives: inboxes, messages and attachments.  What is sent is in `sending.ts`.
 *
 * What needs a call is awaited; a value that was fetched once is kept.
 */

/// <reference lib="esnext.disposable" preserve="true" />

import * as answers from "./answers.js";
import type { Shape } from "./call.js";
import {
  Refused,
  RelayError,
  UnexpectedMail,
  Unreachable,
  WaitTimeout,
} from "./errors.js";
import {
  Exchange,
  LIST_BYTES,
  MESSAGE_BYTES,
  RAW_BYTES,
  type RepeatableRequest,
  decoded,
  type PlacedAnswer as Answer,
  noRelay,
  paused,
} from "./exchange.js";
import { type InboxOptions, newMailbox, ofMessage, pathOf } from "./mailboxes.js";
import type { RelayOptions } from "./options.js";
import {
  AttachmentData,
  type AttachmentJson,
  type CapturedJson,
  type Checks,
  type EntryJson,
  type Info,
  type InfoJson,
  MessageData,
  type MessageJson,
  type RejectedJson,
  type WholeEntryJson,
  parsedInfo,
} from "./records.js";
import type { components } from "./schema.js";
import { type NewMessage, Outbound, send } from "./sending.js";
import { quoted } from "./text.js";
import {
  BY_KEY,
  LOOKS_THROUGH,
  NO_TOKEN,
  FIRST_LOOK,
  LAST_LOOK,
  OTHERS,
  PART,
  TIMEOUT,
  type WaitOptions,
  type Wanted,
  administrators,
  areParsed,
  waitQuery,
  lineOf,
  fits,
  inVain,
  inWords,
  isCaptured,
  pauses,
  unmade,
  waitable,
} from "./waiting.js";

type Schemas = components["schemas"];
type Query = NonNullable<RepeatableRequest["query"]>;

const PAGE = 200;
const MAX_EMPTY_PAGES = 1_000; // of a list; a relay looks for a second for each
const MAX_LINK_HEADER = 8 << 10; // bytes of the header that names a next page
const CLOSES_WITHIN = 2_000; // or is left to its time; of several in vain, see `Exchange`
const LIST_TIMEOUT = 60_000; // with all of its pages
const LISTS_WITHIN = 2_000; // lines of other mail in a failure, or they are left out
const LOOK_CAPTURED = 250; // between two looks for a mailbox that its first mail makes

// Where there is none (Node.js before 18.18) this is the one that compilers put in its place.
const asyncDispose: typeof Symbol.asyncDispose =
  Symbol.asyncDispose ?? (Symbol.for("Symbol.asyncDispose") as typeof Symbol.asyncDispose);

/** How a list is read. */
export interface ListOptions {
  /** For how long at most, in milliseconds, with all of its pages; 60,000 unless said. */
  timeout?: number | undefined;
  /** How many bytes all of it may have. @internal */
  maxBytes?: number;
  /** Where each message is put as it is read. @internal */
  found?: Message[];
}

/** How many milliseconds a call may take, of relays whose calls a test runner limits. @internal */
export const TIME_LIMITS = new WeakMap<Relay, () => number | undefined>();

/** What inboxes have been made and not closed, of relays of which a test runner reports. @internal */
export const OPEN_INBOXES = new WeakMap<Relay, Set<Inbox>>();
const TRACKED_IN = new WeakMap<Inbox, Set<Inbox>>();

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
      { method: "POST", path: "/api/v1/mailboxes", body: newMailbox(wanted), idempotent: false },
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

  /**
   * A page of them by a call; one may be empty and have a next one: of a search that looked for
   * long enough.
   */
  async #listed(
    q: string | undefined,
    limit: number,
    { timeout = LIST_TIMEOUT, maxBytes: most = LIST_BYTES, found = [] }: ListOptions,
  ): Promise<Message[]> {
    const overallDeadline = performance.now() + waitable(timeout);
    let size = 0;
    const mayGoOn = () => {
      const list = `the list of ${this.address} has`;
      if (size > most) {
        throw new RelayError(`${list} more than ${most >> 20} MiB: ask for fewer messages at once`);
      }
      if (performance.now() < overallDeadline) return;
      throw new Unreachable(`${list} not ended after ${timeout / 1000} s`);
    };
    const call = async (request: RepeatableRequest): Promise<Answer> => {
      const one = { ...request, maxBytes: MESSAGE_BYTES };
      const answer = await this.#exchange.call(one, undefined, overallDeadline);
      size += answer.bytes.length;
      return answer;
    };
    const query = { limit: Math.min(limit, PAGE), whole: "true", ...(q !== undefined && { q }) };
    let path: string | undefined;
    const seen = new Set<string>();
    let empty = 0;
    while (found.length < limit) {
      const answer: Answer =
        path === undefined
          ? await call(this.#list(query))
          : await call({ ...this.#request("GET", ""), path: ofAtMost(path, limit - found.length) });
      const page = decoded(answer, answers.MESSAGES) as WholeEntryJson[];
      path = following(answer);
      for (const entry of page.slice(0, limit - found.length)) {
        found.push(new Message(this.#reader, entry));
      }
      if (path === undefined || found.length >= limit) break;
      if (seen.has(path)) throw noRelay(answer, "its next page is one that came before");
      if (page.length === 0) empty += 1;
      if (empty === MAX_EMPTY_PAGES) {
        throw noRelay(answer, `${empty} pages of its list are empty, and it goes on`);
      }
      seen.add(path);
      mayGoOn();
    }
    return found;
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
            const what = `the inbox was closed while ${inWords(wanted)} was waited for`;
            throw new RelayError(what);
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

/** Asks for something of an inbox. */
type Ask = (
  method: "GET" | "DELETE",
  path: string,
  more?: { maxBytes?: number },
) => Promise<Answer>;

/**
 * Path and query of the next page, if there is one.  A relay names it from its root on, wherever
 * that is: to another place no token goes.
 */
function following(answer: Answer): string | undefined {
  const link = answer.headers.get("Link") ?? "";
  if (link.length > MAX_LINK_HEADER) throw noRelay(answer, `its Link has more than ${MAX_LINK_HEADER >> 10} KiB`);
  const next = /<([^<>]*)>; *rel="next"/.exec(link)?.[1];
  if (next && !/^\/(?![/\\])[!-~]*$/.test(next)) {
    throw noRelay(answer, `its next page is at ${quoted(next.slice(0, 200))}`);
  }
  return next || undefined;
}

/** The path of a next page that has no more than so many: what it has is marked read. */
function ofAtMost(path: string, count: number): string {
  return path.replace(/([?&]limit=)\d+/, (_, name: string) => `${name}${Math.min(count, PAGE)}`);
}

/** A message of an inbox. */
export class Message extends MessageData<Attachment> {
  readonly #read: Ask;
  #raw: Promise<Uint8Array> | undefined;

  /** Made by an inbox's calls. */
  constructor(read: Ask, found: MessageJson) {
    super(found, (one) => new Attachment(read, found.id, one));
    this.#read = read;
  }

  /** The message byte for byte as it was accepted. */
  get raw(): Promise<Uint8Array> {
    return (this.#raw ??= this.#bytes().catch((error: unknown) => {
      this.#raw = undefined; // may be asked for again
      throw error;
    }));
  }

  /** Ask whether the world would take it: SPF, DKIM, DMARC, and what readers miss. */
  async checks(): Promise<Checks> {
    const answer = await this.#read("GET", ofMessage(this.id, "/checks"));
    return decoded(answer, answers.CHECKS) as Checks;
  }

  /** Delete it for good; one that is gone already is. */
  async delete(): Promise<void> {
    try {
      await this.#read("DELETE", ofMessage(this.id));
    } catch (error) {
      if (!(error instanceof Refused && error.problem === "message-not-found")) throw error;
    }
  }

  async #bytes(): Promise<Uint8Array> {
    return (await this.#read("GET", ofMessage(this.id, "/raw"), { maxBytes: RAW_BYTES })).bytes;
  }
}

/** A file that a message brought. */
export class Attachment extends AttachmentData {
  readonly #read: () => Promise<Uint8Array>;
  #content: Promise<Uint8Array> | undefined;

  /** One of a message's `attachments`. */
  constructor(read: Ask, messageId: string, found: AttachmentJson) {
    super(found);
    const path = ofMessage(messageId, `/attachments/${found.index}`);
    this.#read = async () => (await read("GET", path, { maxBytes: RAW_BYTES })).bytes;
  }

  /** Its bytes, decoded. */
  get content(): Promise<Uint8Array> {
    return (this.#content ??= this.#read().catch((error: unknown) => {
      this.#content = undefined; // may be asked for again
      throw error;
    }));
  }
}
