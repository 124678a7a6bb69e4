// A list of messages that stays smooth with 100,000 rows: only those near what is seen exist.
//
// A row is 36 px, so that the place of each is known without being measured.  Rows come page by page
// as the end comes near.  What arrives stands on top and slides in; where the list is scrolled, what
// is being read stays where it is.

import { arrange, clip, copied, h, say, since, when } from "/ui/dom.js";

const ROW = 36; // px; style.css says the same
const ALL = 250; // rows that are all there, so that the browser's own search finds them
const AROUND = 60; // rows beyond what is seen, above and below
const STEP = 20; // rows that are scrolled before others are made
const AHEAD = 3000; // px before the end at which the next page is asked for

// "Ann Example" of `Ann Example <ann@example.org>`; the address where there is no name.
export function senderOf(text) {
  // A stranger wrote it: it is cut, and looked through once.
  const said = (text ?? "").slice(0, 500).trim();
  const from = said.lastIndexOf("<");
  if (from < 0 || !said.endsWith(">")) return said || "nobody";
  return said.slice(0, from).trim().replace(/^"/, "").replace(/"$/, "").trim() || said.slice(from + 1, -1) || "nobody";
}

export class MessageList {
  // `hrefOf(item)`: where a row leads; `more()`: the next page, as {items, next}; `tell(text)`.
  constructor({ label, hrefOf, more, tell, picked }) {
    Object.assign(this, { hrefOf, fetchMore: more, tell, pickedChanged: picked });
    this.items = [];
    this.known = new Map(); // the same, by id
    this.rows = new Map();
    this.picked = new Set();
    this.more = false;
    this.body = h("ul", { "aria-label": label });
    this.element = h("div", { id: "messages", class: "scroller" }, this.body);
    this.element.addEventListener("scroll", () => this.scrolled(), { passive: true });
    this.at = -1; // the row that j and k stand on
    this.sized = new ResizeObserver(() => this.render());
    this.sized.observe(this.element);
  }

  find(id) {
    return this.items.findIndex((item) => item.id === id);
  }

  // Show these, the first page of a list.
  start(items, more) {
    this.items = [...items];
    this.known = new Map(items.map((item) => [item.id, item]));
    this.more = more;
    this.at = this.find(this.open);
    for (const id of this.picked) if (!this.known.has(id)) this.picked.delete(id);
    for (const [id, row] of this.rows) if (this.known.has(id)) this.fill(row, this.known.get(id));
    this.element.scrollTop = Math.min(this.element.scrollTop, Math.max(0, (items.length - 1) * ROW));
    this.render();
    this.scrolled();
  }

  // What came just now, on top; what is known already is only changed.
  arrived(item) {
    if (this.patch(item)) return;
    this.items.unshift(item);
    this.known.set(item.id, item);
    if (this.at >= 0) this.at += 1;
    const scrolled = this.element.scrollTop > 0;
    this.render();
    if (scrolled) this.element.scrollTop += ROW;
    else this.rows.get(item.id)?.classList.add("new");
  }

  insert(item, index) {
    if (this.patch(item)) return;
    this.items.splice(Math.min(index, this.items.length), 0, item);
    this.known.set(item.id, item);
    this.render();
  }

  // Change what is known of a message; false where it is not in the list.
  patch(item) {
    const known = this.known.get(item.id);
    if (!known) return false;
    Object.assign(known, item);
    const row = this.rows.get(item.id);
    if (row) this.fill(row, known);
    return true;
  }

  remove(id) {
    const index = this.find(id);
    if (index < 0) return -1;
    this.items.splice(index, 1);
    this.known.delete(id);
    this.picked.delete(id);
    if (this.at > index) this.at -= 1;
    this.at = Math.min(this.at, this.items.length - 1);
    this.render();
    this.scrolled();
    return index;
  }

  mark(id) {
    this.open = id;
    const index = this.find(id);
    if (index >= 0) this.stand(index);
    else for (const row of this.rows.values()) this.state(row);
  }

  // Stand on a row, and show it.
  stand(index, focus = false) {
    this.at = Math.max(0, Math.min(index, this.items.length - 1));
    const [top, height] = [this.at * ROW, this.element.clientHeight];
    if (top < this.element.scrollTop) this.element.scrollTop = top;
    else if (top + ROW > this.element.scrollTop + height) this.element.scrollTop = top + ROW - height;
    this.render();
    for (const row of this.rows.values()) this.state(row);
    if (focus) this.rows.get(this.items[this.at]?.id)?.querySelector("a").focus({ preventScroll: true });
  }

