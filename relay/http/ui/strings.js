// What the page says, in the language of who reads it.
//
// The English text is the key: a language is a table from it to another (strings.de.js), which only
// those load who read it, and what a table has not is said in English.  `{0}`, `{1}` stand for
// values.  The table is here before any other module runs, so `t` may stand anywhere.

export const LANGUAGES = { en: "English", de: "Deutsch" };

const KEPT = "relay.language";
const known = (code) => (Object.hasOwn(LANGUAGES, code ?? "") ? code : null);
const of = (tag) => known(tag.split("-")[0]);

// What the reader chose on this page; null: the browser says.
export const chosen = () => {
  try {
    return known(localStorage.getItem(KEPT));
  } catch {
    return null; // no storage
  }
};

const wanted = chosen() ?? navigator.languages.map(of).find(Boolean) ?? "en";
const table = wanted === "en" ? {} : await import(`/ui/strings.${wanted}.js`).then((it) => it.default, () => null);

export const language = table ? wanted : "en"; // a table that does not come is missed, not the page
document.documentElement.lang = language;

// As the browser writes dates and numbers, where it speaks the language.
export const locale = [new Intl.NumberFormat().resolvedOptions().locale, ...navigator.languages].find((tag) => of(tag) === language) ?? language;

export const t = (text, ...values) => (table?.[text] ?? text).replace(/\{(\d)\}/g, (place, number) => values[number] ?? place);

// A text in whose places elements stand: what an element is given to hold.
export const told = (text, ...elements) => text.split(/\{(\d)\}/).map((piece, at) => (at % 2 ? elements[piece] : piece));

// What the relay names by a word of its own (states, kinds, scopes) is that word's text, but for these.
const NAMES = { processing: t("being delivered"), backing_off: t("backing off"), password_recovery: t("password recovery") };

export const named = (word) => NAMES[word] ?? t(word);

// How the relay's own sentences are said in another language (spoken.js); who reads English needs none
// of it.
const speaker = language === "en" ? null : await import("/ui/spoken.js").then((it) => it.speaker(language, table, { t, named }), () => null);

// Have what `part` of the relay says, which only some views show, before any of it is spoken.
export const learn = (part) => speaker?.learn(part);

// A sentence of the relay's, which it says in English: in the language of the page, where that knows
// it, else null.
export const spoken = (text) => speaker?.spoken(text) ?? null;
export const inWords = (text) => spoken(text) ?? text;

// What a refusal says, sentence by sentence, in the language of the page.
export const refusal = (title, said) => speaker?.refusal(title, said) ?? said.join(" ");

// Read in a language from now on; null: as the browser says.
export function choose(code) {
  try {
    code ? localStorage.setItem(KEPT, code) : localStorage.removeItem(KEPT);
  } catch {
    return; // it could not be remembered
  }
  location.reload();
}
