/**
 * One call: what it is made of, and what is done when it fails.
 *
 * A call that may be repeated is repeated while its relay is away or overloaded, up to its
 * deadline, and then fails with `Unreachable` or `Refused`.  One that may not is sent again only
 * where it never reached the relay.  Times are milliseconds, deadlines those of `performance.now()`.
 */

import { Refused, RelayError, Unreachable } from "./errors.js";
import { VERSION } from "./version.js";

/** For how long a call is repeated that has no deadline of its own. */
export const PATIENCE = 10_000;

/** Where a relay is, unless it is said. */
export const DEFAULT_URL = "http://127.0.0.1:8025";

const REPLY = 30_000; // until an answer begins
const LATE = 5_000; // by which the answer to a wait may be late
const BODY = 120_000; // until it has been read
const FIRST_PAUSE = 50; // between two tries
const LAST_PAUSE = 1_000;
const PASSING = new Set([429, 502, 503, 504]);

/** What says that nobody can have heard a call. */
const UNHEARD = new Set([
  "ECONNREFUSED",
  "EHOSTUNREACH",
  "ENETUNREACH",
  "ENOTFOUND",
  "EAI_AGAIN",
  "UND_ERR_CONNECT_TIMEOUT",
]);

/** One request. */
export interface Ask {
  method: "GET" | "POST" | "DELETE";
  /** From the relay's root on. */
  path: string;
  query?: Readonly<Record<string, string | number>>;
  /** What the body says, as JSON. */
  body?: unknown;
  headers?: Readonly<Record<string, string>>;
  /** For how long the relay may keep its answer back. */
  waits?: number;
  /** Whether it does no harm to ask twice; it does none unless said. */
  again?: boolean;
}

/** A good answer. */
export interface Answer {
  headers: Headers;
  bytes: Uint8Array;
}

/** Where a relay is, and what opens it. */
export interface RelayOptions {
  /** `RELAY_URL` of the environment unless given, else a relay on this machine. */
  url?: string | undefined;
  /**
   * An API key or the administrator's token; `RELAY_TOKEN` of the environment unless given.
   * Without one, or with null, inboxes are anonymous.
   */
  token?: string | null | undefined;
  /** What makes requests, instead of the global `fetch`. */
  fetch?: typeof globalThis.fetch | undefined;
}

/** Makes the calls of one client. */
export class Exchange {
  readonly #base: string;
  readonly #headers: Readonly<Record<string, string>>;
  readonly #fetch: typeof globalThis.fetch;
  readonly #running = new Set<AbortController>();
  #closed = false;

