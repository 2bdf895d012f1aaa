// The seat map of the buyers' pages: up to 20,000 seats to choose from with mouse, touch, keyboard or screen reader.
//
// It knows seats and nothing of bookings: the page tells what turns, and hears of choices by events on the element.

import { fill, make } from "./seatmap_dom.js";
import { Gestures } from "./seatmap_gestures.js";
import { Hall } from "./seatmap_hall.js";
import { Legend } from "./seatmap_legend.js";
import { SeatList } from "./seatmap_list.js";
import { isDirection, nearest, rowEnd, stepFrom } from "./seatmap_near.js";
import { BLOCKED, FREE, LOOKS, Seats } from "./seatmap_seats.js";
import { readTheme } from "./seatmap_theme.js";
import { View } from "./seatmap_view.js";

/** Every word that a person sees or hears. */
export const TEXT_KEYS = [
  "label", "help", "free", "held", "sold", "blocked", "mine", "selected", "seat", "rowSeat", "row", "seats",
  "freeCount", "zoomIn", "zoomOut", "reset", "showList", "showMap", "list", "legend", "taken", "limit",
];

const ZOOM_STEP = 1.6;
/** Pixels: the size below which a finger cannot tell seats apart, how far apart they are put then, and its reach. */
const TARGET_MIN = 24;
const TARGET_WANTED = 40;
const TARGET_REACH = 22;
const MOUSE_REACH = 5;
/** Units: the half of a seat and of the gap around it. */
const SEAT_REACH = 0.6;
let maps = 0;

export class SeatMap {
  /** The most seats that may be selected; null: as many as there are. */
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
  #gestures;
  #said;
  #tip;
  #buttons;
  #sizes;
  #stop = new AbortController();
  #cursor = null;

