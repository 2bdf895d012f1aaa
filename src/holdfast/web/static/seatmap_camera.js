// Which part of the hall is visible, and at what scale. Sizes are in CSS pixels, positions in hall units.

const SEAT_MAX = 48;
const MARGIN_ACROSS = 36;
const MARGIN_BELOW = 16;
/** Room for the name of the first pool and for the stage, which does not scale. */
const MARGIN_ABOVE = 34;
export const STAGE = { height: 30, gap: 10 };
const FLIGHT_MS = 240;

export class Camera {
  constructor(hall) {
    const { left, top, right, bottom } = hall.bounds;
    this.box = { left: left - 0.5, top: top - 0.5, right: right + 0.5, bottom: bottom + 0.5 };
    this.above = MARGIN_ABOVE + (hall.stage ? STAGE.height + STAGE.gap : 0);
    this.width = 0;
    this.height = 0;
    this.scale = 1;
    this.x = (this.box.left + this.box.right) / 2;
    this.y = (this.box.top + this.box.bottom) / 2;
    this.#flight = null;
  }

  #flight;

  /** The scale at which the whole hall fits, in whole device pixels so that equal gaps look equal. */
  get fitScale() {
    const across = (this.width - 2 * MARGIN_ACROSS) / (this.box.right - this.box.left);
    const along = (this.height - this.above - MARGIN_BELOW) / (this.box.bottom - this.box.top);
    const scale = Math.max(0.2, Math.min(across, along, SEAT_MAX));
    return scale * devicePixelRatio < 2 ? scale : Math.floor(scale * devicePixelRatio) / devicePixelRatio;
  }

  get isFit() {
    return this.scale <= this.fitScale * 1.001;
  }

  get closest() {
    return SEAT_MAX;
  }

  get isClosest() {
    return this.scale >= SEAT_MAX * 0.999;
  }

  resize(width, height) {
    const wasFit = this.width === 0 || this.isFit;
    this.width = width;
    this.height = height;
    this.look(wasFit ? this.fitScale : this.scale, this.x, this.y);
  }

  look(scale, x, y) {
    this.#flight = null;
    this.#settle(scale, x, y);
  }

  #settle(scale, x, y) {
    this.scale = Math.max(this.fitScale, Math.min(SEAT_MAX, scale));
    const { left, top, right, bottom } = this.box;
    const margin = MARGIN_ACROSS / this.scale;
    this.x = within(x, left - margin, right + margin, this.width / this.scale);
    this.y = within(y, top - this.above / this.scale, bottom + MARGIN_BELOW / this.scale, this.height / this.scale);
  }

  moveBy(dx, dy) {
    this.look(this.scale, this.x - dx / this.scale, this.y - dy / this.scale);
  }

  /** Zoom around a point of the screen. */
  zoomAt(px, py, factor) {
    const [x, y] = this.toHall(px, py);
    const scale = Math.max(this.fitScale, Math.min(SEAT_MAX, this.scale * factor));
    this.look(scale, x - (px - this.width / 2) / scale, y - (py - this.height / 2) / scale);
  }

  /** Start an animated move; `advance` takes each step. */
  fly(scale, x, y) {
    const from = { scale: this.scale, x: this.x, y: this.y };
    this.#settle(scale, x, y);
    const to = { scale: this.scale, x: this.x, y: this.y };
    Object.assign(this, from);
    this.#flight = { from, to, start: performance.now() };
  }

  advance(now) {
    if (!this.#flight) return false;
    const { from, to, start } = this.#flight;
    const part = Math.min(1, Math.max(0, (now - start) / FLIGHT_MS));
    const eased = 1 - (1 - part) ** 3;
    this.scale = from.scale * (to.scale / from.scale) ** eased;
    this.x = from.x + (to.x - from.x) * eased;
    this.y = from.y + (to.y - from.y) * eased;
    if (part === 1) this.#flight = null;
    return true;
  }

  /** The target of the current animation, or the current view. */
  get goal() {
    return this.#flight?.to ?? this;
  }

  toScreen(x, y) {
    return [(x - this.x) * this.scale + this.width / 2, (y - this.y) * this.scale + this.height / 2];
  }

  toHall(px, py) {
    return [this.x + (px - this.width / 2) / this.scale, this.y + (py - this.height / 2) / this.scale];
  }
}

function within(at, low, high, seen) {
  if (high - low <= seen) return (low + high) / 2;
  return Math.max(low + seen / 2, Math.min(high - seen / 2, at));
}
