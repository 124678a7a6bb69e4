/**
 * Mailboxes as calls name them: what one is made with, and the paths of it and of what is in it.
 */

import { Refused, RelayError } from "./errors.js";
import type { RepeatableRequest } from "./exchange.js";
import type { components } from "./schema.js";
import { quoted } from "./text.js";

/** What inbox is wanted. */
export interface InboxOptions {
  /** Minutes for which it lives, if not closed before; as long as the plan allows unless said. */
  ttl?: number | undefined;
  /** What stands before the `@`; the relay chooses unless it is said. */
  localPart?: string | undefined;
  /** One of the relay's domains; the first unless said. */
  domain?: string | undefined;
}

/**
 * For how many minutes an inbox of a fixture lives, if the test run is killed before it ends it.
 * @internal
 */
export const FIXTURE_TTL = 60;

/** How many entries a page of a list has at most. @internal */
export const PAGE = 200;

/** @internal */
export type Query = NonNullable<RepeatableRequest["query"]>;

/**
 * An inbox as calls name it, and what is known of it that is nobody's but this package's: as a
 * property of the inbox itself it would be on what runners of tests print.
 * @internal
 */
export class InboxHandle {
  isClosed = false;
  /** Whether the first mail to it makes it; nobody has asked yet, if undefined. */
  awaitsCapture: boolean | undefined;
  /** As whom the application signs in that sends to it, where that is known. */
  login: string | undefined;
  /** For how many milliseconds it may wait, where a test runner ends the test sooner. */
  timeLimit: (() => number | undefined) | undefined;
  /** In what it is kept until it is closed, where a test runner reports of it. */
  openInboxes: Set<object> | undefined;

  /** `sessionToken` opens it, or where that is null `token`: the relay's, null without one. */
  constructor(
    readonly address: string,
    readonly sessionToken: string | null,
    readonly token: string | null,
    readonly expiresAt: Date | null,
  ) {}

  /** Whether a key opens the relay: what is captured is the administrator's, and not told. */
  get byKey(): boolean {
    return this.token?.startsWith("rk_") ?? false;
  }

  /** A call on it, or on something in it, if it is open. */
  request(method: RepeatableRequest["method"], path: string, query?: Query): RepeatableRequest {
    if (this.isClosed && path) {
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

/** What the call says that makes an inbox. @internal */
export function newMailbox({
  ttl,
  localPart,
  domain,
}: InboxOptions): components["schemas"]["NewMailbox"] {
  if (ttl !== undefined && !(Number.isFinite(ttl) && ttl > 0)) {
    throw new RelayError(`an inbox's ttl is a number of minutes above 0, not ${String(ttl)}`);
  }
  return {
    ...(ttl !== undefined && { ttl_minutes: ttl }),
    ...(localPart !== undefined && { local_part: localPart }),
    ...(domain !== undefined && { domain }),
  };
}

/**
 * What is said of a refusal, where its caller knows more of it than the relay says: by the problem's
 * name and the relay's words.
 * @internal
 */
export type Says = (problem: string, said: string) => string;

/** Of a mailbox that cannot be made. @internal */
export function saysOfNew({ localPart, domain }: InboxOptions): Says {
  return (problem, said) => {
    if (problem !== "address-taken" || localPart === undefined) return said;
    const name = quoted(domain === undefined ? localPart : `${localPart}@${domain}`);
    return (
      `${name} is taken: a relay gives an address out once while it remembers it, for days after ` +
      "its inbox has ended. Put something of the run in it, or let the relay choose."
    );
  };
}

const STARTED_AGAIN =
  " If the relay was started again, the token of its run/relay.json is another by now.";

/** As many milliseconds this machine's clock may be behind the relay's, by which a time ends. */
const CLOCKS_DIFFER = 10_000;

/** Of a mailbox that is not there: which, and why. */
function saysOf({ address, expiresAt, sessionToken }: InboxHandle): Says {
  return (problem, said) => {
    if (problem !== "mailbox-not-found") return said;
    const ends = new Date(expiresAt ?? NaN);
    if (!(+ends - Date.now() <= CLOCKS_DIFFER)) {
      // One that was made here, by the token that opens it no more.
      const hint = expiresAt && sessionToken === null ? STARTED_AGAIN : "";
      return `${said} (${address})${hint}`;
    }
    const at = ends.toISOString().replace(/\.\d+/, "");
    return `The inbox ${address} is over: its time ended at ${at}.`;
  };
}

/** The same refusal, of which that is said. @internal */
export function reworded(error: Refused, says?: Says): Refused {
  const { status, problem, errors, retryAfter, title } = error;
  const detail = says?.(problem, error.detail) ?? error.detail;
  return new Refused(status, problem, detail, errors, retryAfter, title);
}

/** An inbox's path. */
function pathOf(address: string): string {
  return `/api/v1/mailboxes/${partOf(address).replaceAll("%40", "@")}`;
}

/** An address or an id, as a part of a path. @internal */
export function partOf(text: string): string {
  try {
    return encodeURIComponent(text);
  } catch {
    throw new RelayError(`nothing is called so: ${quoted(text)}`); // for half a character is in it
  }
}

/** The path of a message in its inbox, or of something of it. @internal */
export function ofMessage(id: string, more = ""): string {
  return `/messages/${partOf(id)}${more}`;
}
