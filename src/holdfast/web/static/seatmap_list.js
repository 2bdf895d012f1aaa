// The seats as a list of pools, rows and checkboxes. Only open groups have elements.

import { fill, make } from "./dom.js";
import { FREE, LOOKS, MINE, SELECTED } from "./seatmap_seats.js";

const GROUP_MAX = 120;

export class SeatList {
  constructor(hall, seats, texts, on) {
    this.hall = hall;
    this.seats = seats;
    this.texts = texts;
    this.on = on;
    this.#groups = hall.rows.flatMap((row) => groupsOf(row));
    this.element = make("div", { class: "seatmap-list", role: "region", "aria-label": texts.list });
    this.element.hidden = true;
    this.element.addEventListener("change", (event) => this.#toggle(event.target));
  }

  #groups;
  #boxes = new Map();
  #counts = [];
  #frameRequest = 0;

  show(isShown) {
    this.element.hidden = !isShown;
    if (isShown && !this.element.childElementCount) this.#fill();
    this.refresh();
  }

  /** Update the open groups, at most once a frame. */
  refresh() {
    if (this.element.hidden || this.#frameRequest) return;
    this.#frameRequest = requestAnimationFrame(() => {
      this.#frameRequest = 0;
      for (const [seat, parts] of this.#boxes) this.#update(seat, parts);
      for (const { element, count } of this.#counts) setText(element, fill(this.texts.freeCount, { count: count() }));
    });
  }

  #fill() {
    this.hall.pools.forEach((pool, index) => {
      const groups = this.#groups.filter((group) => group.row.pool === index);
      if (groups.length) this.element.append(this.#pool(pool, index, groups));
    });
  }

  #pool(pool, index, groups) {
    const head = [make("strong", {}, pool.name), " ", make("span", { class: "seatmap-prices" }, pool.prices)];
    const body = (inside) => inside.append(...groups.map((group) => this.#group(group)));
    const details = this.#details(head, () => this.seats.freeInPool[index], body);
    details.classList.add("seatmap-list-pool");
    return details;
  }

  #group(group) {
    const name = this.#name(group);
    const body = (inside) => inside.append(this.#checkboxes(group, name));
    return this.#details([name], () => this.#free(group), body);
  }

  #free({ row, seats }) {
    if (seats.length === row.seats.length) return this.seats.freeInRow[row.index];
    return seats.filter((seat) => isFree(this.seats.looks[seat])).length;
  }

  #name({ row, seats }) {
    const name = row.name ? fill(this.texts.row, { row: row.name }) : this.texts.seats;
    if (seats.length === row.seats.length) return name;
    return `${name}: ${this.hall.labels[seats[0]]} – ${this.hall.labels[seats[seats.length - 1]]}`;
  }

  /** Created when it opens, removed when it closes. */
  #details(head, count, open) {
    const free = make("span", { class: "seatmap-count" }, fill(this.texts.freeCount, { count: count() }));
    const body = make("div", { class: "seatmap-list-body" });
    const details = make("details", {}, make("summary", {}, make("span", {}, ...head), " ", free), body);
    this.#counts.push({ element: free, count });
    details.addEventListener("toggle", (event) => {
      if (event.target !== details) return;
      if (details.open && !body.childElementCount) open(body);
      if (!details.open) this.#empty(body);
    });
    return details;
  }

  #empty(body) {
    this.#counts = this.#counts.filter(({ element }) => !body.contains(element));
    for (const box of body.querySelectorAll("input")) this.#boxes.delete(Number(box.value));
    body.replaceChildren();
  }

  #checkboxes(group, name) {
    return make("ul", { class: "seatmap-seats", "aria-label": name }, ...group.seats.map((seat) => this.#seat(seat)));
  }

  #seat(seat) {
    const box = make("input", { type: "checkbox", value: String(seat) });
    const state = make("span", { class: "seatmap-state" });
    const number = make("span", {}, String(this.hall.numbers[seat] ?? this.hall.labels[seat]));
    const parts = { box, state, label: make("label", {}, box, number, " ", state), look: -1 };
    this.#boxes.set(seat, parts);
    this.#update(seat, parts);
    return make("li", {}, parts.label);
  }

  #update(seat, parts) {
    const look = this.seats.looks[seat];
    parts.box.checked = look === SELECTED || look === MINE;
    if (look === parts.look) return;
    parts.look = look;
    parts.box.disabled = !isFree(look);
    parts.box.setAttribute("aria-label", this.on.describe(seat));
    parts.label.dataset.look = LOOKS[look];
    setText(parts.state, look === FREE ? "" : this.texts[LOOKS[look]]);
  }

  #toggle(box) {
    const seat = Number(box.value);
    this.on.toggle(seat);
    this.#update(seat, this.#boxes.get(seat));
  }
}

function groupsOf(row) {
  const groups = [];
  for (let at = 0; at < row.seats.length; at += GROUP_MAX) {
    groups.push({ row, seats: row.seats.slice(at, at + GROUP_MAX) });
  }
  return groups;
}

function isFree(look) {
  return look === FREE || look === SELECTED;
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
