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
    `without RELAY_URL it is looked for at ${DEFAULT_URL}`
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

/** Where calls go by these options. @internal */
export function target({ url, token, fetch }: RelayOptions): Target {
  const where = (url || environment("RELAY_URL") || "").trim() || DEFAULT_URL;
  const opens = (token === undefined ? environment("RELAY_TOKEN") : token)?.trim();
  checkUrl(where);
  if (opens && !isToken(opens)) {
    throw new RelayError("the token has characters that no token has");
  }
  return { url: where, token: opens, fetch };
}

const SHOWN =
  /^[a-z][a-z0-9+.-]*:\/\/[a-z0-9.-]*(?::\d{1,5}(?=[/?#]|$))?(?=[:/?#]|$)|^[a-z0-9.-]+:\d{1,5}(?=[/?#]|$)/i;

function checkUrl(where: string): void {
  let url: URL | undefined;
  try {
    url = new URL(where);
  } catch {
    // Said below.
  }
  const begins = url !== undefined && /^https?:\/\/[^/]/i.test(where);
  if (begins && (url?.username || url?.password)) {
    throw new RelayError("a relay's URL has no user and no password: the token opens it");
  }
  if (!begins || /[?#]/.test(where)) {
    // No more than scheme, host and port: where there is a user, that part may be a password.
    const [found] = SHOWN.exec(where) ?? [];
    const said = found && !where.includes("@") ? `: ${quoted(found)}` : "";
    const wrong = begins ? "ends before a ? or #" : "begins with http:// or https:// and a host";
    throw new RelayError(`a relay's URL ${wrong}${said}`);
  }
}

function environment(name: string): string | undefined {
  return globalThis.process?.env?.[name];
}
