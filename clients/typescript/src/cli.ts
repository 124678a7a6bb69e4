#!/usr/bin/env node
/**
 * `relay-client`: inboxes and mail for shells.
 *
 * Promises: standard output has the one thing that was asked for, or JSON; everything else goes to
 * standard error, and cannot drive who reads it (a terminal, CI), nor can standard output if it is
 * a terminal: control characters and commands are spelt.  Elsewhere `text` and `raw` are what the
 * mail says, as it is; all else is inert there, too.  No error has a token in it.  JSON has the
 * names of the relay's own calls.  The exit code is 0 if it is there, 1 if what was waited for did
 * not come (or came, where nothing was to), 2 for a call that cannot be meant, 3 where the relay
 * refused or what answers is none, 4 where nothing answers.
 */

import { readFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { isAddress, isToken } from "./answers.js";
import {
  type Inbox,
  type Message,
  NoSuchLink,
  NotDelivered,
  Refused,
  Relay,
  RelayError,
  UnexpectedMail,
  Unreachable,
  VERSION,
  WaitTimeout,
} from "./index.js";
import { type MessageJson, described } from "./records.js";
import { DEFAULT_URL, whereFrom } from "./options.js";
import { readable } from "./readable.js";
import { DRIVES, inALine, visible } from "./text.js";

const USAGE = `relay-client: real inboxes for tests, from a shell

  inbox=$(relay-client inbox)                     # give its address to the application
  relay-client code "$inbox" --subject Welcome    # 271828, as soon as the mail is there
  relay-client close "$inbox"

The relay is at RELAY_URL, or --url; ${DEFAULT_URL} unless given. RELAY_TOKEN, or --token,
is a key of it ('relay key create --owner tests --scope read,send' makes one). Without a key
nothing is sent, and an inbox is anonymous: what 'inbox --json' prints opens it, and its address
does not.

  inbox=$(relay-client inbox --json)
  echo "$inbox" | relay-client code - --subject Welcome

  inbox [--ttl MINUTES] [--local-part NAME] [--domain DOMAIN] [--json]
                        make an inbox; prints its address. It lives for as long as the plan allows
                        unless --ttl says less
  wait INBOX            wait for a message, the oldest that matches; prints it as JSON
  code INBOX            … prints the one-time code in it
  link INBOX [PART]     … prints the link in it with that host or part of the path; else the first
  text INBOX            … prints its text; of HTML alone, as it reads
  raw INBOX             … prints it byte for byte
  none INBOX            see that nothing comes, for --timeout (1 s)
  messages INBOX [QUERY]
                        the messages there, newest first, as JSON; all, or what matches:
                        'from:shop has:attachment -invoice'; --timeout is 60s unless given
  send --from ADDRESS --to ADDRESS… [--subject S] [--text T] [--html H]
                        send a message, and wait until it is sent; prints its id
  close INBOX           end an inbox, and all that is in it

INBOX is an address; or - where what 'inbox --json' printed is given as the standard input, @FILE
where it is in a file. It, and a --token, may be a word of the command, too: then all who use this
machine can read it while the command runs. What waits takes these, and what is there
already counts:

  --subject PART        of the subject, in any case
  --sender PART         of the sender's address, in any case
  --after ID            only what came after this message ('id' of what wait prints)
  --timeout TIME        for how long, 10s unless given; with ms, s, m or h

  --help, --version

Exit codes: 0 it is there, 1 it did not come (or came, where nothing was to), 2 a wrong call, 3 the
relay refused (or what answers is no relay), 4 nothing answers.
`;

const WHERE = whereFrom("RELAY_URL or --url, and RELAY_TOKEN or --token,");

const TEXT = { type: "string" } as const;
const OPTIONS = {
  after: TEXT,
  domain: TEXT,
  from: TEXT,
  help: { type: "boolean", short: "h" },
  html: TEXT,
  json: { type: "boolean" },
  "local-part": TEXT,
  sender: TEXT,
  subject: TEXT,
  text: TEXT,
  timeout: TEXT,
  to: { type: "string", multiple: true },
  token: TEXT,
  ttl: TEXT,
  url: TEXT,
  version: { type: "boolean" },
} as const;

/** How many words each command takes at most. */
const MAX_WORDS = new Map([
  ["inbox", 0],
  ["wait", 1],
  ["code", 1],
  ["link", 2],
  ["text", 1],
  ["raw", 1],
  ["none", 1],
  ["messages", 2],
  ["send", 0],
  ["close", 1],
]);

type Values = ReturnType<typeof parsed>["values"];

class Usage extends Error {}

function parsed(words: string[]) {
  try {
    return parseArgs({ args: words, options: OPTIONS, allowPositionals: true });
  } catch (error) {
    throw new Usage(error instanceof Error ? error.message : String(error));
  }
}

async function run(words: string[]): Promise<number> {
  const { values, positionals } = parsed(words);
  if (values.version) return print(VERSION);
  const [command, ...rest] = positionals;
  if (values.help || command === "help") return print(USAGE.trimEnd());
  if (command === undefined) throw new Usage("say what is wanted");
  const relay = connected(values);
  const maximum = MAX_WORDS.get(command);
  if (maximum === undefined) throw new Usage(unknown(command));
  if (rest.length > maximum) throw new Usage(`'${command}' does not take so many words`);

  switch (command) {
    case "inbox": {
      const ttl = values.ttl === undefined ? undefined : number(values.ttl, "--ttl");
      const made = await relay.inbox({
        ttl,
        localPart: values["local-part"],
        domain: values.domain,
      });
      if (values.json) {
        const { address, sessionToken, expiresAt } = made;
        return print(inert({ address, session_token: sessionToken, expires_at: expiresAt }));
      }
      if (made.sessionToken !== null) {
        console.error(
          "relay-client: an anonymous inbox; it can be read only with what --json prints",
        );
      }
      return print(inALine(made.address));
    }
    case "wait":
      return print(inert(named(await waited(relay, rest, values))));
    case "code": {
      const { code, subject } = await waited(relay, rest, values);
      return code === null ? missing(`no code in ${described(subject)}`) : print(inALine(code));
    }
    case "link":
      return print(inertLink((await waited(relay, rest, values)).link(rest[1])));
    case "text": {
      const { text, html } = await waited(relay, rest, values);
      const said = text?.trim() ? text : readable(html ?? "", Infinity);
      return print(said.trimEnd());
    }
    case "raw":
      return written(await (await waited(relay, rest, values)).raw);
    case "none":
      await opened(relay, rest).waitNone(milliseconds(values.timeout ?? "1s"), wanted(values));
      return 0;
    case "messages": {
      const inbox = opened(relay, rest);
      const time = { timeout: milliseconds(values.timeout ?? "60s") };
      const [, q] = rest;
      const found = await (q === undefined
        ? inbox.messages(undefined, time)
        : inbox.search(q, undefined, time));
      return print(inert(found.map(named)));
    }
    case "send": {
      const { from, to, subject, text, html } = values;
      if (from === undefined || to === undefined) throw new Usage("'send' needs --from and --to");
      const sent = await relay.send({ from, to, subject, text, html });
      const timeout = milliseconds(values.timeout ?? "10s");
      for (const one of sent) await one.wait("sent", { timeout });
      return print(sent.map((one) => one.id).join("\n"));
    }
    case "close":
      await opened(relay, rest).close({ strict: true });
      return 0;
    default:
      throw new Usage(unknown(command));
  }
}

/** What is said of a first word that is no command; what could be a token is not quoted. */
function unknown(command: string): string {
  return /^[a-z-]+$/i.test(command) ? `there is no '${command}'` : "say a command first";
}

function connected({ url, token }: Values): Relay {
  try {
    return new Relay({ url, token });
  } catch (error) {
    if (error instanceof RelayError) throw new Usage(error.message);
    throw error;
  }
}

function waited(relay: Relay, rest: string[], values: Values): Promise<Message> {
  const timeout = milliseconds(values.timeout ?? "10s");
  return opened(relay, rest).wait({ ...wanted(values), timeout });
}

function wanted({ subject, sender, after }: Values) {
  return { subject, sender, after };
}

function opened(relay: Relay, [word]: string[]): Inbox {
  if (word === undefined) throw new Usage("say which inbox");
  const inbox = /^(-$|@)/.test(word) ? contentOf(word) : word;
  if (isAddress(inbox) && !/\{|"session_token"/.test(inbox)) return relay.mailbox(inbox);
  try {
    const { address, session_token: token = null } = JSON.parse(inbox) as Record<string, unknown>;
    if (isAddress(address) && (token === null || isToken(token))) {
      return relay.mailbox(address, token);
    }
  } catch {
    // Said below.
  }
  throw new Usage("an inbox is an address, or what 'inbox --json' prints"); // and it has a token
}

/** What is in a file, or comes from the standard input. */
function contentOf(word: string): string {
  try {
    return readFileSync(word === "-" ? 0 : word.slice(1), "utf8").trim();
  } catch (error) {
    throw new Usage(`there is no inbox in ${word}: ${String(error)}`);
  }
}

/** A message as the relay's calls and `relay messages wait --json` write it. */
function named(message: Message): { [name in keyof MessageJson]?: unknown } {
  return {
    id: message.id,
    from_address: message.sender,
    to: message.to,
    subject: message.subject,
    received_at: message.receivedAt,
    size: message.size,
    otp: message.code,
    links: message.links,
    body_text: message.text,
    body_html: message.html,
    headers: message.headers,
    attachments: message.attachments.map(({ index, filename, contentType, size, contentId }) => {
      return { index, filename, content_type: contentType, size, content_id: contentId };
    }),
  };
}

function milliseconds(text: string): number {
  const [, amount = "", unit = "s"] = /^([0-9.]+)(ms|s|m|h)?$/.exec(text) ?? [];
  return (
    number(amount || text, "--timeout", " (10, 10s, 500ms)") * { ms: 1, s: 1_000, m: 60_000, h: 3_600_000 }[unit as "s"]
  );
}

function number(text: string, option: string, such = ""): number {
  const found = Number(text);
  if (text === "" || !Number.isFinite(found)) throw new Usage(`${option} '${text}' is no number${such}`);
  return found;
}

const COMMAND = /#(?=#(\[|vso\[|teamcity\[))/gi;

/** As JSON that says the same, and in which no stranger's text drives a terminal or CI. */
function inert(value: unknown): string {
  return JSON.stringify(value)
    .replace(COMMAND, "\\u0023")
    .replace(DRIVES, (found) =>
      [...Array(found.length).keys()]
        .map((at) => `\\u${found.charCodeAt(at).toString(16).padStart(4, "0")}`)
        .join(""),
    );
}

/** A link that leads to the same place, on one line, which drives neither. */
function inertLink(link: string): string {
  return link
    .replace(/[\s\0-\x1f\ud800-\udfff]/gu, (one) =>
      encodeURIComponent(one.replace(/\p{Cs}/u, "\ufffd")),
    )
    .replace(DRIVES, encodeURIComponent)
    .replace(/#(#(?:\[|vso\[|teamcity\[))/gi, (_, rest: string) => `#%23${rest.slice(1)}`);
}

function print(text: string): number {
  process.stdout.write(`${process.stdout.isTTY ? visible(text) : text}\n`);
  return 0;
}

function written(raw: Uint8Array): number {
  process.stdout.write(process.stdout.isTTY ? visible(new TextDecoder().decode(raw)) : raw);
  return 0;
}

function missing(why: string): number {
  console.error(`relay-client: ${visible(why)}`);
  return 1;
}

try {
  process.exitCode = await run(process.argv.slice(2));
} catch (error) {
  if (!(error instanceof RelayError || error instanceof Usage)) throw error;
  console.error(`relay-client: ${visible(error.message)}`);
  if (error instanceof Usage) console.error("relay-client --help says what there is");
  const refused = error instanceof Refused && (error.status === 401 || error.problem === "unknown");
  if (refused || error instanceof Unreachable) console.error(WHERE);
  const outcomes = [WaitTimeout, UnexpectedMail, NoSuchLink, NotDelivered];
  process.exitCode = outcomes.some((kind) => error instanceof kind)
    ? 1
    : error instanceof Refused
      ? 3
      : error instanceof Unreachable
        ? 4
        : 2; // what no relay was asked, for it cannot be meant
}
