// /docs: the calls of /openapi.json in the order people need them, programs to paste, and a form to
// try each.  Text only, no markup.  A problem's page has this script for its words.

import { get, query } from "/ui/calls.js";
import { asking } from "/ui/dialogs.js";
import { button, coded, copyButton, doing, h, problem } from "/ui/dom.js";
import { handed, keysFor, pageKey } from "/ui/secrets.js";
import { inWords, language, learn, spoken, t, told } from "/ui/strings.js";

const place = document.getElementById("calls");
const known = new Map(); // a path up to one of its parts, to what stands there on this relay
let api;

const prose = (tag, text = "", lang = null) => h(tag, lang ? { lang } : {}, ...coded(text));

// What a call does, and what a key needs for it.
function about(text = "") {
  const [, does, scope] = /^(.*?) ?(?:A key needs the scope `(\w+)`\.)?$/s.exec(text);
  return [does && inWords(does), scope && t("A key needs the scope `{0}`.", scope)].filter(Boolean).join(" ");
}

const shown = (value) => h("pre", { tabindex: "0", text: typeof value === "string" ? value : JSON.stringify(value, null, 2) });
const snippet = (text, what) => h("div", { class: "snippet-code" }, shown(text), copyButton(text, what));

const nameOf = (schema) => {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(nameOf).join(" | ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if (schema.type === "array") return `${nameOf(schema.items)}[]`;
  return schema.format ?? schema.type ?? "any";
};

// The last of a row says what it means.  The roles, because a phone lays rows out as blocks; each cell carries its head for the same.
const table = (heads, rows) =>
  h("table", { role: "table" },
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads.map((text) => h("th", { role: "columnheader", scope: "col", text })))),
    h("tbody", { role: "rowgroup" }, rows.map((row) => h("tr", { role: "row" }, row.map((cell, at) => {
      const made = Array.isArray(cell) ? h("td", {}, cell) : at === row.length - 1 ? prose("td", cell && inWords(cell)) : prose("td", cell, "en");
      made.role = "cell";
      made.dataset.head = heads[at];
      return made;
    })))));

// The fields of a form, or of a list of them.
function fields(schema) {
  const model = api.components.schemas[nameOf(schema).match(/\w*/)[0]];
  return model?.properties ? table([t("Field"), t("Type"), t("Meaning")], Object.entries(model.properties).map(([name, value]) => [name, nameOf(value), value.description])) : "";
}

