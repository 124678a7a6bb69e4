/** Lists of messages, page by page, within a time and so many bytes. */

import * as answers from "./answers.js";
import { LIST_BYTES, MESSAGE_BYTES } from "./call.js";
import { RelayError, Unreachable } from "./errors.js";
import {
  type PlacedAnswer as Answer,
  type Exchange,
  type RepeatableRequest,
  decoded,
  noRelay,
} from "./exchange.js";
import { type InboxHandle, PAGE } from "./mailboxes.js";
import { type Ask, type ListOptions, Message } from "./message.js";
import type { WholeEntryJson } from "./records.js";
import { quoted } from "./text.js";
import { waitable } from "./wanted.js";

const MAX_EMPTY_PAGES = 1_000; // of a list; a relay looks for a second for each
const MAX_LINK_HEADER = 8 << 10; // bytes of the header that names a next page
const LIST_TIMEOUT = 60_000; // with all of its pages

/**
 * A page of them by a call; one may be empty and have a next one: of a search that looked for long
 * enough.
 * @internal
 */
export async function listed(
  exchange: Exchange,
  handle: InboxHandle,
  read: Ask,
  q: string | undefined,
  limit: number,
  { timeout = LIST_TIMEOUT, maxBytes: most = LIST_BYTES, found = [] }: ListOptions,
): Promise<Message[]> {
  const deadline = performance.now() + waitable(timeout);
  let size = 0;
  const mayGoOn = () => {
    const list = `the list of ${handle.address} has`;
    if (size > most) {
      throw new RelayError(`${list} more than ${most >> 20} MiB: ask for fewer messages at once`);
    }
    if (performance.now() < deadline) return;
    throw new Unreachable(`${list} not ended after ${timeout / 1000} s`);
  };
  const call = async (request: RepeatableRequest): Promise<Answer> => {
    const one = { ...request, maxBytes: MESSAGE_BYTES };
    const answer = await exchange.call(one, deadline, { shared: true });
    size += answer.bytes.length;
    return answer;
  };
  const query = { limit: Math.min(limit, PAGE), whole: "true", ...(q !== undefined && { q }) };
  let path: string | undefined;
  const seen = new Set<string>();
  let empty = 0;
  while (found.length < limit) {
    const answer: Answer =
      path === undefined
        ? await call(handle.request("GET", "/messages", query))
        : await call({ ...handle.request("GET", ""), path: ofAtMost(path, limit - found.length) });
    const page = decoded(answer, answers.MESSAGES) as WholeEntryJson[];
    path = following(answer);
    for (const entry of page.slice(0, limit - found.length)) {
      found.push(new Message(read, entry));
    }
    if (path === undefined || found.length >= limit) break;
    if (seen.has(path)) throw noRelay(answer, "its next page is one that came before");
    if (page.length === 0) empty += 1;
    if (empty === MAX_EMPTY_PAGES) {
      throw noRelay(answer, `${empty} pages of its list are empty, and it goes on`);
    }
    seen.add(path);
    mayGoOn();
  }
  return found;
}

/**
 * Path and query of the next page, if there is one.  A relay names it from its root on, wherever
 * that is: to another place no token goes.
 */
function following(answer: Answer): string | undefined {
  const link = answer.headers.get("Link") ?? "";
  if (link.length > MAX_LINK_HEADER) throw noRelay(answer, `its Link has more than ${MAX_LINK_HEADER >> 10} KiB`);
  const next = /<([^<>]*)>; *rel="next"/.exec(link)?.[1];
  if (next && !/^\/(?![/\\])[!-~]*$/.test(next)) {
    throw noRelay(answer, `its next page is at ${quoted(next.slice(0, 200))}`);
  }
  return next || undefined;
}

/** The path of a next page that has no more than so many: what it has is marked read. */
function ofAtMost(path: string, count: number): string {
  return path.replace(/([?&]limit=)\d+/, (_, name: string) => `${name}${Math.min(count, PAGE)}`);
}
