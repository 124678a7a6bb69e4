/**
 * One call: what it is made of, and what is done when it fails.
 *
 * A call that may be repeated is repeated while its relay is away or overloaded, up to its
 * deadline, and then fails with `Unreachable` or `Refused`.  One that may not is sent again only
 * where it never reached the relay.  What answers and is no relay is `Refused`, whatever it says
 * (`answers.ts`).  A try ends in its time, and takes so many bytes and no more.
 * Times are milliseconds, deadlines those of `performance.now()`.
 */

import {
  type Answer,
  type ApiRequest,
  Caller,
  JSON_BYTES,
  REPLY,
  RETRYABLE_STATUSES,
  type Shape,
  bytesOf,
  noRelay as noRelayOf,
  unlike,
} from "./call.js";
import { Refused, RelayError, Unreachable, hide } from "./errors.js";
import "./frames.js";
import { type Says, reworded } from "./mailboxes.js";
import { DEFAULT_URL, type RelayOptions, target } from "./options.js";
import { inALine, quoted } from "./text.js";

/** For how long a call is repeated that has no deadline of its own. */
const RETRY_TIMEOUT = 10_000;

const GRACE = 5_000; // by which the answer to a wait may be late
const WHOLE = 120_000; // until an answer has been read

const MIN_TRY = 50; // that a try gets, however late it is
const FIRST_PAUSE = 50; // between two tries
const LAST_PAUSE = 1_000;

const REMEDY =
  " Set RELAY_TOKEN to a key that is made at this relay " +
  "(relay key create --owner tests --scope read,send).";

/** What says that nobody can have heard a call. */
const NOT_CONNECTED = new Set([
  "ECONNREFUSED",
  "EHOSTUNREACH",
  "ENETUNREACH",
  "ENOTFOUND",
  "EAI_AGAIN",
  "UND_ERR_CONNECT_TIMEOUT",
]);

/**
 * What says that no try will do better: the other side cannot be trusted, or speaks no TLS.  A
 * connection that ends within a handshake is none of them.
 */
const HOPELESS =
  /^(?!.*UNEXPECTED_EOF)(ERR_(TLS|SSL)_|EPROTO$|UNABLE_TO_|CRL_|(INVALID_(CA|PURPOSE)|PATH_LENGTH_EXCEEDED|HOSTNAME_MISMATCH)$)|CERT/;

/** What says that the other side speaks no HTTP: no try will do better. */
const NO_HTTP = "HPE_INVALID_CONSTANT";

/** What says that the other side answers in clear. */
const IN_CLEAR = /^ERR_SSL_(WRONG_VERSION_NUMBER|PACKET_LENGTH_TOO_LONG)$/;

/** A request, and when it may be made again. @internal */
export interface RepeatableRequest extends ApiRequest {
  /** For how long the relay may keep its answer back. */
  longPoll?: number;
  /** Whether it does no harm to ask twice; it does none unless said. */
  idempotent?: boolean;
  /** How many bytes a good answer may have. */
  maxBytes?: number;
  /** What is said of a refusal. */
  says?: Says;
}

/** A call of a flow. @internal */
export interface FlowCall {
  /** What differs from try to try is made anew for each. */
  request: RepeatableRequest | (() => RepeatableRequest);
  /** What a good answer is like. */
  shape: Shape;
  /** Until when it is repeated, of `performance.now()`. */
  deadline: number;
}

/**
 * What waits, without I/O: a generator.  It yields a call, and is given what the answer says or
 * thrown the failure, or for how many milliseconds nothing is to be done; what it returns is the
 * result.  So each wait stands once (`waiting.ts`), and `Exchange.run` and `cypress.ts` run it.
 * @internal
 */
export type Flow<T> = Generator<FlowCall | number, T, unknown>;

/** An answer, and what it answers: the method, and the address without its query. */
export interface PlacedAnswer extends Answer {
  asked: string;
}

