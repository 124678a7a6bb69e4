/**
 * The errors of this client.
 *
 * All of it is a `RelayError`; each text says what was asked for and what came instead.  An error's
 * `name` is its class's, for whoever has two copies of this package and so cannot ask `instanceof`.
 */

/** Anything that this client throws on its own. */
export class RelayError extends Error {
  override name = "RelayError";
}

/** The relay does not answer: it is not there, or went away and did not come back in time. */
export class Unreachable extends RelayError {
  override name = "Unreachable";
}

/** The relay answered, and said no. */
export class Refused extends RelayError {
  override name = "Refused";

  /**
   * @param status HTTP's.
   * @param problem Names the case and stays the same over time: `quota`, `mailbox-not-found`, …
   * @param detail What is wrong, in a sentence.
   * @param errors A sentence for each fault.
   * @param retryAfter Seconds after which it may be asked again, where that was said.
   * @param title The case in a few words; empty where no relay answered.
   */
  constructor(
    readonly status: number,
    readonly problem: string,
    readonly detail: string,
    readonly errors: readonly string[] = [],
    readonly retryAfter = 0,
    readonly title = "",
  ) {
    const more = errors.filter((error) => error !== detail);
    super(`${status} ${problem}: ${[detail, ...more].join(" ")}`);
  }
}

/** Nothing that was waited for came in time; the text lists what did come. */
export class WaitTimeout extends RelayError {
  override name = "WaitTimeout";

  /**
   * @param wanted What was waited for, in words.
   * @param timeout For how long, in milliseconds.
   * @param instead What there is in its place, as a clause: `nothing came`, `2 others came`.
   * @param others A line for each message that came and was not waited for, the newest first.
   */
  constructor(
    readonly wanted: string,
    readonly timeout: number,
    readonly instead: string,
    readonly others: readonly string[] = [],
  ) {
    const listed = others.map((one) => `\n  ${one}`).join("");
    super(
      `waited ${inSeconds(timeout)} s for ${wanted}; ${instead}${listed && `:${listed}`}`,
    );
  }
}

/** Mail came where none was to come. */
export class UnexpectedMail extends RelayError {
  override name = "UnexpectedMail";
}

/** A message that was sent has ended otherwise than it was waited for. */
export class NotDelivered extends RelayError {
  override name = "NotDelivered";

  /**
   * @param status What has become of it.
   * @param wanted The status that was waited for.
   * @param error What the other side said, if it said something.
   */
  constructor(
    readonly status: string,
    readonly wanted: string,
    readonly error: string | null,
  ) {
    super(`the message is ${status}, and will not be ${wanted}${error ? `: ${error}` : ""}`);
  }
}

/** No link of a message is like the one that is wanted. */
export class NoSuchLink extends RelayError {
  override name = "NoSuchLink";
}

/** A text as an error shows it: in quotes, on one line. */
export function quoted(text: string): string {
  const line = JSON.stringify(text).slice(1, -1).replaceAll('\\"', '"');
  return line.includes("'") && !line.includes('"')
    ? `"${line}"`
    : `'${line.replaceAll("'", "\\'")}'`;
}

/** A text with everything that could drive a terminal spelt `\\uNNNN`. */
export function visible(text: string): string {
  return text
    .replaceAll("\r\n", "\n")
    .replace(
      /[^\P{Cc}\t\n]|[\u202a-\u202e\u2066-\u2069]/gu,
      (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`,
    );
}

function inSeconds(milliseconds: number): string {
  return String(Number((milliseconds / 1000).toPrecision(6)));
}
