// Draws the map. The lower canvas has the seats, copied as pixels when the camera or a seat changes; the upper one has
// labels, rings and highlights. Each is drawn at most once a frame.

import { Camera } from "./seatmap_camera.js";
import { drawSeat, Sprites, styleOf } from "./seatmap_glyphs.js";
import { drawLabels } from "./seatmap_labels.js";
import { FREE, MINE, SELECTED } from "./seatmap_seats.js";

const NUMBERS_FROM = 18;
const NUMBERS_PER_FRAME = 150;
const PIN_BELOW = 14;
const PIN_SIZE = 16;
const PULSE_MS = 900;
const PULSES_MAX = 400;
const CHANGED_MAX = 300;

export class View {
  constructor(frame, hall, seats) {
    this.hall = hall;
    this.seats = seats;
    this.camera = new Camera(hall);
    this.cursor = null;
    this.hovered = null;
    this.onmove = () => {};
    this.#styles = Uint8Array.from(hall.pools, (_, pool) => styleOf(pool));
    this.#below = addCanvas(frame, { alpha: false });
    this.#above = addCanvas(frame, {});
    this.#reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");
  }

  #styles;
  #below;
  #above;
  #reducedMotion;
  #theme = null;
  #sprites;
  #image = null;
  #pixels;
  #ratio = 1;
  #isStale = true;
  #changed = new Set();
  #pulses = new Map();
  #frameRequest = 0;
  #isPainted = false;
  #numbersLeft = 0;

  restyle(theme) {
    this.#theme = theme;
    this.#sprites = new Sprites(theme);
    this.refresh();
  }