// Safe between the quotes of any language.
const encoded = (value) => encodeURIComponent(value).replace(/[!'()*]/g, (sign) => `%${sign.charCodeAt(0).toString(16)}`).replaceAll("%40", "@");
const filled = (path, values) => path.replace(/\{(\w+)\}/g, (_, name) => encoded(values[name]));

// A call as it was written, and its answer as it came, a refusal, too: that is what is shown.
function request(method, path, body, type) {
  const headers = keysFor(path);
  if (body !== undefined) headers["Content-Type"] = type;
  return fetch(path, { method, body, headers, cache: "no-store" });
}

// What stands in the parts of a path here: the newest that a list has, or the example.
async function partsOf(path, parameters) {
  const values = {};
  let real = pageKey();
  for (const { name, example } of parameters) {
    const list = path.slice(0, path.indexOf(`/{${name}}`));
    if (!known.has(list) && real && api.paths[list]?.get?.parameters.some((one) => one.name === "limit")) {
      try {
        const [first] = await get(`${filled(list, values)}?limit=1`);
        if (first) known.set(list, first.address ?? first.id);
      } catch {
        // no list, or not for who is here
      }
    }
    real &&= known.has(list);
    values[name] = known.get(list) ?? example;
  }
  return values;
}

// The inbox of the examples is the one that was looked at last, where nothing needs to quote it.
function local(text) {
  const own = known.get("/api/v1/mailboxes");
  return /^[\w.@+-]+$/.test(own ?? "") ? text.replaceAll(api.paths["/api/v1/mailboxes/{address}"].get.parameters[0].example, own) : text;
}

function programs(place, path, operation, values) {
  const [base, here] = [api.servers[0].url, location.origin];
  const examples = Object.fromEntries(operation.parameters.map(({ name, example }) => [name, example]));
  const choose = ({ label, source }) => {
    const text = source.replaceAll(base, here).replaceAll(base.replace("http", "ws"), here.replace("http", "ws"));
    const names = operation["x-codeSamples"].map((one) => button(one.label, () => choose(one), { ariaPressed: String(one.label === label) }));
    const had = place.contains(document.activeElement);
    place.replaceChildren(h("div", { role: "group", "aria-label": t("Language"), class: "tabs" }, names), snippet(local(text.replaceAll(filled(path, examples), filled(path, values))), t("the program")));
    if (had) names.find((one) => one.ariaPressed === "true").focus();
  };
  choose(operation["x-codeSamples"][0]);
}

function trial(path, method, operation, values, changed) {
  const trouble = problem();
  const told = h("div", { role: "status" });
  const [[type, wanted] = []] = Object.entries(operation.requestBody?.content ?? {});
  const body = wanted && h("textarea", { rows: 5, value: local(shown(wanted.example).textContent) });
  const inBody = api.components.schemas[wanted && nameOf(wanted.schema)]?.properties ?? {};
  const inputs = operation.parameters.filter((one) => one.in === "path" || !(one.name in inBody || /^(token|ticket)$/.test(one.name))).map((one) => h("label", { text: `${one.name} ` }, h("input", {
    name: one.name, autocomplete: "off", value: values[one.name] ?? one.example ?? "", onchange: () => changed(Object.fromEntries(new FormData(form))),
  })));
  const act = async () => {
    const given = Object.fromEntries(new FormData(form));
    const asked = Object.entries(given).filter(([name]) => !(name in values));
    const answer = await request(method.toUpperCase(), filled(path, given) + query(Object.fromEntries(asked)), body?.value, type);
    const kind = answer.headers.get("Content-Type") ?? "";
    let text = /json|text|rfc822/.test(kind) ? await answer.text() : "";
    const found = /json$/.test(kind) && text ? JSON.parse(text) : null;
    if (answer.status === 201 && (found.address ?? found.id)) {
      for (const one of known.keys()) if (one.startsWith(path)) known.delete(one); // what was in another
      known.set(path, found.address ?? found.id);
    }
    told.replaceChildren(
      h("p", {}, h("b", { class: answer.ok ? "ok" : "problem", text: `${answer.status} ${answer.statusText} ` }), found && !answer.ok ? h("a", { href: found.type, text: t("What this means") }) : ""),
      text ? shown(found ?? text.slice(0, 20000)) : "",
    );
  };
  const grave = method === "delete" || (method !== "get" && operation.description?.includes("`admin`"));
  const form = h("form", {
    onsubmit: doing(trouble, () => (grave ? asking({ title: operation.summary, says: t("This is done for good."), fields: [], does: t("Do it"), grave: true, act }) : act())),
  }, inputs, body ? h("label", { text: `${type} ` }, body) : "", h("button", { text: t("Try it") }));
  return [form, trouble, told];
}

async function inside(path, method, operation) {
  const values = await partsOf(path, operation.parameters.filter((one) => one.in === "path"));
  const does = h("div", {}, prose("p", about(operation.description)), h("p", { class: "small" }, told(t("Credential: {0}."), h("span", { text: inWords(operation["x-credential"]) }))));
  const parts = [];
  if (operation.parameters.length) {
    parts.push(table([t("Parameter"), t("In"), t("Type"), t("Default"), t("Meaning")], operation.parameters.map((p) => [
      p.name, p.in, nameOf(p.schema), JSON.stringify(p.schema.default), p.description,
    ])));
  }
  for (const [type, { schema }] of Object.entries(operation.requestBody?.content ?? {})) parts.push(h("h3", { text: t("Body: {0}", type) }), fields(schema));
  const good = [];
  parts.push(h("h3", { text: t("Answers") }), table([t("Status"), t("Body"), t("Meaning")], Object.entries(operation.responses).map(([status, { content = {}, description }]) => {
    const [[type, { schema, example, examples }] = ["", {}]] = Object.entries(content);
    if (status < "300" && schema) good.push(h("h3", { text: t("Answer {0}", status) }), shown(example), fields(schema));
    return [status, examples ? Object.keys(examples).flatMap((one) => [h("a", { href: `/problems/${one}`, text: one }), " "]) : type, description];
  })));
  const programme = h("div");
  const change = (given) => programs(programme, path, operation, given);
  change(values);
  const streams = operation.responses[101] ?? operation.responses[200]?.content?.["text/event-stream"];
  return h("div", { class: "call" }, does, h("div", {}, programme,
    streams ? h("p", { class: "small", text: t("It goes on until you end it: follow it in a terminal.") }) : trial(path, method, operation, values, change)), h("div", {}, parts, good));
}

function call(path, method, operation) {
  const made = h("details", {
    id: operation.operationId,
    ontoggle: async () => {
      if (made.children.length === 1) made.append(await inside(path, method, operation));
    },
  }, h("summary", {}, h("b", { class: method, text: method.toUpperCase() }), " ", h("code", { text: path }), " ", h("span", { text: inWords(operation.summary) })));
  return made;
}

function arrive() {
  const found = document.getElementById(location.hash.slice(1));
  if (found) found.open = true;
  found?.scrollIntoView();
}

function show() {
  const section = (id, title, about, ...more) => h("section", { id }, h("h2", { text: title }), prose("p", about), ...more);
  const sections = api.tags.map((tag) => section(tag.name, ...[tag["x-displayName"], tag.description].map(inWords)));
  for (const [path, methods] of Object.entries(api.paths)) {
    for (const [method, operation] of Object.entries(methods)) sections.find((one) => one.id === operation.tags[0]).append(call(path, method, operation));
  }
  sections.push(section("problems", t("Problems"), t("What `type` says of an answer of 400 and above."), h("ul", {}, Object.values(api.components.examples).map(({ summary, value }) =>
    h("li", {}, h("a", { href: value.type, text: value.type }), ` ${value.status} ${inWords(summary)}`)))));
  const search = h("input", { type: "search", autocomplete: "off", oninput: () => {
    const wanted = search.value.trim().toLowerCase();
    for (const one of place.querySelectorAll("details, section li")) one.hidden = !`${one.id} ${one.firstChild.textContent}`.toLowerCase().includes(wanted);
    for (const one of sections) one.hidden = !one.querySelector(":is(details, li):not([hidden])");
  } });
  place.replaceChildren(
    h("nav", { "aria-label": t("Sections") }, h("label", { text: `${t("Find a call")} ` }, search), sections.map((one) => h("a", { href: `#${one.id}`, text: one.firstChild.textContent }))),
    h("div", {}, prose("p", inWords(api.info.description)),
      prose("p", t("The programs read `RELAY_TOKEN`, a key or the administrator's token. Where the relay runs:")),
      snippet(api.info["x-token"], t("the line")),
      pageKey() ? h("p", { text: t("Calls are tried as who is signed in here.") }) : h("p", {}, h("a", { href: "/#/signin", text: t("Sign in to try them here.") })),
      sections),
  );
  arrive();
  addEventListener("hashchange", arrive);
}

await Promise.all(["calls", place ? "answers" : "problems"].map(learn));

// What stands in the markup that the relay made.
const MARKUP = [t("API reference"), t("Problems"), t("Loading…"), t("What this means"), t("What to do"), t("An answer"), t("Calls that may answer so")];
for (const one of document.querySelectorAll("[data-t]")) one.textContent = MARKUP[one.dataset.t];
for (const one of document.querySelectorAll("[data-said]")) {
  const said = spoken(one.textContent);
  if (!said) continue;
  document.title = one.textContent = said;
  one.lang = language;
}
for (const one of document.querySelectorAll("[data-prose]")) {
  const said = spoken(one.dataset.prose);
  if (!said) continue;
  one.replaceChildren(...prose("p", said[0].toUpperCase() + said.slice(1).replace(/[^.]$/, "$&.")).childNodes);
  one.lang = language;
}
for (const one of document.querySelectorAll("[data-call]")) {
  const said = spoken(one.textContent);
  if (said) [one.textContent, one.lang] = [said, language];
}
if (place) {
  try {
    [api] = await Promise.all([get("/openapi.json"), pageKey() ?? handed(150)]);
    show();
  } catch (error) {
    place.replaceChildren(h("p", { text: t("The description could not be loaded: {0}", error.message) }));
  }
}
