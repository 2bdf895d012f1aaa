// The seat map of the buyers' pages: up to 20,000 seats to choose from with mouse, touch, keyboard or screen reader.
//
// It knows seats, not bookings: the page passes state changes in, and events on the element report selections.

import { fill, make } from "./dom.js";
import { Gestures } from "./seatmap_gestures.js";
import { Hall } from "./seatmap_hall.js";
import { Legend } from "./seatmap_legend.js";
import { SeatList } from "./seatmap_list.js";
import { isDirection, nearest, rowEnd, stepFrom } from "./seatmap_neighbours.js";
import { BLOCKED, FREE, LOOKS, Seats } from "./seatmap_seats.js";
import { readTheme } from "./seatmap_theme.js";
import { View } from "./seatmap_view.js";

/** Every text that a person sees or hears. */
export const TEXT_KEYS = [
  "label", "help", "free", "held", "sold", "blocked", "mine", "selected", "seat", "rowSeat", "row", "seats",
  "freeCount", "zoomIn", "zoomOut", "reset", "showList", "showMap", "list", "legend", "taken", "limit",
];

const ZOOM_STEP = 1.6;
/** Pixels: below TARGET_MIN a finger cannot hit one seat, so the map zooms in to TARGET_WANTED. */
const TARGET_MIN = 24;
const TARGET_WANTED = 40;
const TARGET_REACH = 22;
const MOUSE_REACH = 5;
/** Hall units: half a seat and half the gap around it. */
const SEAT_REACH = 0.6;
let maps = 0;

export class SeatMap {
  /** The largest number of seats that may be selected, or null for no limit. */
  max = null;

  constructor(element, layout, texts) {
    for (const key of TEXT_KEYS) if (typeof texts[key] !== "string") throw new TypeError(`no text for ${key}`);
    this.#element = element;
    this.#texts = texts;
    this.#hall = new Hall(layout, shapeOf(element));
    this.#seats = new Seats(this.#hall);
    this.#build();
    this.#listen();
    this.restyle();
  }

  #element;
  #texts;
  #hall;
  #seats;
  #frame;
  #view;
  #list;
  #legend;
  #liveRegion;
  #tip;
  #buttons;
  #cursor = null;