  get standing() {
    return this.items[this.at] ?? null;
  }

  pick(id, wanted) {
    if (wanted) this.picked.add(id);
    else this.picked.delete(id);
    const row = this.rows.get(id);
    if (row) this.state(row);
    this.pickedChanged();
  }

  pickNone() {
    this.picked.clear();
    for (const row of this.rows.values()) this.state(row);
    this.pickedChanged();
  }

  render() {
    const count = this.items.length;
    let [from, to] = [0, count];
    if (count > ALL) {
      const first = Math.floor(this.element.scrollTop / ROW);
      from = Math.max(0, Math.floor((first - AROUND) / STEP) * STEP);
      to = Math.min(count, from + Math.ceil(this.element.clientHeight / ROW) + 2 * AROUND + STEP);
    }
    const wanted = this.items.slice(from, to);
    const ids = new Set(wanted.map((item) => item.id));
    for (const id of this.rows.keys()) if (!ids.has(id)) this.rows.delete(id);
    arrange(this.body, wanted.map((item, index) => {
      const row = this.rows.get(item.id) ?? this.make(item);
      row.ariaPosInSet = String(from + index + 1);
      row.ariaSetSize = this.more ? "-1" : String(count);
      return row;
    }));
    this.body.style.paddingTop = `${from * ROW}px`;
    this.body.style.paddingBottom = `${(count - to) * ROW}px`;
    this.from = from;
  }

  scrolled() {
    if (this.items.length > ALL) {
      const first = Math.floor(this.element.scrollTop / ROW);
      if (Math.max(0, Math.floor((first - AROUND) / STEP) * STEP) !== this.from) this.render();
    }
    const left = this.element.scrollHeight - this.element.clientHeight - this.element.scrollTop;
    if (this.more && !this.asking && left < AHEAD) this.ask();
  }

  async ask() {
    this.asking = true;
    try {
      const got = await this.fetchMore();
      if (got === null) return; // another list is shown by now
      this.more = got.more;
      const fresh = got.items.filter((item) => !this.known.has(item.id));
      for (const item of fresh) this.known.set(item.id, item);
      this.items.push(...fresh);
      this.render();
    } catch (error) {
      this.tell(error.message);
      return;
    } finally {
      this.asking = false;
    }
    this.scrolled();
  }

  make(item) {
    const row = h("li", { class: "row" });
    row.append(
      h("label", { class: "pick" }, h("input", { type: "checkbox", onchange: (changed) => this.pick(item.id, changed.target.checked) })),
      h("span", { class: "from", dir: "auto" }),
      h("span", { class: "what" }, h("a", { class: "subject", dir: "auto" }), h("span", { class: "snippet", dir: "auto" })),
      h("span", { class: "marks" }),
      h("time", {}),
    );
    this.rows.set(item.id, row);
    this.fill(row, item);
    return row;
  }

  fill(row, item) {
    row.dataset.id = item.id;
    const [pick, from, what, marks, time] = row.children;
    const subject = item.subject || "(no subject)";
    pick.firstChild.ariaLabel = `Select ${subject}`;
    say(from, senderOf(item.from_address));
    from.title = item.from_address ?? "";
    const link = what.firstChild;
    say(link, subject);
    link.href = this.hrefOf(item);
    say(what.lastChild, item.snippet ?? "");
    const tags = item.tags ?? [];
    const shown = JSON.stringify([item.otp, tags, item.has_attachments]);
    if (marks.dataset.shown !== shown) {
      marks.dataset.shown = shown;
      marks.replaceChildren(
        ...(item.otp ? [copied(item.otp, "the code", { class: "chip" })] : []),
        ...tags.slice(0, 2).map((tag) => h("span", { class: "tag", text: tag, title: tags.join(", ") })),
        ...(item.has_attachments ? [clip()] : []),
      );
    }
    time.dateTime = item.received_at ?? "";
    time.title = when(item.received_at);
    say(time, since(item.received_at));
    this.state(row);
  }

  state(row) {
    const id = row.dataset.id;
    const item = this.known.get(id);
    row.classList.toggle("unread", item?.is_read === false);
    row.classList.toggle("standing", item !== undefined && item === this.items[this.at]);
    row.classList.toggle("picked", this.picked.has(id));
    row.firstChild.firstChild.checked = this.picked.has(id);
    row.querySelector("a").ariaCurrent = id === this.open ? "true" : null;
  }

  tick() {
    for (const time of this.body.querySelectorAll("time")) say(time, since(time.dateTime));
  }

  end() {
    this.sized.disconnect();
  }
}
