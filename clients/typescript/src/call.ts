/**
 * One try of a call: what it is made of, and what its answer says.
 *
 * An answer that is good is returned as soon as it begins; everything else is thrown, as `Refused`
 * or as `Unreachable`.  Which tries are repeated, and for how long, is said in `exchange.ts`.  The
 * relay's own page makes its calls by this module, too (scripts/page.mjs).
 *
 * No more is taken of an answer than it may have, and none that is packed: how much it would become
 * is not seen before.  (In a browser, which has unpacked it, it is measured as it is then.)
 */

import { Refused, Unreachable } from "./errors.js";
import { quoted } from "./text.js";
import { VERSION } from "./version.js";

/**
 * For how many milliseconds an answer is waited for that the relay does not keep back.
 * @internal
 */
export const REPLY = 30_000;

/** How many bytes a refusal may have. */
const REFUSAL = 1 << 20;

/**
 * Bytes of an answer that is neither a message nor a list of messages; none has as much.  Parsed,
 * JSON takes up to thirty times its size in memory.
 * @internal
 */
export const JSON_BYTES = 2 << 20;

/**
 * More than a message's texts, headers and links can have in JSON (a million characters each), and
 * than a list of two hundred subjects, which strangers choose: of 64 KiB each where a relay does
 * not cut them.
 * @internal
 */
export const MESSAGE_BYTES = 32 << 20;

/**
 * What all pages of a list may have together.
 * @internal
 */
export const LIST_BYTES = 128 << 20;

/**
 * Ten times the largest message that a relay takes unless its operator allows more, in bytes.
 * @internal
 */
export const RAW_BYTES = 256 << 20;

/** Statuses that pass: the same call may do better later. @internal */
export const RETRYABLE_STATUSES = new Set([429, 502, 503, 504]);

/** One request. @internal */
export interface ApiRequest {
  method: "DELETE" | "GET" | "PATCH" | "POST" | "PUT";
  /** From the relay's root on. */
  path: string;
  query?: Readonly<Record<string, string | number>>;
  /** What the body says, as JSON. */
  body?: unknown;
  headers?: Readonly<Record<string, string>>;
}

/** Where a relay is, and what opens it, as `options.ts` has checked them. @internal */
export interface Target {
  url: string;
  token?: string | null | undefined;
  /** What makes requests, instead of the global `fetch`. */
  fetch?: typeof globalThis.fetch | undefined;
}

/** Makes single tries. @internal */
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
      ...(globalThis.process && {
        "User-Agent": `relay-client/${VERSION}`,
        "Accept-Encoding": "identity",
      }),
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
    let read: Read;
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
      read = await bytesOf(answer, REFUSAL);
    } catch (error) {
      throw new Unreachable(`the relay does not answer ${method} ${this.base}${path}`, {
        cause: error,
      });
    }
    throw refused({ status: answer.status, headers: answer.headers, ...read });
  }
}

/** Tells whether a value is what a relay says (answers.ts). @internal */
export type Shape = (value: unknown) => boolean;

/** What was read of an answer, and why it is no relay's, where that is seen without reading it. */
export interface Read {
  bytes: Uint8Array;
  fault?: string | undefined;
}

/** An answer, as far as it was read. */
export interface Answer extends Read {
  status: number;
  headers: Headers;
}

/** Read what an answer says, up to so many bytes. @internal */
export async function bytesOf(answer: Response, maxBytes: number): Promise<Read> {
  const coding = (globalThis.process && answer.headers.get("Content-Encoding")) || "identity";
  if (coding.toLowerCase() !== "identity") {
    await answer.body?.cancel().catch(() => {});
    return { bytes: new Uint8Array(), fault: `it comes as ${quoted(coding)}` };
  }
  const pieces: Uint8Array[] = [];
  let size = 0;
  const reader = answer.body?.getReader();
  for (;;) {
    const piece = (await reader?.read())?.value;
    if (!piece) break;
    pieces.push(piece.subarray(0, maxBytes - size));
    size += piece.length;
    if (size > maxBytes) break;
  }
  const bytes = new Uint8Array(Math.min(size, maxBytes));
  let at = 0;
  for (const piece of pieces) {
    bytes.set(piece, at);
    at += piece.length;
  }
  if (size <= maxBytes) return { bytes };
  await reader?.cancel().catch(() => {});
  return { bytes, fault: `it says more than ${maxBytes >> 20} MiB` };
}

/** What a relay said, or whatever stands in front of it. @internal */
export function refused(answer: Answer): Refused {
  const { status, headers, bytes, fault } = answer;
  try {
    const problem = JSON.parse(new TextDecoder().decode(bytes)) as Record<string, unknown>;
    const { type, detail, errors, title } = problem;
    if (fault === undefined && typeof type === "string" && typeof detail === "string") {
      const each = Array.isArray(errors) ? errors.map(String) : [];
      const kind = type.split(/[:/]/).pop() ?? type;
      return new Refused(status, kind, detail, each, retryIn(headers), String(title ?? ""));
    }
  } catch {
    // No problem document: what there is has to do.
  }
  return noRelay(answer);
}

/** What is thrown where no relay has answered. @internal */
export function noRelay({ status, headers, bytes, fault }: Answer, why = fault): Refused {
  const url = headers.get("Location");
  if (/^\s*</.test(new TextDecoder().decode(bytes.subarray(0, 100)))) why ??= "it is a web page"; // scripts/page.mjs drops this line
  const leads = url !== null && status >= 300 && status < 400;
  const said = leads
    ? `it leads to ${url}`
    : (why ?? quoted(new TextDecoder().decode(bytes.subarray(0, 100)).trim()));
  return new Refused(status, "unknown", `no relay answered: ${said}`, [], retryIn(headers));
}

/**
 * What is thrown where an answer is good and not what was asked for; no error has a token in it.
 * @internal
 */
export function unlike(answer: Answer): Refused {
  const said = new TextDecoder().decode(answer.bytes);
  return noRelay(answer, said.includes('_token"') ? "what it says has a token in it" : undefined);
}

function retryIn(headers: Headers): number {
  const seconds = Number(headers.get("Retry-After"));
  return seconds > 0 && seconds < Infinity ? seconds : 0;
}
