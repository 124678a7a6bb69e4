// Plots, each of one number: what the relay has kept of it, and what is seen live at the right of that.

import { clock } from "./calls.js";
import { button, drawing, h, lasting, number, press, say, tenths, when } from "./dom.js";
import { t } from "./strings.js";

const [WIDTH, HEIGHT] = [240, 56];
const SPANS = { 1: t("1 hour"), 6: t("6 hours"), 24: t("24 hours") };
const PAST = 60000; // ms between two looks at what the relay has kept

const per = (value, unit) => `${value && value < 10 ? tenths(value) : number(Math.round(value))}/${unit}`;
export const rate = (value) => (value && value < 1 ? per(value * 60, "min") : per(value, "s"));
const whole = (value) => number(Math.round(value));
// In per cent; null where nothing ended.
export const share = (bad, good) => (bad + good ? (100 * bad) / (bad + good) : null);

// What is plotted: its title, how a value is said, and what a minute that was kept says of it.
const PLOTS = {
  received: [t("Received"), rate, (one) => one.received / 60],
  sent: [t("Sent"), rate, (one) => one.sent / 60],
  waiting: [t("Waiting"), whole, (one) => one.waiting],
  age: [t("Oldest due"), (seconds) => (seconds < 1 ? "0 s" : lasting(seconds)), (one) => one.oldest_due_seconds ?? 0],
  errors: [t("Failures"), (value) => `${whole(value)} %`, (one) => share(one.failed + one.bounced, one.sent)],
};

// Some of these beside each other, and the buttons that say how many hours back they reach.
export class Plots {
  constructor(names, hours) {
    this.each = Object.fromEntries(names.map((name) => [name, new Plot(...PLOTS[name], hours)]));
    this.all = Object.values(this.each);
    this.element = h("div.plots", this.all.map((plot) => plot.element));
    this.spans = h("p.bar", { role: "group", ariaLabel: t("How far back") }, Object.entries(SPANS).map(([span, text]) =>
      button(text, (pressed) => this.reach(Number(span), pressed.currentTarget), { ariaPressed: String(span === String(hours)) })));
    this.kept = -Infinity; // when the relay was asked last for what it has kept
  }

  reach(hours, pressed) {
    press(pressed);
    for (const plot of this.all) {
      plot.hours = hours;
      plot.draw();
    }
  }

  // Once a minute, and at first: what the relay has kept since.
  async past(get) {
    const ago = clock.now() - this.kept;
    if (ago < PAST) return;
    const minutes = await get(`history?hours=${Math.min(24, Math.ceil(ago / 3600e3))}`);
    this.kept = clock.now();
    const over = minutes.filter((one) => Date.parse(one.at) + 60000 <= this.kept);
    for (const plot of this.all) plot.past(over.map((one) => [Date.parse(one.at) + 30000, plot.of(one)]).filter(([, value]) => value !== null));
  }
}

class Plot {
  // `show(value)`: in words; `of(minute)`: its value then.
  constructor(title, show, of, hours) {
    Object.assign(this, { title, show, of, hours });
    this.points = []; // [instant in ms, value or null: unknown], in order
    this.now = h("strong", "…"); // until it is known whether there is anything
    this.most = h("small");
    this.svg = drawing({ viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": title });
    this.line = this.svg.firstChild;
    this.svg.addEventListener("pointermove", (moved) => this.tell(moved));
    this.svg.addEventListener("pointerleave", () => this.draw());
    this.element = h("figure.plot", h("figcaption", h("span", title), this.now, this.most), this.svg);
  }

  // What the relay has kept, in place of what was seen meanwhile.
  past(points) {
    if (!points.length) return this.draw();
    const [first, last] = [points[0][0], points.at(-1)[0]];
    this.points = [...this.points.filter(([at]) => at < first), ...points, ...this.points.filter(([at]) => at > last + 30000)];
    this.draw();
  }

  // `value` null: nothing is known of this moment.
  push(value) {
    this.points.push([clock.now(), value]);
    this.draw();
  }

  // A column is the mean of what is in it; where nothing is for long, the line ends.
  draw() {
    const end = clock.now();
    const start = end - this.hours * 3600e3;
    while (this.points.length && this.points[0][0] < end - 24 * 3600e3) this.points.shift();
    const sums = new Map();
    for (const [at, value] of this.points) {
      if (at < start || value === null) continue;
      const column = Math.min(WIDTH - 1, Math.floor(((at - start) / (end - start)) * WIDTH));
      const [sum, count] = sums.get(column) ?? [0, 0];
      sums.set(column, [sum + value, count + 1]);
    }
    this.columns = [...sums].sort(([a], [b]) => a - b).map(([x, [sum, count]]) => [x, sum / count]);
    const top = Math.max(1e-9, ...this.columns.map(([, value]) => value));
    const gap = Math.max(2, (150e3 * WIDTH) / (end - start)); // two minutes and a half
    let before = -Infinity;
    this.line.setAttribute("d", this.columns.map(([x, value]) => {
      const on = x - before <= gap;
      before = x;
      return `${on ? "L" : "M"}${x + 1} ${(HEIGHT - 2 - (value / top) * (HEIGHT - 6)).toFixed(1)}${on ? "" : "h.1"}`;
    }).join(""));
    const last = this.points.at(-1)?.[1];
    const most = Math.max(top, last ?? 0);
    say(this.now, last === undefined ? "–" : last === null ? t("unknown") : this.show(last));
    // Nothing, or one dot, is no curve: what has just begun to be seen says so instead.
    const young = !this.points.length || this.columns.length === 1 && this.points[0][0] > end - (2 * (end - start)) / WIDTH;
    say(this.most, young ? t("collecting") : this.columns.length ? t("at most {0}", this.show(most < 1e-6 ? 0 : most)) : "");
    this.line.toggleAttribute("hidden", young);
    this.svg.setAttribute("aria-label", `${this.title}: ${this.now.textContent}, ${this.most.textContent}, ${SPANS[this.hours]}`);
  }

  // What was where the pointer is.
  tell({ clientX }) {
    const { left, width } = this.svg.getBoundingClientRect();
    const x = ((clientX - left) / width) * WIDTH;
    const near = this.columns?.reduce((best, one) => (Math.abs(one[0] - x) < Math.abs(best[0] - x) ? one : best), [Infinity]);
    if (!near || Math.abs(near[0] - x) > 8) return;
    say(this.now, this.show(near[1]));
    say(this.most, when(clock.now() - (1 - near[0] / WIDTH) * this.hours * 3600e3));
  }
}
