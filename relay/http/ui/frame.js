// A message's HTML in a frame as tall as it is, of this origin and without scripts.
//
// What a browser is long about the relay sends without an origin, so that the frame has a process of
// its own where browsers have one for that: it scrolls by itself, and no link in it is heard of.
//
// What is in the frame a stranger wrote.  It runs nothing, but it may have named its elements after
// what a document has: so whatever is asked of it is asked by the prototypes of this page.

import { ticketed } from "./calls.js";
import { button, copyButton, h } from "./dom.js";
import { t } from "./strings.js";

const LEAST = 120; // px
const MOST = 60000;
const SMALLEST = 0.5; // of its size
let tall = LEAST; // as the last message was: the room that the next one has until it is there

const getter = ({ prototype }, name) => Object.getOwnPropertyDescriptor(prototype, name).get;
const root = getter(Document, "documentElement");
const all = (page, selector) => [...Document.prototype.querySelectorAll.call(page, selector)];
const drawn = getter(HTMLImageElement, "naturalWidth");
const ended = getter(HTMLImageElement, "complete");
const sheets = getter(Document, "styleSheets");
const styled = getter(HTMLElement, "style");
const space = getter(Element, "namespaceURI");
const SPACE = document.documentElement.namespaceURI; // of elements that have such a style
const media = Object.getOwnPropertyDescriptor(HTMLSourceElement.prototype, "media");
const find = (page, selector) => Document.prototype.querySelector.call(page, selector);
const listen = (page, kind, act, options) => EventTarget.prototype.addEventListener.call(page, kind, act, options);

// What a message asks of the scheme, and what that is made: true or false of any screen, and still told
// apart, so that it can be turned round.
const SCHEME = /\(\s*prefers-color-scheme\s*:\s*(dark|light)\s*\)|\((?:min|max)-width: 0\.0([12])px\)/gi;
const turned = (said, dark) => said.replace(SCHEME, (_, scheme, mark) => {
  const wanted = mark ? mark === "1" : scheme.toLowerCase() === "dark";
  return `(${wanted === dark ? "min" : "max"}-width: 0.0${wanted ? 1 : 2}px)`;
});

// Where a declaration allows both schemes, the browser's would choose among light-dark() and its own
// colours: it is made the one that is shown.
const both = new WeakMap(); // what such a declaration said
function choose(style, dark) {
  const said = both.get(style) ?? style.getPropertyValue("color-scheme");
  if (!said.includes("light") || !said.includes("dark")) return;
  both.set(style, said);
  style.setProperty("color-scheme", dark ? "dark" : "light", style.getPropertyPriority("color-scheme"));
}

// Turn what a sheet asks, or a rule and those in it, however deep.
function turn(one, dark) {
  if (one.style) choose(one.style, dark);
  const said = one.media?.mediaText ?? "";
  const wanted = turned(said, dark);
  if (wanted !== said) one.media.mediaText = wanted;
  for (const inner of one.cssRules ?? []) turn(inner, dark);
}

export const outside = (target) => /^https?:/i.test(target);

// An address as a browser reads it: the host in its own letters, and no sign that turns others round.
export function spelt(target, named = true) {
  try {
    const url = new URL(target);
    if (!named) url.username = url.password = ""; // "https://bank.example@…" is a name before the host
    return url.href;
  } catch {
    return target; // an address that is none is shown as it is
  }
}

// A link to elsewhere, in full: a new tab, told neither where it comes from nor who opened it.
export const away = (target) => h("a", { href: target, rel: "noopener noreferrer", target: "_blank", text: spelt(target, false) });

export class MessageFrame {
  // `path`: of the message; `key`: hears the keys that are pressed in the frame; `fitted()`: it is as tall
  // as what is in it.
  constructor(path, { key, tell, fitted }) {
    Object.assign(this, { path, key, tell, fitted });
    this.bar = h("p.notice", { id: "remote-images", hidden: true });
    this.frame = h("iframe", { title: t("The message as HTML"), id: "message-html", onload: () => this.loaded() });
    // No script, no form, no navigation of the page, no window.
    this.frame.setAttribute("sandbox", "allow-same-origin");
    this.link = h("div.notice", { id: "link-asked", role: "status", hidden: true });
    this.frame.style.height = `${tall}px`;
    this.element = h("div.framed", this.bar, this.frame, this.link);
    this.wide = new ResizeObserver(() => this.room !== this.element.clientWidth && this.fit());
    this.wide.observe(this.element);
    this.show("blocked");
  }

  async show(images) {
    this.images = images;
    try {
      const url = await ticketed(`${this.path}/html`);
      this.frame.src = `${url}&framed=true&images=${images}`;
    } catch (error) {
      this.tell(error.message);
    }
  }