  resize(width, height) {
    if (!width || !height) return;
    this.#ratio = devicePixelRatio;
    for (const { canvas } of [this.#below, this.#above]) {
      canvas.width = Math.round(width * this.#ratio);
      canvas.height = Math.round(height * this.#ratio);
      canvas.style.width = `${canvas.width / this.#ratio}px`;
      canvas.style.height = `${canvas.height / this.#ratio}px`;
    }
    this.#image = this.#below.createImageData(this.#below.canvas.width, this.#below.canvas.height);
    this.#pixels = new Uint32Array(this.#image.data.buffer);
    this.camera.resize(width, height);
    this.refresh();
  }

  /** Draw everything again. */
  refresh() {
    this.#isStale = true;
    this.#requestFrame();
  }

  /** Draw only the upper canvas again. */
  refreshAbove() {
    this.#requestFrame();
  }

  addChanged(seats, isHighlighted) {
    for (const seat of seats) this.#changed.add(seat);
    if (isHighlighted && !this.#reducedMotion.matches) this.#pulse(seats);
    if (seats.length) this.#requestFrame();
  }

  fly(scale, x, y) {
    if (this.#reducedMotion.matches) this.camera.look(scale, x, y);
    else this.camera.fly(scale, x, y);
    this.refresh();
  }

  /** Zoom in whole device pixels, like `fitScale`. */
  zoom(factor, px = this.camera.width / 2, py = this.camera.height / 2) {
    const { goal } = this.camera;
    const wanted = Math.round(goal.scale * factor * this.#ratio) / this.#ratio;
    const [x, y] = this.camera.toHall(px, py);
    const scale = Math.max(this.camera.fitScale, Math.min(wanted, this.camera.closest));
    this.fly(scale, x - (px - this.camera.width / 2) / scale, y - (py - this.camera.height / 2) / scale);
  }

  reveal(seat) {
    const { goal, width, height } = this.camera;
    const [dx, dy] = [this.hall.x[seat] - goal.x, this.hall.y[seat] - goal.y];
    const [reachX, reachY] = [Math.max(0, width / 2 - 60) / goal.scale, Math.max(0, height / 2 - 60) / goal.scale];
    const x = goal.x + Math.sign(dx) * Math.max(0, Math.abs(dx) - reachX);
    const y = goal.y + Math.sign(dy) * Math.max(0, Math.abs(dy) - reachY);
    if (x !== goal.x || y !== goal.y) this.fly(goal.scale, x, y);
    this.refreshAbove();
  }

  /** The size of a seat, in CSS pixels. */
  get seatSize() {
    return this.#size() / this.#ratio;
  }

  #pulse(seats) {
    const now = performance.now();
    for (const seat of seats) {
      if (this.#pulses.size >= PULSES_MAX) return;
      this.#pulses.set(seat, now);
    }
  }

  #requestFrame() {
    if (this.#frameRequest === 0) this.#frameRequest = requestAnimationFrame((now) => this.#draw(now));
  }

  #draw(now) {
    this.#frameRequest = 0;
    if (!this.#image || !this.#theme) return;
    if (this.#ratio !== devicePixelRatio) this.resize(this.camera.width, this.camera.height);
    const isMoving = this.camera.advance(now);
    this.#drawSeats(isMoving);
    this.#drawAbove(now);
    this.onmove();
    if (isMoving || this.#isStale || this.#pulses.size) this.#requestFrame();
    if (!this.#isPainted) this.#markPainted();
  }

  /** When the next frame starts, this one is on the screen. */
  #markPainted() {
    this.#isPainted = true;
    requestAnimationFrame(() => performance.mark("seatmap:painted"));
  }

  #drawSeats(isMoving) {
    this.#numbersLeft = NUMBERS_PER_FRAME;
    if (this.#isStale || isMoving || this.#changed.size > CHANGED_MAX) this.#drawAll();
    else if (this.#changed.size) this.#drawChanged();
    this.#changed.clear();
  }

  /** The picture stays stale if one frame could not draw all new numbers. */
  #drawAll() {
    this.#isStale = false;
    const draw = this.#stamp();
    this.#pixels.fill(this.#groundPixel());
    const [left, top] = this.camera.toHall(0, 0);
    const [right, bottom] = this.camera.toHall(this.camera.width, this.camera.height);
    this.hall.visit(left - 1, top - 1, right + 1, bottom + 1, draw);
    this.#below.putImageData(this.#image, 0, 0);
  }

  #drawChanged() {
    const draw = this.#stamp();
    const size = this.#size();
    for (const seat of this.#changed) {
      const [left, top] = draw(seat);
      this.#below.putImageData(this.#image, 0, 0, left, top, size, size);
    }
  }

  /** Returns a function that copies a seat to its place and returns that place. */
  #stamp() {
    const { camera, hall } = this;
    const [size, ratio] = [this.#size(), this.#ratio];
    const sprites = this.#sprites.of(size);
    const scale = camera.scale * ratio;
    const dx = Math.round((camera.width / 2) * ratio - camera.x * scale);
    const dy = Math.round((camera.height / 2) * ratio - camera.y * scale);
    const hasNumbers = size / ratio >= NUMBERS_FROM;
    return (seat) => {
      const left = Math.round(hall.x[seat] * scale - size / 2) + dx;
      const top = Math.round(hall.y[seat] * scale - size / 2) + dy;
      this.#copy(this.#sprite(sprites, seat, size, hasNumbers), size, left, top);
      return [left, top];
    };
  }

  #sprite(sprites, seat, size, hasNumbers) {
    const look = this.seats.looks[seat];
    const style = look === FREE ? this.#styles[this.hall.pool[seat]] : 0;
    const number = hasNumbers && look === FREE ? this.hall.numbers[seat] : null;
    const key = look + 8 * style + 512 * (number == null ? 0 : number + 2_000_000);
    const known = sprites.get(key);
    if (known) return known;
    if (number != null && this.#numbersLeft-- <= 0) {
      this.#isStale = true;
      return this.#sprite(sprites, seat, size, false);
    }
    const made = this.#sprites.make(look, style, size, number == null ? "" : String(number), this.#ratio);
    sprites.set(key, made);
    return made;
  }

  #copy(sprite, size, left, top) {
    const { width, height } = this.#image;
    const pixels = this.#pixels;
    const [firstX, lastX] = [Math.max(0, -left), Math.min(size, width - left)];
    const [firstY, lastY] = [Math.max(0, -top), Math.min(size, height - top)];
    for (let y = firstY; y < lastY; y += 1) {
      let to = (top + y) * width + left + firstX;
      for (let from = y * size + firstX; from < y * size + lastX; from += 1) {
        pixels[to] = sprite[from];
        to += 1;
      }
    }
  }

  /** In device pixels, with a gap between seats while there is room for one. */
  #size() {
    const pitch = this.camera.scale * this.#ratio;
    return Math.max(1, Math.min(Math.round(pitch * 0.82), Math.ceil(pitch) - 1));
  }

  #groundPixel() {
    const sprites = this.#sprites.of(1);
    if (!sprites.has(-1)) sprites.set(-1, this.#sprites.ground());
    return sprites.get(-1);
  }

  #drawAbove(now) {
    const context = this.#above;
    const theme = this.#theme;
    context.setTransform(this.#ratio, 0, 0, this.#ratio, 0, 0);
    context.clearRect(0, 0, this.camera.width + 1, this.camera.height + 1);
    this.#drawPulses(context, now);
    drawLabels(context, this.hall, this.camera, theme, this.#styles);
    if (this.seatSize < PIN_BELOW) this.#drawPins(context);
    if (this.hovered !== null) this.#drawRing(context, this.hovered, theme.text, 2);
    if (this.cursor !== null) this.#drawCursor(context);
  }

  #drawPulses(context, now) {
    context.strokeStyle = this.#theme.text;
    context.lineWidth = 2;
    for (const [seat, start] of this.#pulses) {
      const part = (now - start) / PULSE_MS;
      if (part >= 1) {
        this.#pulses.delete(seat);
        continue;
      }
      context.globalAlpha = 0.75 * (1 - Math.max(0, part));
      const reach = Math.max(this.seatSize, 8) * (0.6 + 0.4 * part);
      this.#ring(context, seat, reach);
    }
    context.globalAlpha = 1;
  }

  #ring(context, seat, reach) {
    const [x, y] = this.camera.toScreen(this.hall.x[seat], this.hall.y[seat]);
    if (x < -reach || y < -reach || x > this.camera.width + reach || y > this.camera.height + reach) return;
    context.beginPath();
    context.roundRect(x - reach, y - reach, 2 * reach, 2 * reach, reach * 0.6);
    context.stroke();
  }

  /** When zoomed out, this buyer's own and selected seats are drawn larger than the others. */
  #drawPins(context) {
    const { looks, chosen, mine } = this.seats;
    for (const seat of chosen) this.#drawPin(context, seat, looks[seat]);
    for (let seat = mine.indexOf(1); seat >= 0; seat = mine.indexOf(1, seat + 1)) this.#drawPin(context, seat, MINE);
  }

  #drawPin(context, seat, look) {
    const [x, y] = this.camera.toScreen(this.hall.x[seat], this.hall.y[seat]);
    context.save();
    context.translate(x - PIN_SIZE / 2, y - PIN_SIZE / 2);
    context.fillStyle = this.#theme.background;
    context.beginPath();
    context.roundRect(-1.5, -1.5, PIN_SIZE + 3, PIN_SIZE + 3, look === SELECTED ? 6 : PIN_SIZE);
    context.fill();
    drawSeat(context, look, 0, PIN_SIZE, this.#theme);
    context.restore();
  }

  #drawCursor(context) {
    this.#drawRing(context, this.cursor, this.#theme.background, 6);
    this.#drawRing(context, this.cursor, this.#theme.text, 3);
  }

  #drawRing(context, seat, colour, width) {
    context.strokeStyle = colour;
    context.lineWidth = width;
    this.#ring(context, seat, Math.max(this.seatSize / 2 + 3, 9));
  }
}

function addCanvas(frame, options) {
  const canvas = document.createElement("canvas");
  canvas.setAttribute("aria-hidden", "true");
  frame.append(canvas);
  return canvas.getContext("2d", options);
}
