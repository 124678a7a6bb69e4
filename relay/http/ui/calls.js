// Calls to the relay: JSON, pages of lists, event streams and lines.
//
// Each is one try of relay-client's (client.js); what fails is worded here.  No token is held: a call
// carries the page's key, and the browser the cookie beside it.

import { Caller, Refused } from "./client.js";
import { keysFor } from "./secrets.js";
import { refusal, t } from "./strings.js";

// A refusal: trying again would give the same.  Anything else that fails is an outage.  `problem` is
// the last part of the problem's type.
export { Refused };

export const pause = (milliseconds, signal) =>
  new Promise((done) => {
    const end = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", end); // a view that is open for days pauses often
      done();
    };
    const timer = setTimeout(end, milliseconds);
    signal?.addEventListener("abort", end);
  });

// The relay's clock, by which things expire: a browser's may be hours off.
export const clock = { ahead: 0, now: () => Date.now() + clock.ahead };

function setClock(headers) {
  const ahead = Date.parse(headers.get("Date")) - Date.now();
  if (Math.abs(ahead - clock.ahead) > 2000) clock.ahead = ahead; // the header has whole seconds
}

const own = { url: location.origin, token: null };
const relay = new Caller(own, setClock);
const outliving = new Caller({ ...own, fetch: (url, options) => fetch(url, { ...options, keepalive: true }) }, setClock);

// What to do when the session is over; the page sets it.
export const session = { over: () => {} };

// An answer, as soon as it begins, of a path below /api/v1/, or from the root.  `free`: it may be
// refused for want of a session; `keepalive`: the call goes on when the page is left, as one of few,
// with 64 kB in all of their bodies.
export async function ask(path, { method = "GET", body, headers, signal, free, keepalive } = {}) {
  if (path[0] !== "/") path = `/api/v1/${path}`;
  try {
    return await (keepalive ? outliving : relay).once({ method, path, body, headers: { ...keysFor(path), ...headers } }, signal);
  } catch (error) {
    if (signal?.aborted) throw error;
    if (!(error instanceof Refused)) throw new Error(t("The relay does not answer."));
    const { status, problem, title, detail, errors } = error;
    error.sentences = problem === "unknown" ? [t("The relay answered {0}.", status)] : await Promise.all((errors.length ? errors : [detail]).map((one) => refusal(title, [one])));
    error.message = error.sentences.join(" ");
    if (status === 401 && !free) session.over();
    throw status === 429 || status >= 500 ? new Error(error.message) : error;
  }
}

export const get = async (path, options) => (await ask(path, options)).json();

export async function send(method, path, body, options) {
  const response = await ask(path, { ...options, method, body });
  return response.status === 204 ? null : response.json();
}

// The URL of something of a mailbox for what can send no key: a frame or a download, for two minutes.
export async function ticketed(path) {
  const mailbox = path.split("/").slice(0, 5).join("/");
  return (await send("POST", `${mailbox}/tickets`, { path })).url;
}

// One page of a list, and the path of the next one (null at the end).
export async function page(path, options) {
  const response = await ask(path, options);
  const next = /<([^>]*)>; rel="next"/.exec(response.headers.get("Link") ?? "");
  return { items: await response.json(), next: next ? next[1] : null };
}

export const part = encodeURIComponent; // of a path

// The address of the page: its parts as they stand in it, and its values.
export function addressed() {
  const [path, values] = location.hash.replace(/^#\/?/, "").split("?");
  return { parts: path.split("/").filter(Boolean), values: new URLSearchParams(values ?? "") };
}

export function query(values) {
  const given = Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

async function* pieces(response, separator) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    let text = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      text += value;
      const parts = text.split(separator);
      text = parts.pop();
      yield parts;
    }
  } finally {
    reader.cancel().catch(() => {}); // leaving early ends the call, too
  }
}

// Server-Sent Events over fetch: unlike EventSource it tells a refusal from an outage.
export async function* eventsIn(response) {
  for await (const blocks of pieces(response, "\n\n")) {
    for (const block of blocks) {
      const event = { event: "message", data: "", id: null };
      for (const line of block.split("\n")) {
        const at = line.indexOf(": ");
        if (at > 0) event[line.slice(0, at)] = line.slice(at + 2);
      }
      if (event.data) yield { kind: event.event, id: event.id, data: JSON.parse(event.data) };
    }
  }
}

// Lines of NDJSON, as many at a time as have come.
export async function* linesIn(response) {
  yield* pieces(response, "\n");
}

// Call `once` every so many milliseconds while the page is seen, until left; `tell` what fails, and
// the empty text when it is over.
export async function every(milliseconds, signal, once, tell) {
  while (!signal.aborted) {
    if (!document.hidden) {
      try {
        await once();
        if (!signal.aborted) tell("");
      } catch (error) {
        if (!signal.aborted) tell(error.message);
      }
    }
    await pause(milliseconds, signal);
  }
}

// Call `once` again and again, with a pause after each end, until refused or left; `tell` what fails,
// and as what.
export async function keepUp(signal, once, tell) {
  while (!signal.aborted) {
    try {
      await once();
    } catch (error) {
      if (signal.aborted) return;
      tell(error.message, error);
      if (error instanceof Refused) return;
    }
    await pause(1000, signal);
  }
}
