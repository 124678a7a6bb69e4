// The story of one outbound message: what it is, what may be done with it, each attempt on a time
// line (whom it spoke to, what was said and answered), and beside that what was sent.

import { clock, part, query, send } from "./calls.js";
import { button, doing, dotted, h, keepFocus, lasting, problem, section, titled, when, whose } from "./dom.js";
import { rawOf } from "./source.js";
import { inWords, language, named, spoken, t } from "./strings.js";

// What may be done with a message by hand; `deferred`: queued, and tried before.
export const ACTS = { queued: ["hold", "cancel"], deferred: ["retry", "hold", "cancel"], held: ["retry", "cancel"], failed: ["retry"], bounced: ["retry"] };
export const actsOf = ({ status, attempts }) => ACTS[status === "queued" && attempts ? "deferred" : status] ?? [];
const WIDE = "(min-width: 80rem)"; // there is room for what was sent beside the story

// `wanted()`: whether it is still this message that is to be shown; `back`: where one came from.
export async function showStory(place, page, id, { wanted, refresh, back }) {
  const path = `outbound/${part(id)}`;
  const [message, events] = await Promise.all([page.get(path), page.get(`${path}/events`)]);
  const held = ["queued", "processing"].includes(message.status) ? await heldOf(message, page) : null;
  if (!wanted()) return;
  const shown = JSON.stringify([message, events, back, held && heldBack(held), dueAt(message, held)]);
  if (place.dataset.shown === shown && place.childElementCount) return; // what has the focus keeps it
  place.dataset.shown = shown;
  const trouble = problem();
  const facts = [
    [t("Status"), named(message.status), `status ${message.status}`], [t("From"), whose(message.sender)], [t("To"), whose(message.recipient)], [t("Priority"), named(message.priority)], [t("Attempts"), message.attempts],
    [t("Queued"), when(message.created_at)], [t("Next attempt"), dueAt(message, held)], [t("Held back"), held && heldBack(held)], [t("Sent"), when(message.sent_at)], [t("Error"), message.error && inWords(message.error), "", message.error && !spoken(message.error)], [t("Id"), message.id],
  ];
  // Its bytes are the same at every attempt: what was opened stays open while the story goes on.
  const kept = place.querySelector(`#story-sent[data-of="${id}"]`);
  const title = h("h2", { id: "story-title", tabindex: "-1", dir: "auto", text: titled(message.subject, t("A message")) });
  const parts = [
    h("div.bar",
      h("a.back", { href: back, text: t("‹ Back") }),
      actsOf(message).map((verb) => button(named(verb), doing(trouble, async () => {
        await send("POST", `${path}/${verb}`);
        await refresh();
        await showStory(place, page, id, { wanted, refresh, back });
      }))),
      h("span.space"),
      page.may("admin") ? h("a", { href: `#/logs?text=${id}`, text: t("Log lines") }) : "",
      h("a.close", { href: back, text: t("Close") })),
    h("div.head",
      title, trouble,
      h("dl", facts.filter(([, value]) => value || value === 0).map(([name, value, kind, foreign]) => [h("dt", name), h("dd", { class: kind ?? "", lang: foreign ? "en" : language, text: String(value) })]).flat())),
    h("div.told",
      section(t("Attempts"), h("h3", t("Attempts")), events.length ? timeLine(events, message) : h("p.small", t("None has ended yet."))),
      kept ?? sentOf(path, message, page)),
  ];
  keepFocus(place, () => place.replaceChildren(...parts), () => title);
}

function dueAt({ status, next_retry_at: at }, held) {
  if (status !== "queued") return null;
  const next = Math.max(Date.parse(at) || 0, held?.opens_in ? Date.parse(held.until) : 0);
  return next > clock.now() ? when(next) : t("due");
}

// Why mail is held back, as `queue/destinations` tells it, since when and until when.
export const heldBack = (one) => dotted([inWords(one.says), one.rule, inWords(one.reason ?? ""), one.since && t("since {0}", when(one.since)), one.until && t("until {0}", when(one.until))]);

// The worst that its mail waits for, if any; of another owner's message nobody knows where it goes.
const heldOf = async ({ recipient }, page) => recipient && (await page.get(`queue/destinations${query({ domain: recipient.slice(recipient.lastIndexOf("@") + 1) })}`))[0];

// Each attempt with its phases: how long each took is a bar, all of one scale.
// The return path that was said may be one of its own (BOUNCE_DOMAIN), which is not kept.
function timeLine(events, { recipient }) {
  const says = { connect: "connect", tls: "TLS", ehlo: "EHLO", auth: "AUTH", mail: "MAIL FROM", rcpt: `RCPT TO:<${recipient ?? "…"}>`, data: "DATA", dot: "<CRLF>.<CRLF>" };
  const attempts = new Map();
  for (const one of events) attempts.set(one.attempt, [...(attempts.get(one.attempt) ?? []), one]);
  const most = Math.max(...events.map((one) => one.duration ?? 0), 0.001);
  const reported = ({ phase }) => !says[phase]; // bounced, delayed, complained: said later
  return h("ol.attempts", [...attempts].flatMap(([attempt, all]) => {
    const phases = all.filter((one) => !reported(one));
    const bad = phases.some(failed);
    const took = phases.reduce((sum, one) => sum + (one.duration ?? 0), 0);
    return [phases.length ? h("li", { class: bad ? "bad" : "good" },
      h("p", h("strong", t("Attempt {0}", attempt)), ` ${when(phases[0].at)} `, h("span.small", lasting(took))),
      phases[0].peer ? h("p.small", `${phases[0].peer} · ${phases[0].tls ?? t("without TLS")}`) : "",
      h("ol.phases", phases.map((one) => {
        // After each recipient was refused, DATA is refused as a matter of course.
        const echo = one.phase === "data" && failed(one) && phases.some((other) => other.phase === "rcpt" && failed(other));
        const bar = h("span.took", { "aria-hidden": "true" });
        bar.style.width = `${Math.max(2, (100 * (one.duration ?? 0)) / most)}%`;
        return h("li", { class: echo ? "echo" : failed(one) ? "bad" : "good" },
          h("span.phase", { dir: "ltr", text: says[one.phase] }), h("b", [one.code ?? t("no reply"), one.enhanced].filter(Boolean).join(" ")), h("span.track", bar), h("small", lasting(one.duration)),
          one.error ?? one.reply ? saidOf(one) : "");
      }))) : "", ...all.filter(reported).map((one) => h("li.bad", h("p", h("strong", named(one.phase)), ` ${when(one.at)}`), saidOf(one)))];
  }));
}

// What the relay itself says is said in the page's language; what a peer said stays as it said it.
function saidOf({ error, reply }) {
  const own = error && spoken(error);
  return h("span.said", { dir: "auto", lang: own ? language : "en", text: own ?? error ?? reply });
}

const failed = (one) => one.code === null || one.code >= 400;

// The message as it goes out, asked for when it is opened: another owner's by nobody but who clicks.
function sentOf(path, { id, recipient }, page) {
  const opened = h("details", { id: "story-sent", ontoggle: () => {
    if (opened.open && !opened.querySelector("pre")) opened.append(rawOf(`${path}/raw`, "story-raw", page.signal));
  } }, h("summary", recipient === null ? t("Another owner's mail, byte for byte: open it only with a reason") : t("As it is sent, but for signatures and return path")));
  opened.dataset.of = id;
  opened.open = recipient !== null && matchMedia(WIDE).matches;
  return opened;
}
