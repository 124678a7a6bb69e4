/**
 * One try of a call: what it is made of, and what its answer says.
 *
 * An answer that is good is returned as soon as it begins; everything else is thrown, as `Refused`
 * or as `Unreachable`.  Which tries are repeated, and for how long, is said in `exchange.ts`.  The
 * relay's own page makes its calls by this module, too (scripts/page.mjs).
 */

import { Refused, Unreachable, quoted } from "./errors.js";
import { VERSION } from "./version.js";

/** For how many milliseconds an answer is waited for that the relay does not keep back. */
export const REPLY = 30_000;

/** Statuses that pass: the same call may do better later. */
export const RETRYABLE_STATUSES = new Set([429, 502, 503, 504]);

/** One request. */
export interface ApiRequest {
  method: "DELETE" | "GET" | "PATCH" | "POST" | "PUT";
  /** From the relay's root on. */
  path: string;
  query?: Readonly<Record<string, string | number>>;
  /** What the body says, as JSON. */
  body?: unknown;
  headers?: Readonly<Record<string, string>>;
}

/** Where a relay is, and what opens it, as `options.ts` has checked them. */
export interface Target {
  url: string;
  token?: string | null | undefined;
  /** What makes requests, instead of the global `fetch`. */
  fetch?: typeof globalThis.fetch | undefined;
}

/** Makes single tries. */
export class Caller {
  /** Where the relay is, without a slash at its end. */
  readonly base: string;
  readonly #headers: Readonly<Record<string, string>>;
  readonly #fetch: typeof globalThis.fetch;
  readonly #heard: ((headers: Headers) => void) | undefined;

  /** `heard` is called with the headers of each answer, good or not. */
  constructor({ url, token, fetch }: Target, heard?: (headers: Headers) => void) {
    this.base = url.replace(/\/+$/, "");
    this.#headers = {
      Accept: "application/json",
      ...(globalThis.process && { "User-Agent": `relay-client/${VERSION}` }),
      ...(token && { Authorization: `Bearer ${token}` }),
    };
    this.#fetch = fetch ?? globalThis.fetch.bind(globalThis);
    this.#heard = heard;
  }

  /** Make one try.  The body of what is returned is still to be read, while `signal` lets it. */
  async once(
    { method, path, query, body, headers }: ApiRequest,
    signal?: AbortSignal,
  ): Promise<Response> {
    const values = Object.entries(query ?? {}).map(([name, value]) => [name, String(value)]);
    const asked = query ? `${path}?${new URLSearchParams(values)}` : path;
    let answer: Response;
    let bytes: ArrayBuffer;
    try {
      answer = await this.#fetch(`${this.base}${asked}`, {
        method,
        headers: {
          ...this.#headers,
          ...(body !== undefined && { "Content-Type": "application/json" }),
          ...headers,
        },
        body: body === undefined ? null : JSON.stringify(body),
        signal: signal ?? null,
        cache: "no-store",
        redirect: "manual", // no relay sends elsewhere, and the token is for it alone
      });
      this.#heard?.(answer.headers);
      if (answer.ok) return answer;
      bytes = await answer.arrayBuffer();
    } catch (error) {
      throw new Unreachable(`the relay does not answer ${method} ${this.base}${path}`, {
        cause: error,
      });
    }
    const retryAfter = Number(answer.headers.get("Retry-After")) || 0;
    const { status, headers: said } = answer;
    throw refused(status, new Uint8Array(bytes), retryAfter, said.get("Location"));
  }
}

/** What a relay said, or whatever stands in front of it and leads to `location`, perhaps. */
export function refused(
  status: number,
  bytes: Uint8Array,
  retryAfter = 0,
  location: string | null = null,
): Refused {
  try {
    const problem = JSON.parse(new TextDecoder().decode(bytes)) as Record<string, unknown>;
    const { type, detail, errors, title } = problem;
    if (typeof type === "string" && typeof detail === "string") {
      const each = Array.isArray(errors) ? errors.map(String) : [];
      const kind = type.split(/[:/]/).pop() ?? type;
      return new Refused(status, kind, detail, each, retryAfter, String(title ?? ""));
    }
  } catch {
    // No problem document: what there is has to do.
  }
  const leads = location !== null && status >= 300 && status < 400;
  const said = leads
    ? `it leads to ${location}`
    : quoted(new TextDecoder().decode(bytes.subarray(0, 200)).trim());
  return new Refused(status, "unknown", `no relay answered: ${said}`, [], retryAfter);
}