  /** Set the state of all seats. Seats that are not named are free. */
  reset(states = {}) {
    const known = new Map(Object.entries(states));
    const changed = [];
    this.#hall.labels.forEach((label, seat) => {
      if (this.#seats.setState(seat, known.get(label) ?? "free")) changed.push(seat);
    });
    this.#redraw(changed, false);
  }

  /** Change the state of the named seats. */
  apply(states) {
    const changed = [];
    for (const [label, state] of Object.entries(states)) {
      const seat = this.#hall.find(label);
      if (seat !== undefined && this.#seats.setState(seat, state)) changed.push(seat);
    }
    this.#redraw(changed, true);
  }

  /** Mark the seats of this buyer's own bookings. */
  markMine(labels) {
    const own = new Set(labels.map((label) => this.#hall.find(label)));
    const changed = [];
    for (let seat = 0; seat < this.#hall.count; seat += 1) {
      if (this.#seats.setMine(seat, own.has(seat))) changed.push(seat);
    }
    this.#redraw(changed, false);
  }

  /** Returns whether the seat now is as wanted. Refuses seats that are not free, and more than `max`. */
  select(label, isSelected = true) {
    const seat = this.#hall.find(label);
    if (seat === undefined) return false;
    return this.#seats.chosen.has(seat) === isSelected || this.#toggle(seat);
  }

  get selected() {
    return [...this.#seats.chosen].map((seat) => this.#hall.labels[seat]);
  }

  /** Up to `count` free seats near this one, of the same pool first, side by side if possible. */
  nearby(label, count) {
    const from = this.#hall.find(label);
    if (from === undefined) return [];
    const isFree = (seat) => seat !== from && this.#seats.looks[seat] === FREE;
    return nearest(this.#hall, from, count, isFree).map((seat) => this.#hall.labels[seat]);
  }

  state(label) {
    const seat = this.#hall.find(label);
    return seat === undefined ? undefined : LOOKS[this.#seats.state(seat)];
  }

  /** The centre of a seat, in CSS pixels of the canvas. */
  position(label) {
    const seat = this.#hall.find(label);
    if (seat === undefined) return null;
    const [x, y] = this.#view.camera.toScreen(this.#hall.x[seat], this.#hall.y[seat]);
    return { x, y };
  }

  /** Read the page's colours again. Needed only if they change without a change of the system's colour scheme. */
  restyle() {
    const theme = readTheme(this.#element);
    this.#view.restyle(theme);
    this.#legend.paint(theme);
  }

  // A grid with aria-activedescendant would need an element for every seat, and halls are not grids. So the map is an
  // application: screen readers pass the arrow keys on, and a live region announces each seat. The list of plain
  // checkboxes is there for people who prefer their screen reader's own keys.
  #build() {
    const texts = this.#texts;
    const help = make("p", { class: "seatmap-unseen", id: `seatmap-help-${(maps += 1)}` }, texts.help);
    const named = { "aria-label": texts.label, "aria-describedby": help.id };
    this.#frame = make("div", { class: "seatmap-frame", role: "application", tabindex: "0", ...named });
    this.#view = new View(this.#frame, this.#hall, this.#seats);
    this.#tip = make("div", { class: "seatmap-tip", "aria-hidden": "true" });
    this.#frame.append(this.#tip);
    this.#liveRegion = make("p", { class: "seatmap-unseen", role: "status", "aria-live": "polite", "aria-atomic": "true" });
    this.#legend = new Legend(this.#hall, texts);
    this.#legend.showBlocked(false);
    const on = { toggle: (seat) => this.#toggle(seat), describe: (seat) => this.#describe(seat) };
    this.#list = new SeatList(this.#hall, this.#seats, texts, on);
    const bar = this.#toolbar();
    this.#element.classList.add("seatmap");
    this.#element.replaceChildren(bar, this.#frame, this.#list.element, this.#legend.element, help, this.#liveRegion);
  }

  #toolbar() {
    const texts = this.#texts;
    const [out, into, all] = [icon("out", texts.zoomOut), icon("in", texts.zoomIn), icon("all", texts.reset)];
    const list = make("button", { type: "button", class: "seatmap-switch" }, texts.showList);
    out.onclick = () => this.#view.zoom(1 / ZOOM_STEP);
    into.onclick = () => this.#view.zoom(ZOOM_STEP);
    all.onclick = () => this.#view.fly(0, 0, 0);
    list.onclick = () => this.#showList(this.#list.element.hidden);
    const zoom = make("div", { class: "seatmap-zoom" }, out, into, all);
    this.#buttons = { out, into, all, list, zoom };
    return make("div", { class: "seatmap-bar" }, list, zoom);
  }

  #listen() {
    new Gestures(this.#frame, this.#view, {
      tap: (point, isTouch, isSecond) => this.#tap(point, isTouch, isSecond),
      hover: (point) => this.#hover(point),
    });
    this.#view.onmove = () => this.#updateControls();
    const sizes = new ResizeObserver(() => {
      this.#view.resize(this.#frame.clientWidth, this.#frame.clientHeight);
      this.#legend.fit();
    });
    sizes.observe(this.#frame);
    this.#frame.addEventListener("keydown", (event) => this.#key(event));
    this.#frame.addEventListener("focus", () => this.#focus());
    this.#frame.addEventListener("blur", () => this.#setCursor(null));
    this.#frame.addEventListener("pointerdown", () => this.#setCursor(null));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.restyle());
  }

  #showList(isList) {
    this.#frame.hidden = isList;
    this.#buttons.zoom.hidden = isList;
    this.#legend.element.hidden = isList;
    this.#list.show(isList);
    this.#buttons.list.textContent = isList ? this.#texts.showMap : this.#texts.showList;
  }

  #redraw(changed, isHighlighted) {
    this.#view.addChanged(changed, isHighlighted);
    this.#reportLost();
    if (!changed.length) return;
    this.#legend.showBlocked(this.#seats.looks.includes(BLOCKED));
    this.#list.refresh();
  }

  #reportLost() {
    const lost = this.#seats.lost();
    if (!lost.length) return;
    for (const seat of lost) this.#seats.unselect(seat);
    this.#dispatch("change", { selected: this.selected });
    this.#dispatch("lost", { labels: lost.map((seat) => this.#hall.labels[seat]) });
  }

  /** Returns whether the seat could be toggled. */
  #toggle(seat) {
    const reason = this.#seats.chosen.has(seat) ? null : this.#refusal(seat);
    if (reason) {
      const { limit, taken } = this.#texts;
      this.#announce(reason === "limit" ? fill(limit, { limit: this.max }) : `${this.#describe(seat)}. ${taken}`);
      this.#dispatch("refused", { label: this.#hall.labels[seat], state: LOOKS[this.#seats.state(seat)], reason });
      return false;
    }
    if (this.#seats.chosen.has(seat)) this.#seats.unselect(seat);
    else this.#seats.select(seat);
    this.#redraw([seat], false);
    this.#dispatch("change", { selected: this.selected });
    return true;
  }

  #refusal(seat) {
    if (this.#seats.state(seat) !== FREE) return "taken";
    return this.max !== null && this.#seats.chosen.size >= this.max ? "limit" : null;
  }

  #dispatch(name, detail) {
    this.#element.dispatchEvent(new CustomEvent(`seats:${name}`, { detail, bubbles: true }));
  }

  #announce(text) {
    this.#liveRegion.textContent = text;
  }

  /** If a finger covers several seats, zoom in first. The second half of a double tap must not select the seat that
   * has just come under the finger. */
  #tap({ x, y }, isTouch, isSecond) {
    if (isSecond && this.#isZoomingIn) return;
    const { camera, seatSize } = this.#view;
    const [hallX, hallY] = camera.toHall(x, y);
    const reach = Math.max((isTouch ? TARGET_REACH : MOUSE_REACH) / camera.scale, SEAT_REACH);
    const [seat, ...others] = this.#hall.around(hallX, hallY, reach);
    this.#isZoomingIn = isTouch && seatSize < TARGET_MIN && others.length > 0;
    if (this.#isZoomingIn) this.#view.fly(TARGET_WANTED, hallX, hallY);
    else if (seat !== undefined) this.#pick(seat);
    else if (isSecond) this.#view.zoom(2, x, y);
  }

  #isZoomingIn = false;

  #pick(seat) {
    this.#cursor = seat;
    if (this.#toggle(seat)) this.#announce(this.#describe(seat));
    this.#showTip(this.#view.hovered);
  }

  #hover(point) {
    const [x, y] = point ? this.#view.camera.toHall(point.x, point.y) : [0, 0];
    const reach = Math.max(MOUSE_REACH / this.#view.camera.scale, SEAT_REACH);
    const seat = point ? (this.#hall.around(x, y, reach)[0] ?? null) : null;
    if (seat === this.#view.hovered) return;
    this.#view.hovered = seat;
    this.#frame.classList.toggle("is-choosable", seat !== null && this.#refusal(seat) !== "taken");
    this.#showTip(seat);
    this.#view.refreshAbove();
  }

  #focus() {
    if (!this.#frame.matches(":focus-visible")) return;
    this.#cursor ??= this.#firstSeat();
    if (this.#cursor === null) return;
    this.#setCursor(this.#cursor);
    this.#announce(this.#describe(this.#cursor));
  }

  /** A selected seat, or else the free seat nearest to the middle of the stage. */
  #firstSeat() {
    const { chosen, looks } = this.#seats;
    const { left, right, top } = this.#hall.bounds;
    const [first] = chosen;
    if (first !== undefined || !this.#hall.count) return first ?? null;
    const away = (seat) => Math.hypot(this.#hall.x[seat] - (left + right) / 2, this.#hall.y[seat] - top);
    let best = 0;
    for (let seat = 1; seat < this.#hall.count; seat += 1) {
      const isBetter = (looks[seat] !== FREE) - (looks[best] !== FREE) || away(seat) - away(best);
      if (isBetter < 0) best = seat;
    }
    return best;
  }

  #key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || !this.#hall.count) return;
    const { key } = event;
    const seat = (this.#cursor ??= this.#firstSeat());
    if (isDirection(key)) this.#go(stepFrom(this.#hall, seat, key));
    else if (key === "Home" || key === "End") this.#go(rowEnd(this.#hall, seat, key));
    else if (key === "Enter" || key === " ") this.#press(seat);
    else if (key === "+" || key === "=") this.#zoomOn(seat, ZOOM_STEP);
    else if (key === "-") this.#zoomOn(seat, 1 / ZOOM_STEP);
    else if (key === "0") this.#view.fly(0, 0, 0);
    else return;
    event.preventDefault();
  }

  #go(seat) {
    this.#cursor = seat;
    this.#setCursor(seat);
    this.#view.reveal(seat);
    this.#announce(this.#describe(seat));
  }

  #press(seat) {
    this.#setCursor(seat);
    this.#view.reveal(seat);
    if (this.#toggle(seat)) this.#announce(this.#describe(seat));
    this.#showTip(seat);
  }

  #zoomOn(seat, factor) {
    const { goal } = this.#view.camera;
    this.#view.fly(goal.scale * factor, this.#hall.x[seat], this.#hall.y[seat]);
  }

  /** Move the keyboard's focus ring. A pointer removes it. */
  #setCursor(seat) {
    this.#view.cursor = seat;
    this.#showTip(seat);
    this.#view.refreshAbove();
  }

  #describe(seat) {
    return [...this.#names(seat), this.#texts[LOOKS[this.#seats.looks[seat]]]].filter(Boolean).join(", ");
  }

  #names(seat) {
    const pool = this.#hall.pools[this.#hall.pool[seat]];
    const row = this.#hall.rows[this.#hall.row[seat]].name;
    const [number, label] = [this.#hall.numbers[seat], this.#hall.labels[seat]];
    const name = row && number != null ? fill(this.#texts.rowSeat, { row, number }) : fill(this.#texts.seat, { label });
    return [name, pool.name, pool.prices];
  }

  /** The same text beside the seat, for people who see it. */
  #showTip(seat) {
    this.#tip.classList.toggle("is-shown", seat !== null);
    if (seat === null) return;
    const [name, pool, prices] = this.#names(seat);
    const state = this.#texts[LOOKS[this.#seats.looks[seat]]];
    const where = make("span", {}, [pool, prices].filter(Boolean).join(" · "));
    this.#tip.replaceChildren(make("strong", {}, name), where, make("span", {}, state));
    this.#placeTip(seat);
  }

  #placeTip(seat) {
    const { camera, seatSize } = this.#view;
    const [x, y] = camera.toScreen(this.#hall.x[seat], this.#hall.y[seat]);
    const { offsetWidth: width, offsetHeight: height } = this.#tip;
    const gap = Math.max(seatSize / 2, 8) + 8;
    const left = Math.max(6, Math.min(camera.width - width - 6, x - width / 2));
    const top = y - gap - height < 6 ? y + gap : y - gap - height;
    this.#tip.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
  }

  #updateControls() {
    const { camera, cursor, hovered } = this.#view;
    const shown = cursor ?? hovered;
    if (shown !== null) this.#placeTip(shown);
    this.#frame.classList.toggle("is-enlarged", !camera.isFit);
    for (const button of [this.#buttons.out, this.#buttons.all]) disable(button, camera.isFit);
    disable(this.#buttons.into, camera.isClosest);
  }
}

function icon(name, text) {
  return make("button", { type: "button", class: `seatmap-icon seatmap-${name}`, "aria-label": text, title: text });
}

function shapeOf(element) {
  return Math.max(0.6, Math.min(1.8, element.clientWidth / element.clientHeight || 1));
}

/** The `disabled` attribute would take the focus away from people who zoom with the keyboard. */
function disable(button, isDisabled) {
  const value = String(isDisabled);
  if (button.getAttribute("aria-disabled") !== value) button.setAttribute("aria-disabled", value);
}
