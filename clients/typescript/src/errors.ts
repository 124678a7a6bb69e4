/**
 * The errors of this client.
 *
 * All of it is a `RelayError`; each text says what was asked for and what came instead.  What
 * others have said is spelt in it where it could drive a terminal, or whoever runs CI (`visible`),
 * and cut where it is long; other properties have it as it was said, and cannot be enumerated:
 * Node.js and runners of tests print those that can.  An error's `name` is its class's, for whoever
 * has two copies of this package and so cannot ask `instanceof`.
 */

import { visible } from "./text.js";

/** What is done to the stack of each error, whose class has that name (`frames.ts`). @internal */
export const STACKS: { cut?: (error: Error, name: string) => void } = {};

/** Anything that this client throws on its own. */
export class RelayError extends Error {
  override name = "RelayError";

  constructor(message: string, options?: ErrorOptions) {
    super(visible(message, 20_000), options);
    STACKS.cut?.(this, new.target.name); // scripts/page.mjs drops this line
  }
}

/**
 * Keep what others have said, as they said it, or a secret out of what Node.js and runners of tests
 * print of an error beside its text, or of an object: each property that is enumerable.
 * @internal
 */
export function hide(one: object, ...names: string[]): void {
  for (const name of names) Object.defineProperty(one, name, { enumerable: false });
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

const RECIPIENTS = 5; // lines of them in a text

/** Nothing that was waited for came in time; the text lists what did come, and what went wrong. */
export class WaitTimeout extends RelayError {
  override name = "WaitTimeout";

  /**
   * @param wanted What was waited for, in words.
   * @param timeout For how long, in milliseconds.
   * @param instead What there is in its place, as a clause: `nothing came`, `2 others came`.
   * @param others A line for each message that came and was not waited for, the newest first.
   * @param rejectedRecipients A line for each recipient that SMTP rejected since the inbox was
   * made, and whose business that is; the newest first.
   * @param captured A line for each recipient at another domain for whom mail was captured since
   * then, of this inbox's sender or by its name, or else of who had not signed in; none but for
   * the administrator's token.
   * @param hint What to look at next, in sentences of this client's own; empty where nothing is
   * known.
   */
  constructor(
    readonly wanted: string,
    readonly timeout: number,
    readonly instead: string,
    readonly others: readonly string[] = [],
    readonly rejectedRecipients: readonly string[] = [],
    readonly captured: readonly string[] = [],
    readonly hint = "",
  ) {
    const listed = inLines(others);
    let said = instead + (listed && `:${listed}`);
    for (const astray of [
      meanwhile(rejectedRecipients, "1 recipient was refused", "# recipients were refused"),
      meanwhile(
        captured,
        "mail to 1 other recipient was captured",
        "mail to # other recipients was captured",
      ),
    ]) {
      if (astray) said += (said.includes("\n") ? "\n" : "; ") + astray;
    }
    super(`waited ${inSeconds(timeout)} s for ${wanted}; ${said}${hint && `\n${hint}`}`);
    hide(this, "wanted", "instead", "others", "rejectedRecipients", "captured", "hint");
  }
}

function inLines(lines: readonly string[]): string {
  return lines.map((one) => `\n  ${one}`).join("");
}

/** Say in words to whom mail went, or did not go. */
function meanwhile(recipients: readonly string[], one: string, many: string): string {
  const count = recipients.length;
  if (count === 0) return "";
  if (count === 1) return `${one} since the inbox was made: ${recipients[0]}`;
  const newest = count > RECIPIENTS ? `, the newest ${RECIPIENTS}` : "";
  const listed = inLines(recipients.slice(0, RECIPIENTS));
  return `${many.replace("#", String(count))} since the inbox was made${newest}:${listed}`;
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
    hide(this, "status", "error");
  }
}

/** No link of a message is like the one that is wanted. */
export class NoSuchLink extends RelayError {
  override name = "NoSuchLink";
}

function inSeconds(milliseconds: number): string {
  return String(Number((milliseconds / 1000).toPrecision(6)));
}
