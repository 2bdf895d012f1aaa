// The legend: what colours, shapes and symbols mean.

import { make } from "./dom.js";
import { drawSeat, styleOf } from "./seatmap_glyphs.js";
import { BLOCKED, FREE, HELD, LOOKS, MINE, SELECTED, SOLD } from "./seatmap_seats.js";

const SIZE = 18;
const SHOWN = [FREE, SELECTED, MINE, HELD, SOLD, BLOCKED];

export class Legend {
  constructor(hall, texts) {
    this.#swatches = [];
    const pools = hall.pools.map((pool, index) => this.#pool(pool, styleOf(index)));
    const states = SHOWN.map((look) => this.#entry(look, 0, texts[LOOKS[look]]));
    this.#blocked = states[SHOWN.indexOf(BLOCKED)];
    this.element = make(
      "div",
      { class: "seatmap-legend", role: "group", "aria-label": texts.legend },
      make("ul", { class: "seatmap-pools" }, ...pools),
      make("ul", { class: "seatmap-states" }, ...states),
    );
  }

  #swatches;
  #blocked;

  /** Most halls have no blocked seats and need no entry for them. */
  showBlocked(isShown) {
    this.#blocked.hidden = !isShown;
  }

  /** The keyboard must reach the legend if it scrolls, and may skip it otherwise. */
  fit() {
    if (this.element.scrollHeight > this.element.clientHeight + 1) this.element.tabIndex = 0;
    else this.element.removeAttribute("tabindex");
  }

  #pool(pool, style) {
    const prices = make("span", { class: "seatmap-prices" }, pool.prices);
    return this.#entry(FREE, style, make("span", { class: "seatmap-pool" }, pool.name), prices);
  }

  #entry(look, style, ...words) {
    const canvas = make("canvas", { class: "seatmap-swatch", "aria-hidden": "true" });
    this.#swatches.push({ canvas, look, style });
    return make("li", {}, canvas, make("span", {}, ...words));
  }

  paint(theme) {
    for (const { canvas, look, style } of this.#swatches) {
      canvas.width = canvas.height = Math.round(SIZE * devicePixelRatio);
      drawSeat(canvas.getContext("2d"), look, style, canvas.width, theme, devicePixelRatio);
    }
  }
}
