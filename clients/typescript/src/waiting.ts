/**
 * Waits, but for their calls: which mail is meant, for how long, and what is said in vain.  Both
 * `inbox.ts` and the commands for Cypress wait so.
 */

import { Refused, RelayError, WaitTimeout } from "./errors.js";
import type {
  CapturedJson,
  EntryJson,
  InfoJson,
  MessageData,
  MessageJson,
  RejectedJson,
} from "./records.js";
import { MAX_NAME, inALine, isPattern, quoted, shownMatch } from "./text.js";

/**
 * A wait is asked for in parts of so many milliseconds, less than the time after which a proxy in
 * between ends a connection on which nothing moves.
 * @internal
 */
export const PART = 20_000;

/** For how long is waited, in milliseconds, unless it is said. @internal */
export const TIMEOUT = 10_000;

/** Milliseconds between two looks at what will change soon: first, and at last. @internal */
export const FIRST_LOOK = 20;
/** @internal */
export const LAST_LOOK = 500;

/** What an error says to who may not know of captured mail, where nothing else came. */
const UNTOLD =
  "If the application mailed another address, that is not shown #. Look for it on " +
  "the relay's page (relay open), or set RELAY_TOKEN to the administrator's token: admin_token " +
  "in run/relay.json of the relay's data directory.";

/** For how many milliseconds after its time a wait still looks through what has come. @internal */
export const LOOKS_THROUGH = 1_000;

/** How many lines of other mail an error has. @internal */
export const OTHERS = 20;

/** Which message is meant; any, where nothing is said. */
export interface Wanted {
  /** A part of its subject, in any case; or a regular expression, which is searched for in it. */
  subject?: string | RegExp | undefined;
  /** The same of the From header's address. */
  sender?: string | RegExp | undefined;
  /** A message, or its id: only what came later. */
  after?: MessageData | string | undefined;
}

export interface WaitOptions extends Wanted {
  /** For how long at most, in milliseconds; the inbox's `timeout` (10,000) unless said. */
  timeout?: number | undefined;
}

/**
 * What `…/messages/wait` is asked for.  The relay knows no regular expressions: for one it is asked
 * for whatever comes, one message after the other, and each is looked at here (`fits`).  Another
 * name is refused: any mail would do.
 * @internal
 */
export function waitQuery(wanted: WaitOptions, part: number): Record<string, string | number> {
  const { subject, sender, after, timeout: _, ...others } = wanted;
  const [other] = Object.keys(others);
  if (typeof wanted !== "object" || other !== undefined) {
    const given = typeof wanted === "object" ? `not ${quoted(other ?? "")}` : "by their names";
    throw new RelayError(`mail is waited for by subject, sender and after, ${given}`);
  }
  for (const [name, match] of Object.entries({ subject, sender })) {
    if (match === undefined || typeof match === "string" || isPattern(match)) continue;
    const given = quoted(String(match));
    const how = `a ${name} is waited for by a part of it or a regular expression`;
    throw new RelayError(`${how}, not ${given}`);
  }
  return {
    empty: "null",
    ...(typeof subject === "string" && { subject }),
    ...(typeof sender === "string" && { from: sender }),
    ...(after !== undefined && { after: idOf(after) }),
    timeout: Math.round(part) / 1000,
  };
}

/** Whether a message that the relay gave is one that is wanted. @internal */
export function fits({ subject, sender }: Wanted, found: MessageJson): boolean {
  const has = (match: string | RegExp | undefined, text: string | null) =>
    !isPattern(match) || (text ?? "").search(match) >= 0;
  return has(subject, found.subject) && has(sender, found.from_address);
}

/**
 * Says how long to pause, in milliseconds, after each part of a wait that has ended without mail: by
 * how long that took, and how much was left of the wait as it began.  No relay ends a part much
 * before its time, or not often; where it is done, nobody is asked without a pause.
 * @internal
 */
export function pauses(): (took: number, left: number) => number {
  let next = 50;
  return (took, left) => {
    if (took >= Math.min(PART, left) / 2) return 0;
    const pause = Math.min(next, left - took);
    next = Math.min(2 * next, 1_000);
    return pause;
  };
}

/**
 * The same, if it is a time that can be waited for: one that never comes to its end is none.
 * @internal
 */
