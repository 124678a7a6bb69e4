// What failed or bounced, by destination and error: a group is retried at once, its count asked first.

import { query, send } from "./calls.js";
import { asking } from "./dialogs.js";
import { button, doing, h, keepFocus, number, problem, say, when } from "./dom.js";
import { inWords, named, t } from "./strings.js";

const keyOf = (one) => JSON.stringify([one.status, one.domain, one.error]);
const pathOf = (verb, { status, domain, error }) => `outbound/${verb}?${new URLSearchParams({ status, domain, error: error ?? "" })}`;
const errorOf = ({ error }) => (error ? inWords(error) : t("without an error"));
export const messages = (count) => (count === 1 ? t("1 message") : t("{0} messages", number(count)));

// `changed()`: called when mail was queued again.
export function makeFailures(page, changed) {
  const rows = new Map();
  const trouble = problem();
  const done = h("p.small", { role: "status" });
  const list = h("ul", { id: "failures", ariaLabel: t("Failures by error, the most first") });
  const none = h("p.none", { hidden: true, text: t("Nothing failed.") });

  async function retry(group) {
    const [now] = await page.get(pathOf("failures", group));
    if (!now) {
      await refresh();
      throw new Error(t("None of them is left to be retried."));
    }
    asking({
      title: t("Retry {0}?", messages(now.count)),
      says: `${group.domain}: ${errorOf(group)}`,
      does: t("Retry {0}", messages(now.count)),
      act: async () => {
        const { count } = await send("POST", pathOf("failures/retry", group));
        say(done, t("{0} queued again.", messages(count)));
        await refresh();
        changed();
      },
    });
  }

  function makeRow(group) {
    const link = h("a.subject", { dir: "auto" });
    return h("li.group",
      h("span.count"), h("span.what", link, h("span.small")),
      button(t("retry"), doing(trouble, () => retry(group)), { ariaLabel: t("Retry all to {0}: {1}", group.domain, group.error ?? "") }));
  }

  // What is there keeps its place, so that nothing moves under a click; what is new comes last.
  function show(groups) {
    const wanted = new Map(groups.map((one) => [keyOf(one), one]));
    for (const [key, row] of [...rows]) {
      if (wanted.has(key)) continue;
      rows.delete(key);
      keepFocus(list, () => row.remove(), () => list.querySelector("a") ?? none);
    }
    for (const [key, one] of wanted) {
      let row = rows.get(key);
      if (!row) {
        row = makeRow(one);
        rows.set(key, row);
        list.append(row);
      }
      const link = row.querySelector("a");
      say(row.firstChild, number(one.count));
      say(link, errorOf(one));
      link.setAttribute("href", `#/queue/${one.status}/${one.latest}${query({ domain: one.domain })}`);
      say(row.querySelector(".small"), `${named(one.status)} · ${one.domain} · ${t("last")} ${when(one.finished_at)}`);
    }
    none.hidden = rows.size > 0;
  }

  const refresh = async () => show(await page.get("outbound/failures"));
  return { element: h("div", trouble, done, list, none), refresh };
}