  constructor({ url, token, fetch }: RelayOptions) {
    const where = url || environment("RELAY_URL") || DEFAULT_URL;
    const opens = token === undefined ? environment("RELAY_TOKEN") : token;
    if (!/^https?:\/\/[^/]/i.test(where)) {
      throw new RelayError(`a relay's URL begins with http:// or https:// and a host: '${where}'`);
    }
    if (opens && !/^[\x20-\x7e]+$/.test(opens)) {
      throw new RelayError("the token has characters that no token has");
    }
    this.#base = where.replace(/\/+$/, "");
    this.#headers = {
      Accept: "application/json",
      ...(globalThis.process && { "User-Agent": `relay-client/${VERSION}` }),
      ...(opens && { Authorization: `Bearer ${opens}` }),
    };
    this.#fetch = fetch ?? globalThis.fetch.bind(globalThis);
  }

  /** End what is under way, and refuse what is asked for later. */
  close(): void {
    this.#closed = true;
    for (const one of this.#running) one.abort();
  }

  /** Ask until there is an answer, and read what it says. */
  async json<T>(asks: Ask | (() => Ask), deadline?: number): Promise<T> {
    const { bytes } = await this.ask(asks, deadline);
    return decoded(bytes) as T;
  }

  /**
   * Ask until there is an answer; return it if it is a good one.  What differs from try to try is
   * made anew for each.
   */
  async ask(asks: Ask | (() => Ask), deadline = performance.now() + PATIENCE): Promise<Answer> {
    const began = performance.now();
    for (let pause = FIRST_PAUSE; ; pause = Math.min(2 * pause, LAST_PAUSE)) {
      const ask = typeof asks === "function" ? asks() : asks;
      const again = ask.again ?? true;
      let failure: RelayError;
      let repeats: boolean;
      let rest = pause;
      try {
        const { status, headers, bytes } = await this.#once(ask);
        if (status < 400) return { headers, bytes };
        failure = refused(status, bytes);
        repeats = PASSING.has(status) && (again || status === 429);
        rest = Math.max(pause, 1000 * (Number(headers.get("Retry-After")) || 0));
      } catch (error) {
        if (this.#closed) throw new RelayError("the client is closed", { cause: error });
        const { code, text } = reason(error);
        const seconds = ((performance.now() - began) / 1000).toFixed(1);
        failure = new Unreachable(
          `the relay does not answer ${ask.method} ${this.#base}${ask.path} (for ${seconds} s: ${text})`,
          { cause: error },
        );
        repeats = again || UNHEARD.has(code);
      }
      if (!repeats || performance.now() + rest > deadline) throw failure;
      await paused(rest);
    }
  }

  async #once(ask: Ask): Promise<Answer & { status: number }> {
    if (this.#closed) throw new RelayError("the client is closed");
    const query = ask.query
      ? `?${new URLSearchParams(Object.entries(ask.query).map(([name, value]) => [name, String(value)]))}`
      : "";
    const ending = new AbortController();
    const late = () => ending.abort(new Error("it takes too long"));
    let timer = setTimeout(late, ask.waits === undefined ? REPLY : ask.waits + LATE);
    this.#running.add(ending);
    try {
      const response = await this.#fetch(`${this.#base}${ask.path}${query}`, {
        method: ask.method,
        headers: {
          ...this.#headers,
          ...(ask.body !== undefined && { "Content-Type": "application/json" }),
          ...ask.headers,
        },
        body: ask.body === undefined ? null : JSON.stringify(ask.body),
        signal: ending.signal,
        cache: "no-store",
      });
      clearTimeout(timer);
      timer = setTimeout(late, BODY);
      const bytes = new Uint8Array(await response.arrayBuffer());
      return { status: response.status, headers: response.headers, bytes };
    } finally {
      clearTimeout(timer);
      this.#running.delete(ending);
    }
  }
}

/** Read a JSON answer. */
export function decoded(bytes: Uint8Array): unknown {
  try {
    return JSON.parse(new TextDecoder().decode(bytes));
  } catch (error) {
    throw new RelayError(`no relay answered: ${beginning(bytes)}`, { cause: error });
  }
}

/** What a relay said, or whatever stands in front of it. */
export function refused(status: number, bytes: Uint8Array): Refused {
  try {
    const problem = JSON.parse(new TextDecoder().decode(bytes)) as Record<string, unknown>;
    const { type, detail, errors } = problem;
    if (typeof type === "string" && typeof detail === "string") {
      const each = Array.isArray(errors) ? errors.map(String) : [];
      return new Refused(status, type.split(/[:/]/).pop() ?? type, detail, each);
    }
  } catch {
    // No problem document: what there is has to do.
  }
  return new Refused(status, "unknown", `no relay answered: ${beginning(bytes)}`);
}

/** Rest for so many milliseconds. */
export function paused(milliseconds: number): Promise<void> {
  return new Promise((done) => setTimeout(done, milliseconds));
}

function beginning(bytes: Uint8Array): string {
  return JSON.stringify(new TextDecoder().decode(bytes.subarray(0, 200)).trim());
}

/** Why a request failed: fetch itself says "fetch failed", and the reason is its cause. */
function reason(error: unknown): { code: string; text: string } {
  let code = "";
  let text = String(error);
  for (let one = error; one instanceof Error; one = one.cause) {
    const found = (one as { code?: unknown }).code;
    if (typeof found === "string") code = found;
    text = one.message || code || one.name;
  }
  return { code, text };
}

function environment(name: string): string | undefined {
  return globalThis.process?.env?.[name];
}
