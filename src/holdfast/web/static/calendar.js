/** The calendar of an event with slots: days, the slots of one day, and the tariffs of one slot. The event may have a
    thousand slots; the page has only those of the chosen day. */

import { daysOf, monthOf, nameOf, weekdayLetters } from "./calendar_days.js";
import { make } from "./dom.js";
import { icon, money, page, say } from "./page.js";
import { isAvailable, showBadge } from "./pool_boxes.js";
import { showSlot } from "./slot_panel.js";

export class SlotCalendar extends EventTarget {
  constructor(element, panel) {
    super();
    this.element = element;
    this.panel = panel;
    this.left = new Map();
    this.days = groupByDay();
    this.day = page.calendar.day;
    this.slot = page.calendar.slot;
    this.render();
  }

  /** Show what is left now, without moving anything. */
  update(left) {
    this.left = left;
    this.cells.forEach((cell, day) => cell.classList.toggle("day--out", !this.isFree(day)));
    this.rows.forEach(({ button, badge, slot }) => {
      showBadge(badge, slot, left);
      button.disabled = !isAvailable(slot, left);
      button.classList.toggle("slot--out", button.disabled);
    });
  }

  isFree(day) {
    return this.days.get(day).some((slot) => isAvailable(slot, this.left));
  }

  render() {
    this.cells = new Map();
    this.rows = [];
    const days = page.calendar.showsMonths ? this.month() : this.chips();
    const slots = make("ul", { class: "slots" }, ...this.days.get(this.day).map((slot) => this.row(slot)));
    this.element.replaceChildren(days, make("h3", {}, nameOf(this.day, "day")), slots);
    this.update(this.left);
  }

  chips() {
    const days = this.days.size > 1 ? [...this.days.keys()] : [];
    return make("div", { class: "chips" }, ...days.map((day) => this.cell(day, true)));
  }

  month() {
    const { weekStart } = page.calendar;
    const month = monthOf(this.day);
    const months = [...new Set([...this.days.keys()].map(monthOf))];
    const at = months.indexOf(month);
    const head = make(
      "div",
      { class: "month__head" },
      this.monthButton(months[at - 1], "previousMonth", "left"),
      make("strong", {}, nameOf(this.day, "monthAndYear")),
      this.monthButton(months[at + 1], "nextMonth", "right"),
    );
    const letters = weekdayLetters(weekStart).map((letter) => make("small", { "aria-hidden": "true" }, letter));
    const cells = daysOf(month, weekStart).map((day) => this.cell(day, false));
    return make("div", { class: "month" }, head, make("div", { class: "month__days" }, ...letters, ...cells));
  }

  monthButton(month, key, name) {
    const attributes = { type: "button", class: "button button--plain button--icon", "aria-label": say(key) };
    const button = make("button", attributes, icon(name));
    button.disabled = month === undefined;
    button.addEventListener("click", () => {
      const days = [...this.days.keys()].filter((day) => monthOf(day) === month);
      this.showDay(days.find((day) => this.isFree(day)) ?? days[0]);
      this.element.querySelector(`[aria-label="${CSS.escape(say(key))}"]:enabled`)?.focus();
    });
    return button;
  }

  cell(day, isChip) {
    if (day === null || !this.days.has(day)) {
      return make("span", { class: "day day--none" }, day === null ? "" : String(Number(day.slice(8))));
    }
    const number = make("strong", {}, String(Number(day.slice(8))));
    const small = (kind) => make("small", {}, nameOf(day, kind));
    const parts = isChip ? [small("weekday"), number, small("month")] : [number];
    const current = day === this.day ? { "aria-current": "date" } : {};
    const label = { "aria-label": nameOf(day, "day"), "data-day": day };
    const button = make("button", { type: "button", class: "day", ...label, ...current }, ...parts);
    button.addEventListener("click", () => {
      this.showDay(day);
      this.element.querySelector(`[data-day="${day}"]`).focus();
    });
    this.cells.set(day, button);
    return button;
  }

  row(slot) {
    const badge = make("span", { class: "badge" });
    const lowest = Math.min(...slot.tariffs.map((tariff) => tariff.price));
    const price = slot.tariffs.length > 1 && lowest ? say("from", { price: money(lowest) }) : lowest ? money(lowest) : say("free");
    const pressed = { "aria-pressed": String(slot.code === this.slot), "data-slot": slot.code };
    const button = make(
      "button",
      { type: "button", class: "slot", ...pressed },
      make("span", { class: "slot__time" }, slot.time),
      make("span", { class: "slot__name" }, slot.name),
      make("span", { class: "slot__price price" }, price),
      badge,
    );
    button.addEventListener("click", () => this.choose(slot));
    this.rows.push({ button, badge, slot });
    return make("li", {}, button);
  }

  showDay(day) {
    this.day = day;
    this.render();
  }

  choose(slot) {
    this.slot = slot.code;
    this.rows.forEach(({ button }) => button.setAttribute("aria-pressed", String(button.dataset.slot === slot.code)));
    showSlot(this.panel, slot, nameOf(slot.day, "day"));
    this.remember();
    this.dispatchEvent(new Event("choose"));
    this.panel.scrollIntoView({ block: "nearest" });
  }

  /** A reload shows the same slot. */
  remember() {
    const url = new URL(location.href);
    url.searchParams.set("day", this.day);
    url.searchParams.set("slot", this.slot);
    history.replaceState(null, "", url.pathname.replace(/\/hold$/, "") + url.search);
  }
}

/** The slots of each day, in the order of their start. */
function groupByDay() {
  const slots = page.pools.map((pool, number) => ({ ...pool, number })).filter((pool) => pool.day && !pool.seated);
  slots.sort((one, other) => one.startsAt - other.startsAt || one.number - other.number);
  const days = new Map(slots.map((slot) => [slot.day, []]));
  slots.forEach((slot) => days.get(slot.day).push(slot));
  return days;
}
