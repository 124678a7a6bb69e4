// Sign in: a token for a cookie and the page's key.

import { doing, h, labelled, problem } from "./dom.js";
import { languageChoice } from "./settings.js";
import { t, told } from "./strings.js";

export const title = t("Sign in");
export const scope = null;

export function open(place, page) {
  const trouble = problem();
  const done = h("p", { role: "status", text: page.done ? page.said : "" });
  if (!page.done) trouble.textContent = page.said; // of a sign-in link that did not
  const form = h(
    "form",
    {
      onsubmit: doing(trouble, async () => {
        const token = new FormData(form).get("token").trim();
        form.reset(); // the token stays in no field
        await page.enter({ token });
      }),
    },
    labelled(t("Token"), h("input", { name: "token", type: "password", autocomplete: "off", required: true })),
    h("button", t("Sign in")),
  );
  place.append(
    done,
    h("p", told(t("In a terminal, {0} signs your browser in. Or with the administrator's token (in run/relay.json of the data directory) or an API key:"), h("code", "relay open"))),
    form,
    trouble,
    languageChoice(),
  );
}