export function waitable(milliseconds: number): number {
  if (typeof milliseconds !== "number" || !(milliseconds >= 0 && milliseconds < Infinity)) {
    const given = typeof milliseconds === "string" ? quoted(milliseconds) : String(milliseconds);
    throw new RelayError(`a time to wait is a number of milliseconds, 0 or more, not ${given}`);
  }
  return milliseconds;
}

/** Say in words what is waited for: a message, or `count` of them. @internal */
export function inWords({ subject, sender, after }: Wanted, count?: number): string {
  const words = [
    ...(sender === undefined ? [] : [` from ${shownMatch(sender)}`]),
    ...(subject === undefined ? [] : [` with ${shownMatch(subject)} in the subject`]),
  ];
  const one = words.length > 0 ? "mail" : "any mail";
  const what = count === undefined ? one : `${count} message${count === 1 ? "" : "s"}`;
  return [what, ...words, after === undefined ? "" : ` after ${idOf(after)}`].join("");
}

/** A message in one line. @internal */
export function lineOf(
  entry: Pick<EntryJson | MessageJson, "subject" | "received_at" | "from_address">,
): string {
  const subject = entry.subject === null ? "(no subject)" : quoted(entry.subject);
  const sender = inALine(entry.from_address || "<>", MAX_NAME);
  return inALine(`${entry.received_at} from ${sender}: ${subject}`);
}

/**
 * What a wait in vain for `what` fails with.  `entries` are the newest, one more than it shows
 * where there are as many; `found` are the ids of those that were waited for; `rejected` are
 * recipients, and so are `captured`; `untold` is, where the relay would not tell of these, to whom.
 * @internal
 */
export function inVain(
  what: string,
  timeout: number,
  entries: readonly EntryJson[],
  found: readonly string[] = [],
  rejected: readonly Pick<RejectedJson, "address" | "reply">[] = [],
  captured: readonly Pick<CapturedJson, "address" | "count" | "attributed">[] = [],
  untold = "",
): WaitTimeout {
  const others = entries.filter(({ id }) => !found.includes(id)).map(lineOf);
  const count = others.length;
  const none = found.length > 0 ? `${found.length} came, and nothing else` : "nothing came";
  const some = count > OTHERS ? "others" : `${count} other${count > 1 ? "s" : ""}`;
  const newest = count > OTHERS ? `, the newest ${OTHERS}` : "";
  const beside = found.length > 0 ? `${found.length} came, and ${some}` : `${some} came`;
  const instead = count === 0 ? none : beside + newest;
  const recipients = rejected.map(({ address, reply }) => `${address} (${reply})`);
  const astray = captured.map(({ address, count: so, attributed }) => {
    const known = so === 1 ? [] : [`${so} messages`];
    if (attributed === false) known.push("nobody signed in: perhaps another test's");
    return known.length > 0 ? `${address} (${known.join("; ")})` : address;
  });
  const hint = untold && UNTOLD.replace("#", untold);
  return new WaitTimeout(what, timeout, instead, others.slice(0, OTHERS), recipients, astray, hint);
}

/** To whom captured mail is not shown: who has no token, or where there is such mail a key. @internal */
export const NO_TOKEN = "without a token";
/** @internal */
export const BY_KEY = "to an API key";

/** Whether a mailbox is made by its first mail, which is captured. @internal */
export function isCaptured(
  address: string,
  { capture, domains }: Pick<InfoJson, "capture" | "domains">,
): boolean {
  return capture && !domains.includes(address.slice(address.lastIndexOf("@") + 1).toLowerCase());
}

/** What a wait in vain for `what` fails with where that has not come. @internal */
export function unmade(what: string, timeout: number): WaitTimeout {
  return new WaitTimeout(what, timeout, "nothing came, so it has no mailbox yet");
}

/** What a key is told that waits there. @internal */
export function administrators({ status, problem, detail, title }: Refused): Refused {
  const said = `${detail} Captured mail opens only to the administrator's token.`;
  return new Refused(status, problem, said, [], 0, title);
}

/**
 * Whether entries of a list have all that they ever will; what has just come has no subject yet.
 * @internal
 */
export function areParsed(entries: readonly Partial<EntryJson>[]): boolean {
  return entries.every((entry) => entry.has_attachments !== null);
}

function idOf(message: MessageData | string): string {
  return typeof message === "string" ? message : message.id;
}
