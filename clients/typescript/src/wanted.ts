/**
 * Which mail is waited for, and for how long.
 *
 * The relay waits for a part of a subject or a sender, in any case, but knows no regular
 * expressions: for one it is asked for whatever comes, one message after the other, and each is
 * looked at here (`fits`).  The Python client does the same (_wanted.py).
 */

import { RelayError } from "./errors.js";
import type { MessageData, MessageJson } from "./records.js";
import { isPattern, quoted, shownMatch } from "./text.js";

/** For how long is waited, in milliseconds, unless it is said. @internal */
export const TIMEOUT = 10_000;

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
 * What `…/messages/wait` is asked for.  Another name is refused: any mail would do.
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

function idOf(message: MessageData | string): string {
  return typeof message === "string" ? message : message.id;
}
