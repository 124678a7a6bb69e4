// Sign in: a token for a cookie and the page's key.

import { doing, h, labelled, problem } from "./dom.js";
import { howToSignIn } from "./hello.js";
import { languageChoice } from "./settings.js";
import { t } from "./strings.js";

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
    howToSignIn(form),
    trouble,
    languageChoice(),
  );
}