  loaded() {
    if (!this.frame.src) return;
    this.frame.classList.add("seen"); // until then the page's own colour is
    const page = (this.page = this.frame.contentDocument);
    this.frame.classList.toggle("apart", !page);
    if (!page) {
      this.bar.hidden = false;
      this.bar.replaceChildren(
        h("span", t("This message takes a browser long: it is shown apart, and its links are those above.")),
        this.images === "blocked" ? button(t("Load remote images once"), () => this.show("loaded")) : "");
      return;
    }
    listen(page, "click", (pressed) => this.pressed(pressed), true);
    listen(page, "auxclick", (pressed) => this.pressed(pressed), true);
    listen(page, "keydown", (pressed) => this.key(pressed));
    for (const kind of ["load", "error", "toggle"]) listen(page, kind, () => this.fit(), true);
    const risk = t("Their sender learns that you read.");
    const count = Number(find(page, "meta[name=relay-blocked]")?.getAttribute("content") ?? 0);
    this.bar.hidden = !count;
    this.bar.replaceChildren(
      h("span", `${count === 1 ? t("1 remote image") : t("{0} remote images", count)} ·`),
      button(t("load once"), () => this.show("loaded")),
      h("span.small", { text: risk, title: risk }));
    if (this.images === "loaded") this.tellMissing();
    this.shade(this.dark);
  }

  // What was asked for and did not come: else a newsletter would just have holes.
  tellMissing() {
    const missing = all(this.page, "img[src^='http' i], img[src^='//']").filter((one) => ended.call(one) && !drawn.call(one)).length;
    this.bar.hidden = !missing;
    this.bar.replaceChildren(h("span", missing === 1 ? t("1 remote image could not be loaded.") : t("{0} remote images could not be loaded.", missing)));
  }

  // As a reader in dark mode shows it, or in light mode, whichever this browser is in: what the
  // message's styles and pictures ask of the scheme holds, or does not.
  shade(dark = false) {
    this.dark = dark; // also of the same message with its images
    for (const sheet of this.page ? sheets.call(this.page) : []) turn(sheet, dark);
    for (const source of this.page ? all(this.page, "source[media]") : []) {
      const said = media.get.call(source);
      const wanted = turned(said, dark);
      if (wanted !== said) media.set.call(source, wanted);
    }
    for (const one of this.page ? all(this.page, "[style*=color-scheme i]") : []) if (space.call(one) === SPACE) choose(styled.call(one), dark);
    // What the message says of itself as a whole holds where no rule does.
    const whole = this.page && root.call(this.page);
    const asked = whole && find(this.page, "meta[name=color-scheme]")?.getAttribute("content");
    if (asked?.includes("light") && asked.includes("dark") && (this.asked === whole || getComputedStyle(whole).colorScheme === "normal")) {
      this.asked = whole;
      styled.call(whole).colorScheme = dark ? "dark" : "light";
    }
    this.fit();
  }

  // Measured while it is low: what is as tall as its frame would grow with it.
  fit() {
    if (!this.page || !this.frame.isConnected) return;
    const scroller = this.element.closest(".reader");
    const top = scroller?.scrollTop;
    this.room = this.element.clientWidth;
    this.frame.style.zoom = "";
    this.frame.style.zoom = Math.min(1, this.room / this.frame.offsetWidth); // a tablet's width where there is less
    this.width = this.frame.clientWidth;
    this.frame.style.height = `${LEAST}px`;
    const whole = root.call(this.page);
    if (whole) {
      const { style } = whole;
      [style.zoom, style.overflowWrap] = ["", "break-word"];
      const zoom = () => this.width / whole.scrollWidth; // what is wider is made smaller, as mail programs do
      if (zoom() < SMALLEST) style.overflowWrap = "anywhere"; // one word that would make all else illegible
      const fits = zoom();
      if (fits < 1 && fits >= SMALLEST) style.zoom = fits; // else it is scrolled
      const bar = whole.scrollWidth > this.width ? 18 : 2; // one to scroll it sideways
      tall = Math.min(MOST, Math.max(LEAST, whole.scrollHeight + bar));
      this.frame.style.height = `${tall}px`;
    }
    if (scroller) scroller.scrollTop = top;
    this.fitted();
  }

  // A link is shown in full before it is opened.
  pressed(event) {
    const link = event.composedPath().find((one) => one.localName === "a" || one.localName === "area"); // in a shadow root, too
    const said = (name) => Element.prototype.getAttribute.call(link, name);
    const href = link && (said("href") ?? said("xlink:href"))?.replace(/[\t\n\r]/g, "").trim(); // as a browser reads it
    if (!href) return;
    event.preventDefault();
    if (href.startsWith("#")) return;
    const close = button("×", () => (this.link.hidden = true), { ariaLabel: t("Close") });
    let host = "";
    try {
      host = outside(href) ? new URL(href).host : "";
    } catch {
      // an address that is none is shown as it is
    }
    this.link.replaceChildren(
      host ? h("b", host) : "",
      h("code", spelt(href)),
      h("span.bar", host ? h("a.button", { href, rel: "noopener noreferrer", target: "_blank", text: t("Open in a new tab") }) : "", copyButton(spelt(href), t("the link")), close),
    );
    this.link.hidden = false;
  }
}
