// A list of messages that stays smooth with 100,000 rows: only those near what is seen exist.
//
// A row is 36 px (48 under a finger), so that the place of each is known without being measured: it stands there by a
// transform, and a row that is seen no more is filled anew and moved to where one is wanted, so that
// nothing else is laid out; the rows are put in order again once the list rests.  Rows come page by
// page as the end comes near.  What arrives stands on top and slides in; but where the list is scrolled, or
// a row of it is open, chosen, pointed at or has the keyboard's focus, each row stays where it is on
// the screen: the list is scrolled by as much as came, below the last row if need be, and says how
// many there are above.  Nobody has to fetch those who only pointed: they slide in when the pointer leaves.

import { clip, copied, dotted, h, say, since, when } from "./dom.js";
import { t } from "./strings.js";

const ROW = matchMedia("(pointer:coarse)").matches ? 48 : 36; // px; style.css says the same
const ALL = 250; // rows that are all there, so that the browser's own search finds them
const AROUND = 16; // rows beyond what is seen, above and below
const SUBJECT = 300; // characters of a subject
const SPARE = 3; // rows that the list may grow by
const STEP = 4; // rows that are scrolled before others are made
const RESTS = 120; // ms without a scroll
const NARROW = [416, 352]; // px of a list at which its rows show less
const TAGS = 2; // that a row shows
const REACH = 20; // pages that are loaded to come to a message
const AHEAD = 3000; // px before the end at which the next page is asked for

// "Ann Example" of `Ann Example <ann@example.org>`; the address where there is no name.
export function senderOf(text) {
  // A stranger wrote it: it is cut, and looked through once.
  const said = (text ?? "").slice(0, 500).trim();
  const from = said.lastIndexOf("<");
  if (from < 0 || !said.endsWith(">")) return said || t("nobody");
  return said.slice(0, from).trim().replace(/^"/, "").replace(/"$/, "").trim() || said.slice(from + 1, -1) || t("nobody");
}

export class MessageList {
  // `hrefOf(item)`: where a row leads; `toOf(item)`: whom it came to, where that differs; `more()`: the next page, as {items, next}; `tell(text)`;
  // `picked()`: other rows are chosen now; without it, none can be; `told(count)`: so many came above what is seen.
  constructor({ label, hrefOf, toOf = () => null, more, tell, picked, told }) {
    Object.assign(this, { hrefOf, toOf, fetchMore: more, tell, pickedChanged: picked, told });
    this.items = [];
    this.known = new Map(); // the same, by id
    this.rows = new Map();
    this.picked = new Set();
    this.more = false;
    this.body = h("ul", { ariaLabel: label });
    this.element = h("div.scroller", { id: "messages" }, this.body);
    if (!picked) this.element.classList.add("unpicked");
    this.element.addEventListener("scroll", () => this.scrolled(), { passive: true });
    this.at = -1; // the row that j and k stand on
    this.height = 0; // px that are seen
    this.top = 0; // px that it is scrolled, when it was last seen
    this.above = 0; // rows that came above those that are seen
    this.element.addEventListener("pointerover", (over) => this.point(over), { passive: true });
    for (const left of ["pointerleave", "focusout"]) this.element.addEventListener(left, () => this.let());
    this.sized = new ResizeObserver(() => {
      const hid = !this.height;
      this.height = this.element.clientHeight; // kept: to ask while scrolling would lay out all
      this.stretch();
      if (hid && this.top) this.element.scrollTop = this.top; // nothing that is hidden can be scrolled
      NARROW.forEach((width, at) => this.element.classList.toggle(`narrow-${at}`, this.element.clientWidth <= width));
      this.render();
    });
    this.sized.observe(this.element);
  }

  find(id) {
    return this.items.findIndex((item) => item.id === id);
  }

  // Whether somebody looks at a row.
  get looked() {
    return this.open || this.picked.size || this.body.querySelector(":is(:hover, :focus-within)");
  }

