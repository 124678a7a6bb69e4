// Shows /openapi.json: every call, what it takes, what it answers.  Text only, no markup.

const make = (tag, text, ...children) => {
  const made = document.createElement(tag);
  if (text !== null) made.textContent = text;
  made.append(...children);
  return made;
};

// Prose in which `names` stand between backticks.
const prose = (tag, text, ...before) =>
  make(tag, null, ...before, ...(text ?? "").split("`").map((part, at) => (at % 2 ? make("code", part) : part)));

const nameOf = (schema) => {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(nameOf).join(" | ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if (schema.type === "array") return `${nameOf(schema.items)}[]`;
  return schema.type ?? "any";
};

// The roles, because a phone lays rows out as blocks; each cell carries its head for the same.
const table = (heads, rows) => {
  const role = (made, name) => Object.assign(made, { role: name });
  const head = heads.map((text) => Object.assign(role(make("th", text), "columnheader"), { scope: "col" }));
  const body = rows.map((row) => role(make("tr", null, ...row.map((text, at) => {
    const cell = role(prose("td", text), "cell");
    cell.dataset.head = heads[at];
    return cell;
  })), "row"));
  return role(make("table", null,
    role(make("thead", null, role(make("tr", null, ...head), "row")), "rowgroup"),
    role(make("tbody", null, ...body), "rowgroup"),
  ), "table");
};

const credential = (operation) => {
  const names = { bearer: "a bearer token", session: "the session token", query: "?token=", page_cookie: "a page's cookie", page_key: "its key", ticket: "its ticket" };
  if (!operation.security.length) return "nobody is asked who they are";
  return operation.security.map((one) => Object.keys(one).map((key) => names[key]).join(" and ") || "nothing").join(", or ");
};

function describe(path, method, operation) {
  const shown = make("details", null,
    prose("summary", operation.summary, make("code", `${method.toUpperCase()} ${path}`), " "));
  if (operation.description) shown.append(prose("p", operation.description));
  shown.append(make("p", `Credential: ${credential(operation)}.`));
  if (operation.parameters.length) {
    shown.append(table(["Parameter", "In", "Type", "Default", "Meaning"], operation.parameters.map((p) => [
      p.name, p.in, nameOf(p.schema), p.schema.default === undefined ? "" : JSON.stringify(p.schema.default), p.description,
    ])));
  }
  for (const [type, { schema }] of Object.entries(operation.requestBody?.content ?? {})) {
    shown.append(make("p", `Body: ${type}, ${nameOf(schema)}.`));
  }
  shown.append(table(["Answer", "Body", "Meaning"], Object.entries(operation.responses).map(([status, answer]) => [
    status,
    Object.entries(answer.content ?? {}).map(([type, { schema }]) => (type.includes("json") ? nameOf(schema) : type)).join(", "),
    answer.description,
  ])));
  return shown;
}

function describeSchema(name, schema) {
  const shown = make("details", null, prose("summary", schema.description, make("code", name), " "));
  const fields = Object.entries(schema.properties ?? {});
  if (fields.length) shown.append(table(["Field", "Type", "Meaning"], fields.map(([field, value]) => [
    field, nameOf(value), value.description,
  ])));
  return shown;
}

const place = document.getElementById("calls");
try {
  const response = await fetch("/openapi.json");
  if (!response.ok) throw new Error(`the relay answered ${response.status}`);
  const api = await response.json();
  const tags = new Map();
  for (const [path, methods] of Object.entries(api.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const tag = operation.tags[0];
      if (!tags.has(tag)) tags.set(tag, make("section", null, make("h2", tag)));
      tags.get(tag).append(describe(path, method, operation));
    }
  }
  const forms = make("section", null, make("h2", "forms"));
  for (const [name, schema] of Object.entries(api.components.schemas)) forms.append(describeSchema(name, schema));
  place.replaceChildren(prose("p", api.info.description), ...tags.values(), forms);
} catch (error) {
  place.replaceChildren(make("p", `The description could not be loaded: ${error.message}`));
}
