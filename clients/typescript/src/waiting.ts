/**
 * Flows that wait for mail, and say of a wait in vain what there is in its place.
 *
 * What a flow is stands in `exchange.ts`, of which only types are imported: Cypress, whose calls are
 * its own, loads no more.
 */

import * as answers from "./answers.js";
import { MESSAGE_BYTES, type Shape } from "./call.js";
import { Refused, RelayError, UnexpectedMail, WaitTimeout } from "./errors.js";
import type { Flow, FlowCall, RepeatableRequest } from "./exchange.js";
import { type InboxHandle, PAGE, type Query } from "./mailboxes.js";
import type { CapturedJson, EntryJson, InfoJson, MessageJson, RejectedJson } from "./records.js";
import { MAX_NAME, inALine, quoted } from "./text.js";
import { type WaitOptions, type Wanted, fits, inWords, waitQuery } from "./wanted.js";

/**
 * A wait is asked for in parts of so many milliseconds, less than the time after which a proxy in
 * between ends a connection on which nothing moves.
 */
const PART = 20_000;
const FIRST_PAUSE = 50; // between two parts that end at once
const LAST_PAUSE = 1_000;
const LOOKS_THROUGH = 1_000; // what has come is still held against a pattern, after the time
const LOOK_CAPTURED = 250; // between two looks for a mailbox that its first mail makes
const LISTS_WITHIN = 2_000; // lines of other mail in a failure, or they are left out
const OTHERS = 20; // of these lines

/** Milliseconds between two looks at what will change soon: first, and at last. @internal */
export const FIRST_LOOK = 20;
/** @internal */
export const LAST_LOOK = 500;

/** What an error says to who may not know of captured mail, where nothing else came. */
const UNTOLD =
  "If the application mailed another address, that is not shown #. Look for it on " +
  "the relay's page (relay open), or set RELAY_TOKEN to the administrator's token: admin_token " +
  "in run/relay.json of the relay's data directory.";

/** Make a call, and return what its answer says. @internal */
export function* asked<T>(
  request: FlowCall["request"],
  shape: Shape,
  deadline: number,
): Flow<T> {
  return (yield { request, shape, deadline }) as T;
}

/** Wait for the oldest message that matches; `WaitTimeout` if none comes. @internal */
export function* wait(
  handle: InboxHandle,
  wanted: WaitOptions,
  timeout: number,
): Flow<MessageJson> {
  const found = yield* next(handle, wanted, performance.now() + timeout);
  if (found === null) throw yield* inVain(handle, inWords(wanted), timeout);
  return found;
}

/** See that nothing comes that matches; `UnexpectedMail` as soon as something does. @internal */
export function* waitNone(handle: InboxHandle, wanted: Wanted, milliseconds: number): Flow<void> {
  const found = yield* next(handle, wanted, performance.now() + milliseconds);
  if (found === null) return;
  throw new UnexpectedMail(`mail came where none was to come:\n  ${lineOf(found)}`);
}

/** Wait for so many that match, the oldest first; `WaitTimeout` if too few come. @internal */
export function* waitMany(
  handle: InboxHandle,
  wanted: WaitOptions,
  count: number,
  timeout: number,
): Flow<MessageJson[]> {
  const deadline = performance.now() + timeout;
  const found: MessageJson[] = [];
  while (found.length < count) {
    const after = found.at(-1)?.id ?? wanted.after;
    const one = yield* next(handle, { ...wanted, after }, deadline);
    if (one === null) {
      const ids = found.map(({ id }) => id);
      throw yield* inVain(handle, inWords(wanted, count), timeout, ids);
    }
    found.push(one);
  }
  return found;
}

/** Wait for one; what has come by the deadline is looked through a moment longer. */
function* next(
  handle: InboxHandle,
  wanted: WaitOptions,
  deadline: number,
): Flow<MessageJson | null> {
  let later = wanted; // than what came and does not fit
  const part = (): RepeatableRequest => {
    const left = Math.min(PART, Math.max(0, deadline - performance.now()));
    const request = handle.request("GET", "/messages/wait", waitQuery(later, left));
    return { ...request, longPoll: left, maxBytes: MESSAGE_BYTES };
  };
  part(); // or is refused what was closed, which is not said to have been closed meanwhile
  const orSoon = () => Math.max(deadline, performance.now() + 1_000);
  let pause = FIRST_PAUSE;
  for (;;) {
    const began = performance.now();
    let found: MessageJson | null = null;
    try {
      found = yield* asked<MessageJson | null>(part, answers.MESSAGE_OR_NONE, orSoon());
    } catch (error) {
      // As a runner does that has given the test up.
      if (handle.isClosed) {
        const said = `was closed while ${inWords(wanted)} was waited for`;
        throw new RelayError(`the inbox ${handle.address} ${said}`);
      }
      yield* expect(handle, error, orSoon());
    }
    const now = performance.now();
    if (found !== null && fits(wanted, found)) return found;
    if (found !== null && now < deadline + LOOKS_THROUGH) {
      later = { ...later, after: found.id };
      continue;
    }
    if (now >= deadline) return null;
    if (now - began < Math.min(PART, deadline - began) / 2) {
      // No relay ends a part so early, or not often: nobody is asked without a rest.
      const rest = Math.min(pause, deadline - now);
      yield handle.awaitsCapture ? Math.min(rest, LOOK_CAPTURED) : rest;
      pause = Math.min(2 * pause, LAST_PAUSE);
    }
  }
}