/** Makes the calls of one client. */
export class Exchange {
  /** @internal */
  readonly token: string | null;
  /** For how many milliseconds more its inboxes may be ended in vain, all together. @internal */
  closesWithin = 5_000;
  readonly #caller: Caller;
  readonly #running = new Set<AbortController>();
  readonly #timeLimit: () => number | undefined;
  #closed = false;

  /**
   * `timeLimit` says how long a call without a deadline of its own may take; undefined: as it pleases.
   * @internal
   */
  constructor(options: RelayOptions, timeLimit: () => number | undefined = () => undefined) {
    const where = target(options);
    this.#caller = new Caller(where);
    this.token = where.token || null;
    this.#timeLimit = timeLimit;
  }

  /** Where the relay is, without a slash at its end. @internal */
  get url(): string {
    return this.#caller.base;
  }

  /** End what is under way, and refuse what is asked for later. @internal */
  close(): void {
    this.#closed = true;
    for (const one of this.#running) one.abort();
  }

  /** Run a flow to its end. @internal */
  async run<T>(flow: Flow<T>): Promise<T> {
    let step = flow.next();
    while (!step.done) {
      const asked = step.value;
      const done: Promise<unknown> =
        typeof asked === "number"
          ? paused(asked)
          : this.json(asked.request, asked.shape, asked.deadline);
      step = await done.then(
        (answer) => flow.next(answer),
        (error: unknown) => flow.throw(error),
      );
    }
    return step.value;
  }

  /** Ask until there is an answer, and read what it says. @internal */
  async json<T>(
    request: RepeatableRequest | (() => RepeatableRequest),
    shape: Shape,
    deadline?: number,
  ): Promise<T> {
    return decoded(await this.call(request, deadline), shape) as T;
  }

  /**
   * Make a call until it is answered; return the answer if it is a good one.  A call is repeated up
   * to `deadline`, and no try outlasts it but one that may keep its answer back.  Without one, or
   * where it is `shared` by several calls of which this is one, it is repeated for as long as the
   * time limit says, else for `RETRY_TIMEOUT`.  What differs from try to try is made anew for each.
   * @internal
   */
  async call(
    request: RepeatableRequest | (() => RepeatableRequest),
    deadline = Infinity,
    { shared = deadline === Infinity } = {},
  ): Promise<PlacedAnswer> {
    const began = performance.now();
    let lastStart = deadline;
    if (shared) {
      const timeLimit = this.#timeLimit();
      deadline = Math.min(deadline, began + (timeLimit ?? Infinity));
      lastStart = Math.min(deadline, began + (timeLimit ?? RETRY_TIMEOUT));
    }
    for (let pause = FIRST_PAUSE; ; pause = Math.min(2 * pause, LAST_PAUSE)) {
      const one = typeof request === "function" ? request() : request;
      const idempotent = one.idempotent ?? true;
      let failure: RelayError;
      let repeats: boolean;
      let delay = pause;
      try {
        const answer = await this.#once(one, deadline);
        if (answer.fault !== undefined) throw noRelayOf(answer);
        return answer;
      } catch (error) {
        if (this.#closed) throw new RelayError("the client is closed", { cause: error });
        if (error instanceof Refused) {
          failure = hidden(this.#placed(error, one));
          repeats = RETRYABLE_STATUSES.has(error.status) && (idempotent || error.status === 429);
          delay = Math.max(pause, 1000 * error.retryAfter);
        } else {
          const cause = error instanceof Unreachable ? error.cause : error;
          const { code, text } = reason(cause);
          const { base } = this.#caller;
          const asked = `${one.method} ${base}${one.path}`;
          const seconds = ((performance.now() - began) / 1000).toFixed(1);
          let said = `the relay does not answer ${asked} (for ${seconds} s: ${text})`;
          if (HOPELESS.test(code)) {
            said = `no TLS connection to ${base}: ${text} (${code})`;
            if (IN_CLEAR.test(code)) said += "; it answers without TLS: is http:// meant?";
          } else if (code === NO_HTTP) {
            said = `no relay answers at ${base}: it says ${text}, which is not HTTP; a relay's URL is that of its HTTP port, such as ${DEFAULT_URL}`;
          }
          failure = new Unreachable(said, { cause });
          const mayPass = code !== NO_HTTP && !HOPELESS.test(code);
          repeats = mayPass && (idempotent || NOT_CONNECTED.has(code));
        }
      }
      if (!repeats || performance.now() + delay > lastStart) throw failure;
      await paused(delay);
    }
  }

  /** What a relay has not said, or nothing opens, with what was asked, and what is to be done. */
  #placed(error: Refused, one: RepeatableRequest): Refused {
    const closed = error.problem === "unauthenticated" && !one.headers?.["X-Session-Token"];
    if (!closed && error.problem !== "not-found" && error.problem !== "unknown") {
      return reworded(error, one.says);
    }
    return at(error, this.#asked(one), closed ? REMEDY : "");
  }

  #asked({ method, path }: RepeatableRequest): string {
    return `${method} ${this.#caller.base}${path.replace(/\?.*/s, "")}`;
  }

  async #once(request: RepeatableRequest, deadline: number): Promise<PlacedAnswer> {
    if (this.#closed) throw new RelayError("the client is closed");
    const ending = new AbortController();
    const late = () => ending.abort(new Error("it takes too long"));
    const left = Math.max(MIN_TRY, deadline - performance.now());
    const whole =
      request.longPoll === undefined ? Math.min(WHOLE, left) : request.longPoll + GRACE;
    const began = performance.now();
    let timer = setTimeout(late, request.longPoll === undefined ? Math.min(REPLY, left) : whole);
    this.#running.add(ending);
    try {
      const response = await this.#caller.once(request, ending.signal);
      clearTimeout(timer);
      timer = setTimeout(late, whole - (performance.now() - began));
      const { status, headers } = response;
      const asked = this.#asked(request);
      return { status, headers, asked, ...(await bytesOf(response, request.maxBytes ?? JSON_BYTES)) };
    } finally {
      clearTimeout(timer);
      this.#running.delete(ending);
    }
  }
}

/** Read what a good answer says; `Refused` if that is no JSON, or no relay's. @internal */
export function decoded(answer: PlacedAnswer, shape: Shape): unknown {
  try {
    const found: unknown = JSON.parse(new TextDecoder().decode(answer.bytes));
    if (shape(found)) return found;
  } catch {
    // Said below.
  }
  throw hidden(at(unlike(answer), answer.asked));
}

/** What is thrown where no relay has answered. @internal */
export function noRelay(answer: PlacedAnswer, why: string): Refused {
  return hidden(at(noRelayOf(answer, why), answer.asked));
}

/** The same error, which says what was asked, and what is to be done. */
function at(error: Refused, asked: string, remedy = ""): Refused {
  return reworded(error, (_, said) => `${said} (${asked})${remedy}`);
}

/** The same error, of which nothing is printed but its text; the relay's page has no use for this. */
function hidden(error: Refused): Refused {
  hide(error, "problem", "detail", "title");
  // Which Node.js prints even where it is hidden.
  Object.defineProperty(error, "errors", { value: error.errors.map((one) => inALine(one)) });
  hide(error, "errors");
  return error;
}

/** Rest for so many milliseconds. @internal */
export function paused(milliseconds: number): Promise<void> {
  return new Promise((done) => setTimeout(done, milliseconds));
}

/** Why a request failed: fetch itself says "fetch failed", and the reason is its cause. */
function reason(error: unknown): { code: string; text: string } {
  let code = "";
  let text = String(error);
  for (let one = error; one instanceof Error; one = one.cause) {
    const found = (one as { code?: unknown }).code;
    if (typeof found === "string") code = found;
    // OpenSSL's, without its source's lines; what a parser of HTTP was given.
    const { reason: why, data } = one as { reason?: unknown; data?: unknown };
    text = (typeof why === "string" && why) || one.message || code || one.name;
    if (code === NO_HTTP) text = quoted(String(data).slice(0, 100).trim());
  }
  return { code, text };
}
