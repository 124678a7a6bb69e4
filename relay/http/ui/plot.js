// A small live plot: the last two minutes of one number, as an SVG line with its newest value.

const NS = "http://www.w3.org/2000/svg";
const POINTS = 60;
const [WIDTH, HEIGHT] = [240, 48];

export class Plot {
  constructor(title, show = (value) => value.toFixed(1)) {
    this.title = title;
    this.show = show;
    this.values = [];
    this.element = document.createElement("figure");
    this.element.className = "plot";
    const caption = document.createElement("figcaption");
    caption.textContent = `${title} `;
    this.now = document.createElement("strong");
    this.now.textContent = "…";
    caption.append(this.now);
    const svg = document.createElementNS(NS, "svg");
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", title);
    this.svg = svg;
    this.line = document.createElementNS(NS, "polyline");
    svg.append(this.line);
    this.element.append(caption, svg);
  }

  // `value` null: nothing is known of this moment.
  push(value) {
    this.values.push(value);
    if (this.values.length > POINTS) this.values.shift();
    const known = this.values.filter((one) => one !== null);
    const top = Math.max(1e-9, ...known);
    const points = [];
    this.values.forEach((one, at) => {
      if (one === null) return;
      const x = WIDTH - (this.values.length - 1 - at) * (WIDTH / (POINTS - 1));
      points.push(`${x.toFixed(1)},${(HEIGHT - 2 - (one / top) * (HEIGHT - 4)).toFixed(1)}`);
    });
    this.line.setAttribute("points", points.join(" "));
    this.now.textContent = value === null ? "unknown" : this.show(value);
    this.svg.setAttribute("aria-label", `${this.title}: ${this.now.textContent}, at most ${this.show(known.length ? top : 0)} in two minutes`);
  }
}