/**
 * Throw what a wait failed with, unless the mailbox is one that its first mail makes: which is so
 * for the administrator, where the relay captures mail for the address.
 */
function* expect(handle: InboxHandle, error: unknown, deadline: number): Flow<void> {
  if (!isNotThere(error) || handle.sessionToken !== null) throw error;
  if (handle.awaitsCapture === undefined) {
    let said: InfoJson;
    try {
      said = yield* info(deadline);
    } catch (other) {
      throw other instanceof RelayError ? error : other;
    }
    const domain = handle.address.slice(handle.address.lastIndexOf("@") + 1).toLowerCase();
    handle.awaitsCapture = said.capture && !said.domains.includes(domain);
  }
  if (!handle.awaitsCapture) throw error;
  if (handle.byKey) {
    handle.awaitsCapture = false;
    const { status, problem, detail, title } = error;
    const said = `${detail} Captured mail opens only to the administrator's token.`;
    throw new Refused(status, problem, said, [], 0, title);
  }
}

function info(deadline: number): Flow<InfoJson> {
  return asked({ method: "GET", path: "/api/v1/info" }, answers.INFO, deadline);
}

/** What a wait in vain ends with; `found` are the ids of what was waited for and came. */
function* inVain(
  handle: InboxHandle,
  what: string,
  timeout: number,
  found: readonly string[] = [],
): Flow<WaitTimeout> {
  const deadline = performance.now() + LISTS_WITHIN;
  try {
    const entries = yield* parsed(handle, Math.min(found.length + OTHERS + 1, PAGE), deadline);
    const ask = <T>(path: string, shape: Shape, query?: Query): Flow<T[]> =>
      known(asked<T[]>(handle.request("GET", path, query), shape, deadline), []);
    const { login } = handle;
    // Without a login: what is nearly the address alone, not what tests beside this one mistyped.
    const near = { login: login ?? "" };
    const rejected = yield* ask<RejectedJson>("/refused", answers.REJECTED, near);
    const sender = login === undefined ? undefined : { login };
    const captured = yield* ask<CapturedJson>("/captured", answers.CAPTURED, sender);
    const nothing = entries.length + found.length + rejected.length + captured.length === 0;
    const untold = nothing ? yield* untoldTo(handle, deadline) : "";
    return summedUp(what, timeout, entries, found, rejected, captured, untold);
  } catch (error) {
    if (!(error instanceof RelayError)) throw error;
    const unmade = handle.awaitsCapture && isNotThere(error);
    const instead = unmade
      ? "nothing came, so it has no mailbox yet"
      : `what came cannot be listed: ${error.message}`;
    return new WaitTimeout(what, timeout, instead);
  }
}

/** List the newest; where they are not parsed, again, for half of the time that there is. */
function* parsed(handle: InboxHandle, limit: number, deadline: number): Flow<EntryJson[]> {
  const request = { ...handle.request("GET", "/messages", { limit }), maxBytes: MESSAGE_BYTES };
  const until = (performance.now() + deadline) / 2;
  for (let pause = FIRST_LOOK; ; pause = Math.min(2 * pause, LAST_LOOK)) {
    const entries = yield* asked<EntryJson[]>(request, answers.LIST, deadline);
    // What has just come has no subject yet.
    const areParsed = entries.every((entry) => entry.has_attachments !== null);
    if (areParsed || performance.now() + pause > until) return entries;
    yield pause;
  }
}

/** To whom the relay does not tell of mail that it may have captured, if that is who asks. */
function* untoldTo(handle: InboxHandle, deadline: number): Flow<string> {
  if (handle.token === null) return "without a token"; // and may not ask
  if (!handle.byKey) return "";
  return (yield* known(info(deadline), undefined))?.capture ? "to an API key" : "";
}

/** What a relay says; `otherwise`, of one that does not say it. */
function* known<T, U>(flow: Flow<T>, otherwise: U): Flow<T | U> {
  try {
    return yield* flow;
  } catch (error) {
    if (error instanceof RelayError) return otherwise;
    throw error;
  }
}

function isNotThere(error: unknown): error is Refused {
  return error instanceof Refused && error.problem === "mailbox-not-found";
}

/** A message in one line. */
function lineOf(
  entry: Pick<EntryJson | MessageJson, "subject" | "received_at" | "from_address">,
): string {
  const subject = entry.subject === null ? "(no subject)" : quoted(entry.subject);
  const sender = inALine(entry.from_address || "<>", MAX_NAME);
  return inALine(`${entry.received_at} from ${sender}: ${subject}`);
}

/**
 * Say all that.  `entries` are the newest, one more than it shows where there are as many;
 * `rejected` are recipients, and so are `captured`; `untold` is, where the relay would not tell of
 * these, to whom.
 */
function summedUp(
  what: string,
  timeout: number,
  entries: readonly EntryJson[],
  found: readonly string[],
  rejected: readonly Pick<RejectedJson, "address" | "reply">[],
  captured: readonly Pick<CapturedJson, "address" | "count" | "attributed">[],
  untold: string,
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
