// Sign in: a token for a cookie and the page's key.

import { doing, h, problem } from "/ui/dom.js";

export const title = "Sign in";
export const scope = null;

export function open(place, page) {
  const trouble = problem();
  trouble.textContent = page.said; // of a sign-in link that did not
  const form = h(
    "form",
    {
      onsubmit: doing(trouble, async () => {
        const token = new FormData(form).get("token").trim();
        form.reset(); // the token stays in no field
        await page.enter({ token });
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
