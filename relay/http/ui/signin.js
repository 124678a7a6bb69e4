// Sign in: a token for a cookie.

import { doing, h, problem } from "/ui/dom.js";

export const title = "Sign in";
export const scope = null;

export function open(place, page) {
  const trouble = problem();
  const form = h(
    "form",
    {
      onsubmit: doing(trouble, async (submitted) => {
        const token = new FormData(form).get("token").trim();
        form.reset(); // the token stays in no field
        await page.enter(token, submitted);
      }),
    },
    h("label", { text: "Token " }, h("input", { name: "token", type: "password", autocomplete: "off", required: true })),
    h("button", { text: "Sign in" }),
  );
  place.append(
    h("p", { text: "With the administrator's token (in run/relay.json of the data directory) or an API key." }),
    form,
    trouble,
  );
}
