/** What the fixtures of each test runner are made of. */

import type { Away } from "./away.js";
import { Refused, RelayError, Unreachable } from "./errors.js";
import type { Inbox } from "./inbox.js";
import { FIXTURE_TTL, type InboxOptions } from "./mailboxes.js";
import type { Message } from "./message.js";
import { whereFrom } from "./options.js";
import { readable } from "./readable.js";
import type { Relay } from "./relay.js";
import { MAX_NAME, inALine, visible } from "./text.js";
import { TIMEOUT } from "./wanted.js";

const SHOWN = 20; // messages of an inbox, in a report
const LISTED = 10; // links of a message there, and attachments
const INBOXES = 10; // that a test has made, in its report
const REPORTS_WITHIN = 5_000; // milliseconds, or it says that more could not be read
const EARLY = 10; // milliseconds by which a clock may end that before its time
const BYTES = 4 << 20; // of a list, after which no more is asked for
const MAX_LENGTH = 4_000; // characters of a message's text there, and of its code and links

/** What inbox a test wants; with `keep` it is left, to be looked at on the relay's page. */
export type FixtureInboxOptions = InboxOptions & { keep?: boolean };

/**
 * Make a test's inbox; what is not to be kept is gone in an hour, though the run is killed.
 * @internal
 */
export async function inboxOf(
  relay: Relay,
  { keep, ...wanted }: FixtureInboxOptions,
  test: string,
  away: Away = new Map(),
): Promise<Inbox> {
  const options = keep ? wanted : { ...wanted, ttl: wanted.ttl ?? FIXTURE_TTL };
  const inbox = await asked(relay, away, () => relay.inbox(options));
  relay.setByFixture.openInboxes?.delete(inbox); // which its fixture reports of
  inbox.handle.login = loginOf(test);
  return inbox;
}

const WHERE = whereFrom("RELAY_URL (and RELAY_TOKEN)");
const PROBE_TIMEOUT = 500; // milliseconds in which a relay answers that did not before

/**
 * Ask for what a test cannot do without.  What fails it for want of a relay, or of what opens that,
 * names the variables and has no frames, which would all be of this package; and the next test that
 * wants the same relay fails at once, unless that is there by then.
 */
async function asked<T>(relay: Relay, away: Away, call: () => Promise<T>): Promise<T> {
  const before = away.get(relay.url);
  if (before !== undefined) {
    if (!(await isReachable(relay.url))) throw frameless(new Unreachable(before));
    away.delete(relay.url);
  }
  try {
    return await call();
  } catch (error) {
    if (error instanceof Unreachable) {
      const why = `${error.message}\n${WHERE}`;
      away.set(relay.url, why);
      throw frameless(new Unreachable(why));
    }
    if (error instanceof Refused && (error.status === 401 || error.problem === "unknown")) {
      error.message += `\n${WHERE}`;
      throw frameless(error);
    }
    throw error;
  }
}

async function isReachable(url: string): Promise<boolean> {
  const signal = AbortSignal.timeout(PROBE_TIMEOUT);
  return fetch(url, { method: "HEAD", redirect: "manual", signal }).then(
    () => true,
    () => false,
  );
}

function frameless<E extends Error>(error: E): E {
  error.stack = `${error.name}: ${error.message}`;
  return error;
}

const MARGIN = 1_000; // for what else a test does
const STEP = 10; // milliseconds, since an error says how long was waited

/**
 * How many milliseconds a test may ask for of those it has left: it is still to say what for.
 * @internal
 */
export function spared(left: number): number {
  return STEP * Math.floor(Math.max(left - MARGIN, left / 2, 0) / STEP);
}

/**
 * Have an inbox wait no longer than that, though it is told a longer time: a runner that ends the
 * test before says no more than that it took long.
 * @internal
 */
export function limitWaits(inbox: Inbox, left: () => number | undefined): void {
  inbox.handle.timeLimit = left;
  // `timeout` says what is left; it stays a property of the inbox itself, which runners print.
  const get = () => Math.min(TIMEOUT, left() ?? TIMEOUT);
  const set = (value: number) => Object.defineProperty(inbox, "timeout", { value, writable: true });
  Object.defineProperty(inbox, "timeout", { get, set, configurable: true, enumerable: true });
}

/** Where an application hands over its mail, in clear. */
export interface SmtpServer {
  host: string;
  port: number;
  /** Of this test; it becomes a tag of what is captured.  Empty where nobody can sign in. */
  user: string;
  password: string;
  /** Whether STARTTLS is offered; the certificate may be one that only its own machine trusts. */
  tls: boolean;
  /** All of it in one, as Nodemailer takes it. */
  url: string;
}

/**
 * Where the application under this test is to send; asks the relay, which needs a token.
 * @internal
 */
