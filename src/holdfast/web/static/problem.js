/** The notice that says what went wrong, with a link or with seats that help the buyer along. */

import { make } from "./dom.js";
import { say } from "./page.js";

const NEARBY = 4;

export class ProblemNotice {
  constructor(element) {
    this.element = element;
    this.map = null;
    element.querySelector("[data-close]").addEventListener("click", () => (element.hidden = true));
  }

  /** `url` and `link` lead to the buyer's own booking. `seats` are those that somebody else has. */
  show({ text, url, link, seats = [] }) {
    this.element.hidden = false;
    this.element.querySelector("[data-problem]").textContent = text;
    const offers = this.map ? this.nearby(seats) : [];
    const parts = url ? [make("a", { class: "button button--small", href: url }, link)] : [];
    if (offers.length) {
      parts.push(make("span", {}, say("nearby")), ...offers.map((label) => this.seatButton(label)));
    }
    this.element.querySelector("[data-nearby]").replaceChildren(...parts);
    this.element.scrollIntoView({ block: "nearest" });
  }

  /** Prefer as many seats side by side as the buyer wanted, then add single ones. */
  nearby(labels) {
    const counts = Array.from({ length: NEARBY }, (_, n) => labels.length + n);
    const found = labels.flatMap((label) => counts.flatMap((count) => this.map.nearby(label, count)));
    return [...new Set(found)].filter((label) => !this.map.selected.includes(label)).slice(0, NEARBY);
  }

  seatButton(label) {
    const button = make("button", { type: "button", class: "button button--quiet button--small" }, label);
    button.addEventListener("click", () => {
      this.map.select(label, true);
      button.remove();
    });
    return button;
  }
}
