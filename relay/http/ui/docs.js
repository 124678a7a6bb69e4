// Shows /openapi.json: every call, what it takes, what it answers.  Text only, no markup.

const make = (tag, text, ...children) => {
  const made = document.createElement(tag);
  if (text !== null) made.textContent = text;
  made.append(...children);
  return made;
};

const nameOf = (schema) => {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(nameOf).join(" | ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if (schema.type === "array") return `${nameOf(schema.items)}[]`;
  return schema.type ?? "any";
};

const table = (heads, rows) => {
  const head = make("tr", null, ...heads.map((text) => Object.assign(make("th", text), { scope: "col" })));
  const body = rows.map((row) => make("tr", null, ...row.map((text) => make("td", text ?? ""))));
  return make("table", null, make("thead", null, head), make("tbody", null, ...body));
};

const credential = (operation) => {
  const names = { bearer: "a bearer token", session: "the session token", query: "?token=" };
  if (!operation.security.length) return "nobody is asked who they are";
  return operation.security.map((one) => Object.keys(one).map((key) => names[key]).join(" and ") || "nothing").join(", or ");
};

function describe(path, method, operation) {
  const shown = make("details", null, make("summary", null, make("code", `${method.toUpperCase()} ${path}`), ` ${operation.summary}`));
  if (operation.description) shown.append(make("p", operation.description));
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
  const shown = make("details", null, make("summary", null, make("code", name), ` ${schema.description ?? ""}`));
  shown.append(table(["Field", "Type", "Meaning"], Object.entries(schema.properties ?? {}).map(([field, value]) => [
    field, nameOf(value), value.description,
  ])));
  return shown;
}

const place = document.getElementById("calls");
try {
  const api = await (await fetch("/openapi.json")).json();
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
  place.replaceChildren(make("p", api.info.description), ...tags.values(), forms);
} catch (error) {
  place.replaceChildren(make("p", `The description could not be loaded: ${error.message}`));
}
