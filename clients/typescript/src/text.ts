/**
 * Strangers' texts, as errors and reports show them: to be read, and to drive nothing.  The Python
 * client does the same (_text.py); clients/cases.json holds both to it.
 */

/**
 * A text of several lines, with all that could drive its reader spelt (`\u001b`): control characters,
 * those that turn the direction of a text, those that have no width, and the first characters of what
 * CI obeys.  GitHub Actions obeys lines that begin with `::error::` and its like, and `##[…]`
 * anywhere; Azure Pipelines `##vso[task…]` and TeamCity `##teamcity[…]` wherever they stand.
 */
export function visible(text: string): string {
  return text
    .replaceAll("\r\n", "\n")
    .replace(
      /[\0-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu,
      (one) => {
        const code = (one.codePointAt(0) ?? 0).toString(16);
        return code.length > 4 ? `\\u{${code}}` : `\\u${code.padStart(4, "0")}`;
      },
    )
    .replace(/^([^\S\n]*):(?=:)/gm, "$1\\u003a")
    .replace(/#(?=#(\[|vso\[|teamcity\[))/gi, "\\u0023");
}

/** The same on one line. */
export function inALine(text: string): string {
  return visible(
    text.replace(/[\n\r\t]/g, (one) => (one === "\n" ? "\\n" : one === "\r" ? "\\r" : "\\t")),
  );
}

/** The same on one line and in quotes. */
export function quoted(text: string): string {
  const line = inALine(text.replaceAll("\\", "\\\\"));
  return line.includes("'") && !line.includes('"')
    ? `"${line}"`
    : `'${line.replaceAll("'", "\\'")}'`;
}
