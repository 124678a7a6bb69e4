// Domains: which are this relay's own, what comes in for each, who sends from it, and whether it
// publishes what its mail needs.

import { get, part } from "./calls.js";
import { button, coded, copyButton, doing, dotted, fill, h, input, problem, say, section, Table } from "./dom.js";
import { inWords, language, learn, spoken, t } from "./strings.js";

export const title = t("Domains");
export const scope = "admin";

const EVERY = 10000; // ms
const KEYS = 100; // the newest: who has more limits their domains elsewhere

const domainOf = (address) => address.slice(address.lastIndexOf("@") + 1).replace(/>.*$/, "").trim();

export function open(place, page) {
  const trouble = problem();
  const facts = h("p.facts", { id: "domain-facts" });
  const hint = h("div", { hidden: true });
  const checked = h("div", { id: "domain-check", "aria-live": "polite" });
  const check = (name) => doing(trouble, async () => {
    const [records] = await Promise.all([page.get(`domains/${part(name)}/check`), learn("checks"), learn("domains")]);
    showRecords(checked, name, records);
  });
  const other = input("domain", { required: true, placeholder: t("a domain"), ariaLabel: t("A domain to check"), spellcheck: false });
  const table = new Table(t("The relay's own domains, and those that keys send from"), {
    domain: t("Domain"), "mail-in": t("Mail in"), letters: t("Letters of accounts"), senders: t("Keys that send from it"),
  }, { none: t("This relay has no domain of its own."), id: "domains" });
  place.append(section(t("Domains"), facts, trouble, table.element, hint,
    h("form", { id: "check-domain", onsubmit: (sent) => check(other.value.trim())(sent) }, other, " ", h("button", { type: "submit", text: t("Check what it publishes") })), checked));
  page.every(EVERY, async () => {
    const options = { signal: page.signal };
    const [info, settings, keys] = await Promise.all([get("info", options), get("settings", options), get(`keys?limit=${KEYS}`, options)]);
    const valueOf = (name) => settings.find((one) => one.name === name)?.value;
    const letters = valueOf("collector.sender") || `no-reply@${info.domains[0]}`;
    say(facts, dotted([
      info.smtp ? t("SMTP at {0}", info.smtp) : t("SMTP is not served here"),
      info.submission ? t("submission at {0}", info.submission) : "",
      info.capture ? t("mail for other domains is captured") : t("mail for other domains is refused"),
      valueOf("outbound.release_to").length ? t("released mail may go to {0}", valueOf("outbound.release_to").join(", ")) : t("no received mail may be released"),
    ]));
    const patterns = keys.filter((one) => !one.revoked_at).flatMap((one) => (one.from ?? []).filter((from) => from.includes("@")).map((from) => ({ from, owner: one.owner })));
    const own = new Set(info.domains);
    const names = [...new Set([...info.domains, domainOf(letters), ...patterns.map((one) => domainOf(one.from))])];
    table.show(names, (name) => name, (row, name) => fill(row, [
      undefined,
      own.has(name) ? (name === info.domains[0] ? t("received; new inboxes are here") : t("received")) : info.capture ? t("captured") : t("refused"),
      domainOf(letters) === name ? letters : "",
      patterns.filter((one) => domainOf(one.from) === name).map((one) => `${one.from} (${one.owner})`).filter((one, at, all) => all.indexOf(one) === at).join(", "),
    ]), (row, name) => row.cells[0].append(name, " ", copyButton(name, t("the domain")), " ", button(t("check"), check(name), { ariaLabel: t("Check what {0} publishes", name) })));
    hint.hidden = info.domains.some((name) => !name.endsWith("localhost"));
    if (!hint.hidden && !hint.childElementCount) hint.append(...howToAdd(info.domains));
  }, trouble);
}

// What a domain publishes, and what it is to publish, ready to copy.
function showRecords(place, domain, records) {
  const table = new Table(t("What {0} publishes for its mail", domain), { record: t("Record"), ok: t("Will it do?"), found: t("Found"), wanted: t("To be published"), detail: t("Why") }, { id: "records" });
  table.show(records, (one) => `${one.record} ${one.name}`, (row, one) => fill(row, [undefined, !one.type ? t("not public") : one.ok === null ? t("nobody can say") : one.ok ? t("yes") : one.optional ? t("advised") : t("no"), undefined, undefined, undefined]), (row, one) => {
    const text = (value) => (value ?? "").split("\n").flatMap((line, at) => (at ? [h("br"), line] : [line]));
    row.className = one.ok === null ? "unsaid" : one.ok ? "" : one.optional ? "advised" : "wrong";
    row.cells[0].append(one.type ? one.record : t("Domain"), h("br"), h("code.small", one.name));
    for (const at of [2, 3]) row.cells[at].dir = "ltr";
    if (one.found) row.cells[2].append(h("code", text(one.found)));
    if (one.wanted) row.cells[3].append(h("code", text(one.wanted)), " ", copyButton(one.wanted, t("the record")));
    row.cells[4].append(...coded(inWords(one.detail)));
    if (language !== "en" && !spoken(one.detail)) row.cells[4].lang = "en";
  });
  place.replaceChildren(table.element);
}

// A relay that nobody gave a domain is told how, ready to copy.
function howToAdd(domains) {
  const lines = `RELAY_SMTP__DOMAINS=${["mail.example.org", ...domains].join(",")}`;
  return [
    h("h2", t("A domain of your own")),
    h("p", t("Name it in the settings, start the relay again, and let its MX record lead here:")),
    h("p", h("code", lines), " ", copyButton(lines, t("the setting")), " ", h("a", { href: "#/settings/smtp.domains", text: t("What it means") })),
  ];
}
