/**
 * What says where a relay is: options, else the environment.  What can be no relay's URL and no
 * token is refused here, before anything is asked.
 */

import { isToken } from "./answers.js";
import type { Target } from "./call.js";
import { RelayError } from "./errors.js";
import { quoted } from "./text.js";

/** Where a relay is, unless it is said. @internal */
export const DEFAULT_URL = "http://127.0.0.1:8025";

/** What says where a relay is, for who has found none. @internal */
export function whereFrom(variables: string): string {
  return (
    `${variables} say where the relay is and what opens it; ` +
    `without RELAY_URL it is looked for at ${DEFAULT_URL}, where 'relay up' starts one`
  );
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

/** Where calls go by these options; `named` is what an error calls the URL. @internal */
export function target(
  { url, token, fetch }: RelayOptions,
  named = url ? "a relay's URL" : "RELAY_URL",
): Target {
  const where = (url || environment("RELAY_URL") || "").trim() || DEFAULT_URL;
  const opens = (token === undefined ? environment("RELAY_TOKEN") : token)?.trim();
  checkUrl(where, named);
  if (opens && !isToken(opens)) {
    throw new RelayError("the token has characters that no token has");
  }
  return { url: where, token: opens, fetch };
}

/** No more than scheme, host and port, and these only where they are no token and no password. */
const SHOWN =
  /^(?:[a-z][a-z0-9+.-]*:\/\/[a-z0-9.-]*(?::\d{1,5}(?=[/?#]|$))?(?=[:/?#]|$)|(?:localhost|(?:\d+\.){3}\d+|[a-z0-9.-]+\.[a-z]{2,9})(?::\d{1,5})?(?=[/?#]|$))/i;
const HTTP = /^https?:\/\/[^/\s\\\x00-\x1f\x7f][^\s\\\x00-\x1f\x7f]*$/i;

function checkUrl(where: string, named: string): void {
  let wrong = "begin with http:// or https:// and a host";
  let shown = SHOWN.exec(where)?.[0];
  if (where.includes("@")) {
    if (HTTP.test(where)) wrong = "have no user and no password, the token opens it";
    shown = undefined; // a password may have an @, too
  } else if (HTTP.test(where) && isUrl(where)) {
    if (!/[?#]/.test(where)) return;
    wrong = "end before a ? or #";
  }
  throw new RelayError(`${named} must ${wrong}${shown ? `: ${quoted(shown)}` : ""}`);
}

function isUrl(where: string): boolean {
  try {
    return Boolean(new URL(where));
  } catch {
    return false;
  }
}

function environment(name: string): string | undefined {
  return globalThis.process?.env?.[name];
}
