/**
 * Which links are like a host, begin so, or have a part of a path.
 *
 * A stranger's link can be made to be read differently: `https://evil.example\@shop.example/` is at
 * evil.example to browsers, to RFC 3986 at shop.example.  Such a link is like nothing here; nor is
 * one that cannot be read.  The Python client does the same (_links.py).
 */

const LINK = /^[a-z][a-z0-9+.-]*:\/\/([^/?#]*)/i;
const PLACE = /^(\[[0-9a-f:.]+\]|[^:[\]]+)(:\d{0,5})?$/i;
// What no host has, and `%`: not all take what is behind it for a character.
const FORBIDDEN = /[\0-\x20\x7f-\xa0"#%/<>?@\\^`{|}\u2000-\u200f\u2028-\u202f\u2060-\u206f]/;
const LONG = /.{254}/u; // for DNS; `URL` takes the square of a length

/**
 * Whether a link has a host, or one below it, begins so, or has a part of path and query.  A
 * beginning has the whole of its host: `https://shop.example` is not that of
 * `https://shop.example.evil.example/`.
 */
export function isLike(link: string, match: string): boolean {
  const [start = "", authority = ""] = LINK.exec(link) ?? [];
  if (start === "" || authority.includes("\\")) return false;
  const place = PLACE.exec(authority.slice(authority.lastIndexOf("@") + 1));
  const host = place?.[1] && hostOf(place[1], place[2]);
  if (!host) return false;
  if (LINK.test(match)) return match.length >= start.length && link.startsWith(match);
  if (match.includes(".") && !match.includes("/")) {
    const wanted = hostOf(match) ?? match.toLowerCase();
    return host === wanted || host.endsWith(`.${wanted}`);
  }
  return link.slice(start.length).includes(match);
}

/** A host as DNS is asked for it; undefined if none can be called so. */
function hostOf(text: string, port = ""): string | undefined {
  if (LONG.test(text) || FORBIDDEN.test(text)) return undefined;
  if (text.includes(":") && !text.startsWith("[")) return undefined;
  try {
    const host = new URL(`https://${text}${port}/`).hostname;
    return LONG.test(host) || /[^.]{64}/.test(host) ? undefined : host;
  } catch {
    return undefined;
  }
}