  // Have these rows; those that are looked at stay where they are.  By how many the list was scrolled.
  keep(items) {
    const top = this.height ? this.element.scrollTop : this.top;
    const first = Math.floor(top / ROW);
    const seen = top || this.looked ? this.items.slice(first) : [];
    this.items = items;
    const places = new Map(items.map(({ id }, at) => [id, at]));
    const by = (places.get(seen.find(({ id }) => places.has(id))?.id) ?? first) - first;
    this.top = top + by * ROW;
    if (by > 0) this.rise(this.above + by);
    this.stretch();
    if (by) this.element.scrollTop = this.top;
    this.render();
    return by;
  }

  rise(count) {
    this.above = count;
    this.told?.(count);
  }

  // As high as its rows, or as it takes to scroll those out of sight that came above: also once the
  // list is higher, for nobody chooses rows any more.
  stretch() {
    const tall = Math.max(this.items.length * ROW, this.above && (this.above + SPARE) * ROW + this.height);
    if (this.tall !== tall) this.body.style.height = `${(this.tall = tall)}px`;
  }

  // Nobody looks at a row any more, perhaps: what came above comes in.
  let() {
    setTimeout(() => {
      if (!this.above || this.looked || this.top > this.above * ROW) return;
      for (const { id } of this.items.slice(0, this.above)) this.rows.get(id)?.classList.add("new");
      this.element.scrollTop = this.top = 0;
      this.scrolled();
    });
  }

  // Show these, the first page of a list; `same`: of that which is shown.
  start(items, more, same) {
    const on = this.open ?? this.standing?.id;
    if (!same) {
      this.items = [];
      this.rise(0);
    }
    this.known = new Map(items.map((item) => [item.id, item]));
    this.more = more;
    for (const id of this.picked) if (!this.known.has(id)) this.picked.delete(id);
    for (const [id, row] of this.rows) if (this.known.has(id)) this.fill(row, this.known.get(id));
    this.keep([...items]);
    this.at = this.find(on);
    if (!this.above) this.element.scrollTop = Math.min(this.element.scrollTop, Math.max(0, (items.length - 1) * ROW));
    this.states();
    this.scrolled();
  }

  // What came just now, the oldest first, on top; what is known already is only changed.
  arrived(items) {
    const fresh = [];
    for (const item of items) {
      if (this.patch(item)) continue;
      fresh.push(item);
      this.known.set(item.id, item);
    }
    if (!fresh.length) return;
    if (this.at >= 0) this.at += fresh.length;
    if (!this.keep([...fresh.reverse(), ...this.items])) for (const { id } of fresh) this.rows.get(id)?.classList.add("new");
  }

