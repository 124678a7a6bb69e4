// A message's bytes, its HTML in colours, and what headers tell: the way that it took, and what was
// found of it.
//
// Everything is text: a token of the source is a span around it, never markup.

import { ask } from "./calls.js";
import { h, lasting, say, when } from "./dom.js";
import { t } from "./strings.js";

const SHOWN = 200_000; // characters that are coloured; the rest is in Raw
const PART = 2000; // characters that are laid out together
const RAW = 1_000_000; // bytes that are shown; the rest is in the download
const PIECE = /<!--[\s\S]*?(?:-->|$)|<\/?[a-zA-Z][^\s<>\/]*|\/?>|"[^"<>]*"|'[^'<>]*'|&[#\w]{1,20};|[^<>"'&]+|[\s\S]/g;

// A text to be shown, in parts of which a browser lays out those that are seen: letters of two
// directions, 200 kB of them in one piece, take it a minute.
// `made`: what is put there for a part, text and elements.
export const blocks = (text, made = (part) => [part]) => (text.length > PART ? [...parts(text)].map((part) => h("div", made(part))) : made(text));

export const written = (id, ...text) => h("pre", { id, tabindex: "0", dir: "auto", ariaLabel: t("The message as text") }, ...text);

// Cut behind lines, as far as they are no longer.
function* parts(text) {
  for (let at = 0; at < text.length; ) {
    let part = text.slice(at, at + PART);
    const line = part.lastIndexOf("\n") + 1;
    if (at + PART < text.length) part = line ? part.slice(0, line) : part.replace(/[\ud800-\udbff]$/, "");
    yield part;
    at += part.length;
  }
}

export function coloured(source) {
  const made = h("pre", { id: "message-source", tabindex: "0", dir: "ltr", ariaLabel: t("The HTML as it was written") });
  let inside = false;
  let block = made.appendChild(h("div"));
  let size = 0;
  for (const [piece] of source.slice(0, SHOWN).matchAll(PIECE)) {
    let kind = null;
    if (piece.startsWith("<!--")) kind = "comment";
    else if (/^<\/?[a-zA-Z]/.test(piece)) [kind, inside] = ["tagname", true];
    else if (inside && piece.endsWith(">")) [kind, inside] = ["tagname", false];
    else if (inside && /^[\x22']/.test(piece) && piece.length > 1) kind = "value";
    else if (piece[0] === "&") kind = "entity";
    for (let part of parts(piece)) {
      const line = size > 2 * PART ? part.length : size > PART ? part.indexOf("\n") + 1 : 0;
      if (line) {
        block.append(marked(kind, part.slice(0, line)));
        block = made.appendChild(h("div"));
        part = part.slice(line);
        size = 0;
      }
      if (part) block.append(marked(kind, part));
      size += part.length;
    }
  }
  if (source.length > SHOWN) made.append(t("… the rest is in Raw"));
  return made;
}

const marked = (kind, text) => (kind ? h("span", { class: `is-${kind}`, text }) : text);

// Bytes of a message as a text: UTF-8 where they are that, else Latin-1; `cut`: they may end within
// a character, which is left out.
function textOf(raw, cut) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(raw, { stream: cut });
  } catch {
    return new TextDecoder("latin1").decode(raw);
  }
}

// A message with the names of its fields in colours.
export function fielded(text) {
  const [head] = text.slice(0, SHOWN).split(/\r?\n\r?\n/, 1);
  return [...head.split(/^([!-9;-~]+:)/m).map((piece, at) => marked(at % 2 ? "tagname" : "value", piece)), ...blocks(text.slice(head.length))];
}

// The message at `path`, as it came; the element fills when it has come, as `made` makes it.
export function rawOf(path, id, signal, made = blocks) {
  const place = written(id, t("Loading…"));
  ask(path, { signal })
    .then((response) => response.arrayBuffer())
    .then((raw) => place.replaceChildren(...made(textOf(raw.slice(0, RAW), raw.byteLength > RAW) + (raw.byteLength > RAW ? `\n${t("… the rest is in the download")}` : ""))))
    .catch((error) => say(place, error.message));
  return place;
}

// The steps that Received fields tell of, the first one first, and the last one, into this relay:
// {from, by, at, took} (seconds).
function hops(headers, received) {
  const fields = valuesOf(headers, "received").slice(0, 50).reverse();
  let before = null;
  const since = (at) => {
    const took = before ? (at - before) / 1000 : null;
    before = at;
    return took;
  };
  const way = fields.map((field) => {
    const text = field.slice(0, 2000);
    const at = new Date(text.slice(text.lastIndexOf(";") + 1).replace(/\(.*\)/, "").trim());
    const good = !Number.isNaN(at.getTime());
    const took = good ? since(at) : null;
    const word = (name) => new RegExp(`(?:^|\\s)${name}\\s+([^\\s;]{1,255})`, "i").exec(text)?.[1] ?? "";
    return { from: word("from"), by: word("by"), with: word("with"), at: good ? at : null, took };
  });
  const here = new Date(received);
  // Fields have whole seconds: less than one before the last is none.
  return [...way, { by: t("this relay"), at: here, took: before && here < before && before - here < 1000 ? 0 : since(here) }];
}

export const valuesOf = (headers, name) =>
  Object.entries(headers).filter(([key]) => key.toLowerCase() === name).flatMap(([, values]) => values);

// What Authentication-Results say, "spf=pass" and so on, by whom.  The sender may have written them:
// they are shown as somebody's words, below what the relay itself finds.
const claims = (headers) =>
  valuesOf(headers, "authentication-results").slice(0, 5).map((value) => [
    /[^\s;]{0,99}/.exec(value.trim())[0],
    value.slice(0, 4000).match(/\b(spf|dkim|dmarc|arc)\s*=\s*[a-z]{1,20}/gi),
  ]).filter(([, said]) => said);

// `received`: when the relay took it; `own`: what it finds itself, and what leads to the rest of that.
export function headersOf(headers, received, own) {
  const rows = Object.entries(headers).flatMap(([name, values]) => [values].flat().map((value) => [name, value]));
  const way = hops(headers, received);
  const claimed = claims(headers);
  return [
    h("section", { id: "message-path" }, h("h3", t("The way it took")),
      h("ol", way.map(({ from, by, with: how, at, took }) => h("li",
        h("b", by || "?"), from ? ` ← ${from}` : "", how ? h("span.small", ` ${how}`) : "",
        at ? h("time.small", { dateTime: at.toISOString(), text: ` ${when(at)}` }) : "",
        took === null ? "" : h("span", { class: `delay${took > 60 ? " late" : ""}`, text: took < 0 ? t("clocks differ") : `+${lasting(took) === "0 ms" ? "0 s" : lasting(took)}` }))))),
    own,
    claimed.length ? h("ul.plain", { id: "message-claims" }, claimed.map(([who, said]) => h("li", { dir: "auto" }, t("said by {0}:", who), said.flatMap((one) => [" ", h("span.verdict", one)])))) : "",
    h("dl", { id: "message-headers" }, rows.map(([name, value]) => [h("dt", name), h("dd", { text: value, dir: "auto" })]).flat()),
  ].filter(Boolean);
}
