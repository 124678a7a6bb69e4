// Settings: what is in force, where each value comes from, and what it is for; only to be read.
//
//   #/settings?q=WORDS       those that match       #/settings/NAME    one of them

import { get } from "./calls.js";
import { asText, coded, copied, fill, fitting, h, labelled, number, problem, say, section, Table } from "./dom.js";
import { choose, chosen, language, LANGUAGES, learn, named, spoken, t } from "./strings.js";

export const title = t("Settings");
export const scope = "admin";

// Which language the page speaks.
export function languageChoice() {
  const choice = h("select", { name: "language", onchange: () => choose(choice.value) },
    h("option", { value: "", text: t("as the browser says") }), Object.entries(LANGUAGES).map(([code, name]) => h("option", { value: code, text: name, lang: code })));
  choice.value = chosen() ?? "";
  return h("p", { id: "language" }, labelled(t("Language of this page"), choice));
}


// Those in whose name, value or meaning all the words are.
function matching(all, text) {
  const fits = fitting(text);
  return all.filter((one) => fits(`${one.name} ${one.variable} ${asText(one.value)} ${one.meaning}`));
}

// All of them, their meanings as the page speaks.
async function explained(options) {
  const [all] = await Promise.all([get("settings", options), learn("settings")]);
  return all.map((one) => {
    const said = spoken(one.meaning);
    return { ...one, meaning: said ?? one.meaning, lang: said ? language : "en" };
  });
}

// For the palette: what they are for, and where they stand.
export const found = async (words, options) =>
  matching(await explained(options), words).map((one) => ({ kind: t("setting"), title: one.variable, says: one.meaning, href: `#/settings/${one.name}` }));

export function open(place, page) {
  const trouble = problem();
  const count = h("p.small", { role: "status" });
  const field = h("input", { type: "search", name: "q", placeholder: t("words of a name, a value or a meaning"), ariaLabel: t("Find a setting"), autocapitalize: "none", oninput: () => narrow() });
  const set = h("input", { type: "checkbox", onchange: () => narrow() });
  const table = new Table(t("What is in force"), { setting: t("Setting"), value: t("Value"), source: t("Comes from"), meaning: t("Meaning") }, { none: t("No setting matches."), id: "settings" });
  let all = [];
  place.append(languageChoice(), section(t("Settings"),
    h("p", t("They are read at the start: change the file or the variable, and start the relay again.")),
    h("form", { onsubmit: (submitted) => submitted.preventDefault() }, field, h("label.check", set, ` ${t("only what is set")}`)), count, trouble, table.element));

  function narrow() {
    const shown = matching(all, field.value).filter((one) => !set.checked || one.source !== "default");
    table.show(shown, (one) => one.name, (row, one) => fill(row, [undefined, asText(one.value), named(one.source)]),
      (row, one) => {
        row.cells[0].append(copied(one.variable, t("the variable")));
        row.cells[1].dir = "ltr";
        row.cells[1].lang = "en";
        row.cells[3].lang = one.lang;
        row.cells[3].append(...coded(one.meaning));
        row.classList.toggle("set", one.source !== "default");
        if (one.source === "default") return;
        row.cells[1].title = t("By default: {0}", asText(one.default) || t("nothing"));
      });
    say(count, t("{0} of {1}", number(shown.length), number(all.length)));
  }
  function move({ parts: [name], values }) {
    field.value = name ?? values.get("q") ?? field.value;
    narrow();
  }
  explained({ signal: page.signal }).then((found) => {
    all = found;
    move(page);
  }).catch((error) => page.signal.aborted || say(trouble, error.message));
  return move;
}