  // Put back what `remove` gave.
  insert(taken) {
    const { standing, items: left } = this;
    const items = [];
    let at = 0;
    for (const { item, index } of taken) {
      if (this.patch(item)) continue;
      while (items.length < index && at < left.length) items.push(left[at++]);
      items.push(item);
      this.known.set(item.id, item);
    }
    this.items = items.concat(left.slice(at));
    this.at = this.items.indexOf(standing);
    this.render();
    this.states();
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

  // Take rows away, all at once; those that were there, as {item, index} in their order.
  remove(ids) {
    const wanted = new Set(ids);
    const taken = [];
    this.items.forEach((item, index) => wanted.has(item.id) && taken.push({ item, index }));
    if (!taken.length) return taken;
    for (const { item } of taken) {
      this.known.delete(item.id);
      this.picked.delete(item.id);
    }
    this.at = Math.min(this.at - taken.filter(({ index }) => index < this.at).length, this.items.length - taken.length - 1);
    this.keep(this.items.filter(({ id }) => !wanted.has(id)));
    this.states();
    this.scrolled();
    return taken;
  }

  mark(id) {
    this.open = id;
    const index = this.find(id);
    if (index >= 0) this.stand(index);
    else this.states();
    this.let();
  }

  states() {
    for (const row of this.rows.values()) this.state(row);
  }

  // Stand on a row, and show it.
  stand(index, focus = false) {
    this.at = Math.max(0, Math.min(index, this.items.length - 1));
    const [top, height] = [this.at * ROW, this.height];
    if (top < this.element.scrollTop) this.element.scrollTop = top;
    else if (top + ROW > this.element.scrollTop + height) this.element.scrollTop = top + ROW - height;
    this.render();
    this.states();
    if (focus) this.rows.get(this.items[this.at]?.id)?.querySelector("a").focus({ preventScroll: true });
  }

  get standing() {
    return this.items[this.at] ?? null;
  }

  // `range`: with all between it and the last one that was.
  pick(id, wanted, range = false) {
    const to = this.find(id);
    const from = range ? this.find(this.lastPicked) : -1;
    const [first, last] = from < 0 ? [to, to] : [Math.min(from, to), Math.max(from, to)];
    for (const item of this.items.slice(first, last + 1)) this.picked[wanted ? "add" : "delete"](item.id);
    this.lastPicked = id;
    this.states();
    this.pickedChanged();
  }

  pickAll() {
    for (const item of this.items) this.picked.add(item.id);
    this.states();
    this.pickedChanged();
  }

  pickNone() {
    this.picked.clear();
    this.states();
    this.pickedChanged?.();
    this.let();
  }

  // `top`: how far it is scrolled; `rests`: whether the rows are put in order, too.
  render(top = this.element.scrollTop, rests = true) {
    const count = this.items.length;
    let [from, to] = [0, count];
    this.height ||= this.element.clientHeight;
    if (count > ALL) {
      from = this.begin(top);
      to = Math.min(count, from + Math.ceil(this.height / ROW) + 2 * AROUND + STEP);
    }
    const wanted = this.items.slice(from, to);
    const ids = new Set(wanted.map((item) => item.id));
    const spare = [];
    for (const [id, row] of this.rows) {
      if (ids.has(id)) continue;
      this.rows.delete(id);
      if (row.contains(document.activeElement)) row.remove();
      else spare.push(row);
    }
    const rows = wanted.map((item, index) => {
      const row = this.rows.get(item.id) ?? this.make(item, spare.pop());
      const place = `${from + index} ${this.more ? -1 : count}`;
      if (row.place !== place) {
        row.place = place; // most rows stay where they are
        row.style.transform = `translateY(${(from + index) * ROW}px)`;
        row.ariaPosInSet = from + index + 1;
        row.ariaSetSize = this.more ? -1 : count;
      }
      if (!row.parentNode) this.body.append(row);
      return row;
    });
    for (const row of spare) row.remove();
    this.from = from;
    const order = () => {
      let next = this.body.firstChild;
      for (const row of rows) {
        if (row === next) next = next.nextSibling;
        else (this.body.moveBefore ?? this.body.insertBefore).call(this.body, row, next); // the former keeps the focus
      }
    };
    clearTimeout(this.resting);
    if (rests) order();
    else this.resting = setTimeout(order, RESTS);
    this.stretch();
  }

  // The first row there is, of those that are near what is seen.
  begin(top) {
    return Math.max(0, Math.floor((Math.floor(top / ROW) - AROUND) / STEP) * STEP);
  }

  // The row on top, and how much of it is out of sight; null: nothing is.
  get place() {
    const item = this.top > 0 && this.items[Math.floor(this.top / ROW)];
    return item ? { id: item.id, by: this.top % ROW, far: this.items.length } : null;
  }

  // Load pages until a message is among the rows: a few at most, or as many as there were.
  async reach(id, far = 0) {
    for (let pages = 0; (pages < REACH || this.items.length <= far) && this.more && !this.known.has(id); pages += 1) {
      if (!(await this.ask())) break;
    }
    return this.find(id);
  }

  async goTo({ id, by, far }) {
    const index = await this.reach(id, far);
    if (index >= 0) this.element.scrollTop = this.top = index * ROW + by;
  }

  scrolled() {
    const top = this.element.scrollTop;
    if (this.height) {
      this.top = top;
      if (this.above * ROW > top) this.rise(Math.ceil(top / ROW));
      this.stretch();
    }
    if (this.items.length > ALL && this.begin(top) !== this.from) this.render(top, false);
    if (!this.more || this.asking) return;
    if (this.items.length * ROW - this.height - top < AHEAD) this.ask();
  }

  ask() {
    this.asking ??= this.askNow().finally(() => (this.asking = null)).then((well) => {
      if (well) this.scrolled();
      return well;
    });
    return this.asking;
  }

  async askNow() {
    try {
      const got = await this.fetchMore();
      if (got === null) return false; // another list is shown by now
      this.more = got.more;
      const fresh = got.items.filter((item) => !this.known.has(item.id));
      for (const item of fresh) this.known.set(item.id, item);
      this.items.push(...fresh);
      this.render();
    } catch (error) {
      this.tell(error.message);
      return false;
    }
    return true;
  }

  // A row of a message, of one that is seen no more if there is one: that takes a third as long.
  make(item, row = this.bare()) {
    row.classList.remove("new");
    this.rows.set(item.id, row);
    this.fill(row, item);
    return row;
  }

  bare() {
    const row = h("li.row");
    row.append(
      h("label.pick", h("input", { type: "checkbox", onclick: (pressed) => this.pick(row.dataset.id, pressed.target.checked, pressed.shiftKey) })),
      h("span.from", h("span", { dir: "auto" }), h("span.to", { dir: "ltr" })),
      h("span.what", h("a.subject", { dir: "auto" }), h("span.under", h("span.tags"), h("span.snippet", { dir: "auto" }))),
      h("span.marks"),
      h("time", {}),
    );
    return row;
  }

  fill(row, item) {
    row.dataset.id = item.id;
    const [pick, from, what, marks, time] = row.children;
    const subject = item.subject?.slice(0, SUBJECT) || t("(no subject)"); // no more is seen of it
    pick.firstChild.ariaLabel = t("Select {0}", subject);
    const [sender, to] = from.children;
    const recipient = this.toOf(item);
    const name = item.from_name || senderOf(item.from_address);
    say(sender, name);
    say(to, recipient ? `→ ${recipient}` : name === item.from_address ? "" : item.from_address ?? "");
    const [link, under] = what.children;
    say(link, subject);
    link.href = this.hrefOf(item);
    say(under.lastChild, item.snippet ?? "");
    const tags = item.tags ?? [];
    const shown = item.otp || tags.length || item.has_attachments ? JSON.stringify([item.otp, tags, item.has_attachments]) : "";
    if (marks.shown !== shown) {
      marks.shown = shown;
      marks.replaceChildren(...(item.otp ? [copied(item.otp, t("the code"), { class: "chip" })] : []));
      under.firstChild.replaceChildren(
        ...(item.has_attachments ? [clip()] : []),
        ...tags.slice(0, TAGS).map((tag) => h("span.tag", tag)),
        ...(tags.length > TAGS ? [h("span.tag", { text: `+${tags.length - TAGS}`, title: tags.join(", ") })] : []),
      );
    }
    time.dateTime = item.received_at ?? "";
    say(time, since(item.received_at));
    this.state(row);
  }

  // What is read by who points at it is written then.
  point({ target }) {
    const row = target.closest(".row");
    const item = this.known.get(row?.dataset.id);
    if (!item) return;
    row.children[1].title = dotted([item.from_name, item.from_address, this.toOf(item) && `→ ${this.toOf(item)}`]);
    row.children[2].title = item.subject ?? "";
    row.lastChild.title = when(item.received_at);
  }

  state(row) {
    const { id } = row.dataset;
    const item = this.known.get(id);
    const states = { unread: item?.is_read === false, standing: item !== undefined && item === this.items[this.at], picked: this.picked.has(id), open: id === this.open };
    const wanted = ["row", ...Object.keys(states).filter((name) => states[name])].join(" ");
    if (row.className.replace(" new", "") !== wanted) row.className = wanted;
    const box = row.firstChild.firstChild;
    if (box.checked !== states.picked) box.checked = states.picked;
    row.children[2].firstChild.ariaCurrent = states.open ? "true" : null;
  }

  tick() {
    for (const time of this.body.querySelectorAll("time")) say(time, since(time.dateTime));
  }

  end() {
    clearTimeout(this.resting);
    this.sized.disconnect();
  }
}