export async function smtpServerOf(
  relay: Relay,
  test: string,
  away: Away = new Map(),
): Promise<SmtpServer> {
  const { smtp, starttls, capture } = await asked(relay, away, () => relay.info()).catch(
    (error: unknown) => {
      if (!(error instanceof Refused && error.status === 401)) throw error;
      const needed =
        "smtpServer asks the relay where it takes mail: set RELAY_TOKEN to a key of it " +
        "(relay key create --owner tests --scope read,send)";
      throw frameless(new RelayError(needed, { cause: error }));
    },
  );
  const found = /^\[?(.*?)\]?:(\d+)$/.exec(smtp ?? "");
  if (!found) throw new RelayError("this relay takes no mail by SMTP");
  const [, told = "", port = ""] = found;
  const reached = new URL(relay.url).hostname.replace(/^\[|\]$/g, "");
  // A relay that listens at all addresses names one by which its own machine reaches it.
  const host = isLoopback(told) && !isLoopback(reached) ? reached : told;
  // It takes any password while it captures, but from another machine none in clear where there
  // could be TLS.
  const signsIn = capture && (isLoopback(host) || !starttls);
  const user = signsIn ? loginOf(test) : "";
  const password = signsIn ? "secret" : "";
  const place = host.includes(":") ? `[${host}]` : host;
  const login = signsIn ? `${user}:${password}@` : "";
  const inClear = starttls ? "?ignoreTLS=true" : "";
  return {
    host,
    port: Number(port),
    user,
    password,
    tls: starttls,
    url: `smtp://${login}${place}:${port}${inClear}`,
  };
}

/** Whether a host is this machine's own, whatever machine this is. */
function isLoopback(host: string): boolean {
  return /^(127(\.\d+){3}|::1|localhost\.?)$/i.test(host);
}

function loginOf(test: string): string {
  const name = test.replace(/[^A-Za-z0-9_.-]+/g, "-").replace(/^-+|-+$/g, "");
  return name.slice(0, 64) || "test";
}

/**
 * What came to an inbox, the oldest first, and all of it as a text for a report, which says if that
 * was not all.
 * @internal
 */
export async function arrivedAt(inbox: Inbox): Promise<{ text: string; messages: Message[] }> {
  const messages: Message[] = [];
  const until = performance.now() + REPORTS_WITHIN - EARLY;
  let missing: string | undefined;
  try {
    await inbox.messages(SHOWN, { timeout: REPORTS_WITHIN, maxBytes: BYTES, found: messages });
  } catch (error) {
    // Whatever it is: this is said beside a test's own failure, and its inbox is to be closed yet.
    const why = error instanceof RelayError ? error.message : visible(String(error));
    const isLate = error instanceof Unreachable && performance.now() >= until;
    missing = isLate ? `could not be read within ${REPORTS_WITHIN / 1000} s` : `cannot be read: ${why}`;
  }
  const shown = messages.reverse().map(described);
  if (missing) shown.push(`${shown.length ? "and more" : "what came"} ${missing}`);
  return { text: shown.join("\n\n----\n\n") || "nothing came", messages };
}

/** The same of several inboxes, the newest of them. @internal */
export function arrivedAtEach(inboxes: Iterable<Inbox>) {
  const each = async (inbox: Inbox) => ({ inbox, ...(await arrivedAt(inbox)) });
  return Promise.all([...inboxes].slice(-INBOXES).map(each));
}

/**
 * A page for a report that shows a stranger's HTML, which can do nothing: a report opens it at its
 * own origin, where a script of the mail's could read all that is there.
 * @internal
 */
export function framed(html: string): string {
  const shown = html.replaceAll("&", "&amp;").replaceAll('"', "&quot;");
  return `<!doctype html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; form-action 'none'">
<meta name="referrer" content="no-referrer">
<iframe sandbox style="position:fixed;inset:0;width:100%;height:100%;border:0;background:#fff"
 srcdoc="${shown}"></iframe>`;
}

function described(message: Message): string {
  const at = message.receivedAt.toISOString().slice(11, 19) + "Z";
  const { sender, subject, code } = message;
  const head = [
    `${at} from ${inALine(sender ?? "<>", MAX_NAME)}: ${inALine(subject ?? "(no subject)", MAX_NAME)}`,
    ...(code === null ? [] : [`code: ${code}`]),
    ...message.links.slice(0, LISTED).map((link) => `link: ${link}`),
  ].join("\n");
  const files = message.attachments
    .slice(0, LISTED)
    .map(({ filename, contentType, size }) => {
      const name = inALine(filename ?? "(no name)", MAX_NAME);
      return `\nattachment: ${name} (${inALine(contentType, MAX_NAME)}, ${size} B)`;
    })
    .join("");
  const { text, html } = message;
  const kind = text === null && html !== null ? "\nHTML only: .text is null" : "";
  const body = text?.trim() || readable(html ?? "");
  return `${visible(head, MAX_LENGTH)}${files}${kind}\n\n${visible(body, MAX_LENGTH)}`;
}
