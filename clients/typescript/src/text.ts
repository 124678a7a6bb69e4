/**
 * Strangers' texts, as errors and reports show them: to be read, and to drive nothing.  The Python
 * client does the same (_text.py); clients/cases.json holds both to it.
 *
 * No more of it is shown than a reader wants, or a stranger could fill a log: a subject of
 * invisible characters grows to nine times its size.
 */

/** How many characters are shown of a name, a subject and their like. */
export const MAX_NAME = 200;

/** The same of a link. */
export const MAX_LINK = 1_000;

/** What is spelt, wherever it stands. */
export const DRIVES =
  /[\0-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;

/**
 * A text of several lines, with all that could drive its reader spelt (`\u001b`): control
 * characters, those that turn the direction of a text, those that have no width, and the first
 * characters of what CI obeys.  GitHub Actions obeys lines that begin with `::error::` and its
 * like, and `##[…]` anywhere; Azure Pipelines `##vso[task…]` and TeamCity `##teamcity[…]` wherever
 * they stand.  No more than `maxLength` characters, if that is said; what is left out is an
 * ellipsis.
 */
export function visible(text: string, maxLength = Infinity): string {
  const shown = text
    .slice(0, 9 * maxLength) // which become no fewer than may be shown
    .replaceAll("\r\n", "\n")
    .replace(DRIVES, (one) => {
      const code = one.codePointAt(0)!.toString(16);
      return code[4] ? `\\u{${code}}` : `\\u${code.padStart(4, "0")}`;
    })
    .replace(/^([^\S\n]*):(?=:)/gm, "$1\\u003a")
    .replace(/#(?=#(\[|vso\[|teamcity\[))/gi, "\\u0023");
  const all = [...shown];
  return all[maxLength]
    ? all.slice(0, maxLength - 1).join("").replace(/\\(u[{0-9a-f]*)?$/, "") + "…"
    : shown;
}

/** The same on one line. */
export function inALine(text: string, maxLength = Infinity): string {
  const some = text.slice(0, 9 * maxLength);
  return visible(some.replace(/[\n\r\t]/g, (one) => JSON.stringify(one).slice(1, -1)), maxLength);
}

/** The same on one line and in quotes, as much of it as of a name. */
export function quoted(text: string): string {
  const line = inALine(text.replaceAll("\\", "\\\\"), MAX_NAME);
  return line.includes("'") && !line.includes('"')
    ? `"${line}"`
    : `'${line.replaceAll("'", "\\'")}'`;
}

/** Whether it is a regular expression, also one of another realm, as runners of tests make them. */
export function isPattern(match: unknown): match is RegExp {
  return Object.prototype.toString.call(match) === "[object RegExp]";
}

/** What is looked for: a text in quotes, or a pattern between slashes. */
export function shownMatch(match: string | RegExp): string {
  return isPattern(match) ? `/${inALine(match.source, MAX_NAME)}/` : quoted(String(match));
}
