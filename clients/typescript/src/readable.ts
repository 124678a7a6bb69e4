/**
 * HTML of mail as a text: roughly what a reader of it sees.  The Python client does the
 * same (_mail_report.py); clients/cases.json holds both to it.
 */

const LOOKED_AT = 200_000; // characters, for a report

const NOT_READ = /<!--.*?(?:-->|$)|<(style|script|title)\b.*?(?:<\/\1[^<>]{0,99}>?|$)/gis;
const LINE_END = / ?<\/?(?:br|p|div|tr|li|[uo]l|table|h[1-6r]|blockquote|section)\b[^<>]*> ?/gi;
// Invisible characters, too, by which previews end.
const FILLING = /[\t\n\f\r \xa0\xad\u034f\u2000-\u200c\ufeff]{2,}|\xa0/g;

/** Those that mail is full of: the upper half of Latin-1, in its order, and some more. */
const NAMES = new Map(
  (
    "nbsp iexcl cent pound curren yen brvbar sect uml copy ordf laquo not shy reg macr deg plusmn " +
    "sup2 sup3 acute micro para middot cedil sup1 ordm raquo frac14 frac12 frac34 iquest " +
    "Agrave Aacute Acirc Atilde Auml Aring AElig Ccedil Egrave Eacute Ecirc Euml Igrave Iacute " +
    "Icirc Iuml ETH Ntilde Ograve Oacute Ocirc Otilde Ouml times Oslash Ugrave Uacute Ucirc Uuml " +
    "Yacute THORN szlig agrave aacute acirc atilde auml aring aelig ccedil egrave eacute ecirc " +
    "euml igrave iacute icirc iuml eth ntilde ograve oacute ocirc otilde ouml divide oslash " +
    "ugrave uacute ucirc uuml yacute thorn yuml"
  )
    .split(" ")
    .map((name, at) => [name, String.fromCharCode(0xa0 + at)]),
);
const MORE =
  "amp& lt< gt> quot\" apos' euro€ ndash– mdash— lsquo‘ rsquo’ sbquo‚ ldquo“ rdquo” bdquo„ " +
  "bull• hellip… trade™ zwnj\u200c zwj\u200d larr← rarr→";
for (const one of MORE.split(" ")) NAMES.set(one.slice(0, -1), one.slice(-1));

/**
 * What a reader of HTML sees; the HTML, where that is nothing.  In time that is linear in its length.
 * @internal
 */
export function readable(markup: string, lookedAt = LOOKED_AT): string {
  const text = markup
    .slice(0, lookedAt)
    .replace(NOT_READ, "")
    .replace(/[\t\n\f\r ]+/g, " ")
    .replace(LINE_END, "\n")
    .replace(/<t[dh]\b[^<>]*>/gi, " ")
    .replace(/<[/!a-z][^<>]*>/gi, "")
    .replace(/&(?:#x([0-9a-f]+)|#([0-9]+)|([a-z][a-z0-9]*));/gi, (all, hex, decimal, name) =>
      name ? (NAMES.get(name) ?? all) : character(hex ? Number.parseInt(hex, 16) : Number(decimal)),
    )
    .replace(FILLING, (found) => (found.includes("\n") ? "\n" : " "));
  const lines = text.split("\n").map((line) => line.replace(/^ | $/g, ""));
  return lines.filter(Boolean).join("\n") || markup.trim();
}

function character(code: number): string {
  const isOne = code > 0 && code <= 0x10ffff && !(code >= 0xd800 && code < 0xe000);
  return isOne ? String.fromCodePoint(code) : "\ufffd";
}