  /** All seats anew: those not named are free. */
  reset(states = {}) {
    const known = new Map(Object.entries(states));
    const turned = [];
    this.#hall.labels.forEach((label, seat) => {
      if (this.#seats.turn(seat, known.get(label) ?? "free")) turned.push(seat);
    });
    this.#shown(turned, false);
  }

  /** What turned, by others or by this buyer. */
  apply(states) {
    const turned = [];
    for (const [label, state] of Object.entries(states)) {
      const seat = this.#hall.find(label);
      if (seat !== undefined && this.#seats.turn(seat, state)) turned.push(seat);
    }
    this.#shown(turned, true);
  }

  /** The seats that this buyer holds or owns, and no others. They stop being selected, which is not losing them. Told
   * before the hold is asked for, the feed's news of one's own hold is not taken for somebody else's. */
  hold(labels) {
    const own = new Set(labels.map((label) => this.#hall.find(label)));
    const turned = [];
    let isLess = false;
    for (let seat = 0; seat < this.#hall.count; seat += 1) {
      if (own.has(seat) && this.#seats.chosen.has(seat)) isLess = this.#seats.leave(seat);
      if (this.#seats.own(seat, own.has(seat))) turned.push(seat);
    }
    this.#shown(turned, false);
    if (isLess) this.#tell("change", { selected: this.selected });
  }

  /** Whether it is now as wished. What is not free, and more than `max`, is refused. */
  select(label, isSelected = true) {
    const seat = this.#hall.find(label);
    if (seat === undefined) return false;
    return this.#seats.chosen.has(seat) === isSelected || this.#toggle(seat);
  }

  get selected() {
    return [...this.#seats.chosen].map((seat) => this.#hall.labels[seat]);
  }

  clear() {
    const left = [...this.#seats.chosen];
    for (const seat of left) this.#seats.leave(seat);
    this.#shown(left, false);
    if (left.length) this.#tell("change", { selected: [] });
  }

  /** Up to `count` free seats nearest to one: of the same pool first, side by side if it can be. */
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

  /** Where its middle is, in CSS pixels of the canvas. */
  position(label) {
    const seat = this.#hall.find(label);
    if (seat === undefined) return null;
    const [x, y] = this.#view.camera.toScreen(this.#hall.x[seat], this.#hall.y[seat]);
    return { x, y };
  }

  /** Read the page's colours again, after it changed them by other means than the system's preference. */
  restyle() {
    const theme = readTheme(this.#element);
    this.#view.restyle(theme);
    this.#legend.paint(theme);
  }

  destroy() {
    this.#stop.abort();
    this.#sizes.disconnect();
    this.#gestures.destroy();
    this.#view.destroy();
    this.#element.replaceChildren();
  }

  // A grid of cells with aria-activedescendant would need an element for every seat, or a few that change under the
  // reader's feet, and halls are not grids. So the picture is an application: a screen reader passes the arrow keys on,
  // and each seat is told through a live region. Who prefers the reader's own keys has the list of plain checkboxes.
  #build() {
    const texts = this.#texts;
    const help = make("p", { class: "seatmap-unseen", id: `seatmap-help-${(maps += 1)}` }, texts.help);
    const named = { "aria-label": texts.label, "aria-describedby": help.id };
    this.#frame = make("div", { class: "seatmap-frame", role: "application", tabindex: "0", ...named });
    this.#view = new View(this.#frame, this.#hall, this.#seats);
    this.#tip = make("div", { class: "seatmap-tip", "aria-hidden": "true" });
    this.#frame.append(this.#tip);
    this.#said = make("p", { class: "seatmap-unseen", role: "status", "aria-live": "polite", "aria-atomic": "true" });
    this.#legend = new Legend(this.#hall, texts);
    this.#legend.showBlocked(false);
    const on = { toggle: (seat) => this.#toggle(seat), describe: (seat) => this.#describe(seat) };
    this.#list = new SeatList(this.#hall, this.#seats, texts, on);
    const bar = this.#toolbar();
    this.#element.classList.add("seatmap");
    this.#element.replaceChildren(bar, this.#frame, this.#list.element, this.#legend.element, help, this.#said);
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
    const { signal } = this.#stop;
    this.#gestures = new Gestures(this.#frame, this.#view, {
      tap: (point, isTouch, isSecond) => this.#tap(point, isTouch, isSecond),
      hover: (point) => this.#hover(point),
    });
    this.#view.onmove = () => this.#moved();
    this.#sizes = new ResizeObserver(() => {
      this.#view.resize(this.#frame.clientWidth, this.#frame.clientHeight);
      this.#legend.fit();
    });
    this.#sizes.observe(this.#frame);
    this.#frame.addEventListener("keydown", (event) => this.#key(event), { signal });
    this.#frame.addEventListener("focus", () => this.#focus(), { signal });
    this.#frame.addEventListener("blur", () => this.#point(null), { signal });
    this.#frame.addEventListener("pointerdown", () => this.#point(null), { signal });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.restyle(), { signal });
  }

  #showList(isList) {
    this.#frame.hidden = isList;
    this.#buttons.zoom.hidden = isList;
    this.#legend.element.hidden = isList;
    this.#list.show(isList);
    this.#buttons.list.textContent = isList ? this.#texts.showMap : this.#texts.showList;
  }

  #shown(turned, isHighlighted) {
    this.#view.turn(turned, isHighlighted);
    this.#loseTaken();
    if (!turned.length) return;
    this.#legend.showBlocked(this.#seats.looks.includes(BLOCKED));
    this.#list.refresh();
  }

  #loseTaken() {
    const lost = this.#seats.lost();
    if (!lost.length) return;
    for (const seat of lost) this.#seats.leave(seat);
    this.#tell("change", { selected: this.selected });
    this.#tell("lost", { labels: lost.map((seat) => this.#hall.labels[seat]) });
  }

  /** Returns whether it was allowed. */
  #toggle(seat) {
    const reason = this.#seats.chosen.has(seat) ? null : this.#refusal(seat);
    if (reason) {
      const { limit, taken } = this.#texts;
      this.#say(reason === "limit" ? fill(limit, { max: this.max }) : `${this.#describe(seat)}. ${taken}`);
      this.#tell("refused", { label: this.#hall.labels[seat], state: LOOKS[this.#seats.state(seat)], reason });
      return false;
    }
    if (this.#seats.chosen.has(seat)) this.#seats.leave(seat);
    else this.#seats.choose(seat);
    this.#shown([seat], false);
    this.#tell("change", { selected: this.selected });
    return true;
  }

  #refusal(seat) {
    if (this.#seats.state(seat) !== FREE) return "taken";
    return this.max !== null && this.#seats.chosen.size >= this.max ? "limit" : null;
  }

  #tell(name, detail) {
    this.#element.dispatchEvent(new CustomEvent(`seats:${name}`, { detail, bubbles: true }));
  }

  #say(text) {
    this.#said.textContent = text;
  }

  /** A finger that covers several seats means none of them yet: it is first shown where it is. The second half of a
   * double tap must not choose what has just come under the finger. */
  #tap({ x, y }, isTouch, isSecond) {
    if (isSecond && this.#isApproached) return;
    const { camera, seatSize } = this.#view;
    const [hallX, hallY] = camera.toHall(x, y);
    const reach = Math.max((isTouch ? TARGET_REACH : MOUSE_REACH) / camera.scale, SEAT_REACH);
    const [seat, ...others] = this.#hall.around(hallX, hallY, reach);
    this.#isApproached = isTouch && seatSize < TARGET_MIN && others.length > 0;
    if (this.#isApproached) this.#view.fly(TARGET_WANTED, hallX, hallY);
    else if (seat !== undefined) this.#pick(seat);
    else if (isSecond) this.#view.zoom(2, x, y);
  }

  #isApproached = false;

  #pick(seat) {
    this.#cursor = seat;
    if (this.#toggle(seat)) this.#say(this.#describe(seat));
    this.#show(this.#view.hovered);
  }

  #hover(point) {
    const [x, y] = point ? this.#view.camera.toHall(point.x, point.y) : [0, 0];
    const reach = Math.max(MOUSE_REACH / this.#view.camera.scale, SEAT_REACH);
    const seat = point ? (this.#hall.around(x, y, reach)[0] ?? null) : null;
    if (seat === this.#view.hovered) return;
    this.#view.hovered = seat;
    this.#frame.classList.toggle("is-choosable", seat !== null && this.#refusal(seat) !== "taken");
    this.#show(seat);
    this.#view.mark();
  }

  #focus() {
    if (!this.#frame.matches(":focus-visible")) return;
    this.#cursor ??= this.#firstSeat();
    if (this.#cursor === null) return;
    this.#point(this.#cursor);
    this.#say(this.#describe(this.#cursor));
  }

  /** A chosen one, else the free one nearest to the middle of the stage. */
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
    this.#point(seat);
    this.#view.reveal(seat);
    this.#say(this.#describe(seat));
  }

  #press(seat) {
    this.#point(seat);
    this.#view.reveal(seat);
    if (this.#toggle(seat)) this.#say(this.#describe(seat));
    this.#show(seat);
  }

  #zoomOn(seat, factor) {
    const { goal } = this.#view.camera;
    this.#view.fly(goal.scale * factor, this.#hall.x[seat], this.#hall.y[seat]);
  }

  /** The ring of the keyboard, which a pointer puts out. */
  #point(seat) {
    this.#view.cursor = seat;
    this.#show(seat);
    this.#view.mark();
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

  /** The same words beside the seat, for the eye. */
  #show(seat) {
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

  #moved() {
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

/** Not the attribute of that name, which would take the focus away from whoever zooms by keyboard. */
function disable(button, isDisabled) {
  const value = String(isDisabled);
  if (button.getAttribute("aria-disabled") !== value) button.setAttribute("aria-disabled", value);
}
