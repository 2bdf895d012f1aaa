// Draws one seat. Every pool has its own tone and shape, and every state its own symbol, so nothing depends on colour
// alone.

import { BLOCKED, FREE, HELD, MINE, SELECTED, SOLD } from "./seatmap_seats.js";

const TONES = 6;
const PLAIN_BELOW = 7;
const BYTES_MAX = 32_000_000;

/** One of 36 combinations of tone and shape, so that the seventh pool does not look like the first. */
export function styleOf(pool) {
  return (pool % TONES) * TONES + ((pool + Math.floor(pool / TONES)) % TONES);
}

/** Draw into a square of `size` at the origin. `ratio` is the number of device pixels per CSS pixel. */
export function drawSeat(context, look, style, size, theme, ratio = 1) {
  const colour = colourOf(look, style, theme);
  context.fillStyle = colour;
  context.strokeStyle = colour;
  context.lineCap = "round";
  context.lineJoin = "round";
  (size < PLAIN_BELOW ? PLAIN : FULL)[look](context, size, theme.on(colour), style, ratio * 0.7);
}

export function colourOf(look, style, theme) {
  if (look === FREE) return theme.free[Math.floor(style / TONES)];
  if (look === HELD) return theme.held;
  if (look === SELECTED) return theme.selected;
  return look === MINE ? theme.mine : theme.sold;
}

const PLAIN = {
  [FREE]: (context, size) => context.fillRect(0, 0, size, size),
  [HELD]: (context, size) => frame(context, size),
  [SOLD]: (context, size) => middle(context, size, Math.ceil(size / 3), Math.ceil(size / 3)),
  [BLOCKED]: (context, size) => middle(context, size, Math.round(size / 2), 1),
  [SELECTED]: (context, size) => context.fillRect(0, 0, size, size),
  [MINE]: (context, size) => context.fillRect(0, 0, size, size),
};

function frame(context, size) {
  const line = Math.max(1, Math.round(size / 5));
  if (size < 3) {
    context.globalAlpha = 0.6;
    context.fillRect(0, 0, size, size);
    context.globalAlpha = 1;
    return;
  }
  context.fillRect(0, 0, size, line);
  context.fillRect(0, size - line, size, line);
  context.fillRect(0, 0, line, size);
  context.fillRect(size - line, 0, line, size);
}

function middle(context, size, width, height) {
  context.fillRect(Math.floor((size - width) / 2), Math.floor((size - height) / 2), width, height);
}

const FULL = {
  [FREE]: (context, size, _, style) => {
    SHAPES[style % TONES](context, size);
    context.fill();
  },
  [HELD]: (context, size, _, style, thin) => {
    const line = Math.max(thin, size * 0.08);
    context.lineWidth = line;
    context.beginPath();
    context.roundRect(line / 2, line / 2, size - line, size - line, size * 0.26);
    context.stroke();
    context.beginPath();
    context.arc(size / 2, size / 2, size * 0.14, 0, 7);
    context.fill();
  },
  [SOLD]: (context, size, _, style, thin) => {
    context.lineWidth = Math.max(thin, size * 0.08);
    const [low, high] = [size * 0.32, size * 0.68];
    lines(context, [low, low, high, high], [high, low, low, high]);
  },
  [BLOCKED]: (context, size, _, style, thin) => {
    context.lineWidth = Math.max(thin, size * 0.06);
    context.globalAlpha = 0.6;
    lines(context, [size * 0.36, size / 2, size * 0.64, size / 2]);
    context.globalAlpha = 1;
  },
  [SELECTED]: (context, size, ink) => {
    context.beginPath();
    context.roundRect(0, 0, size, size, size * 0.28);
    context.fill();
    context.strokeStyle = ink;
    context.lineWidth = size * 0.13;
    lines(context, [size * 0.27, size * 0.53, size * 0.43, size * 0.69, size * 0.74, size * 0.33]);
  },
  [MINE]: (context, size, ink) => {
    context.beginPath();
    context.arc(size / 2, size / 2, size / 2, 0, 7);
    context.fill();
    context.fillStyle = ink;
    star(context, size / 2, size * 0.36);
    context.fill();
  },
};

function lines(context, ...paths) {
  context.beginPath();
  for (const path of paths) {
    context.moveTo(path[0], path[1]);
    for (let at = 2; at < path.length; at += 2) context.lineTo(path[at], path[at + 1]);
  }
  context.stroke();
}

function star(context, middleAt, radius) {
  context.beginPath();
  for (let point = 0; point < 10; point += 1) {
    const [angle, reach] = [(point * Math.PI) / 5 - Math.PI / 2, point % 2 ? radius * 0.45 : radius];
    context.lineTo(middleAt + Math.cos(angle) * reach, middleAt + Math.sin(angle) * reach);
  }
  context.closePath();
}

const SHAPES = [
  (context, size) => rounded(context, size, [0.26, 0.26, 0.26, 0.26]),
  (context, size) => rounded(context, size, [0.5, 0.5, 0.5, 0.5]),
  (context, size) => polygon(context, size, [0.3, 0, 0.7, 0, 1, 0.3, 1, 0.7, 0.7, 1, 0.3, 1, 0, 0.7, 0, 0.3]),
  (context, size) => rounded(context, size, [0.08, 0.08, 0.5, 0.5]),
  (context, size) => polygon(context, size, [0.24, 0, 0.76, 0, 1, 0.5, 0.76, 1, 0.24, 1, 0, 0.5]),
  (context, size) => rounded(context, size, [0.5, 0.06, 0.5, 0.06]),
];

function rounded(context, size, radii) {
  context.beginPath();
  context.roundRect(0, 0, size, size, radii.map((radius) => radius * size));
}

function polygon(context, size, points) {
  context.beginPath();
  for (let at = 0; at < points.length; at += 2) context.lineTo(points[at] * size, points[at + 1] * size);
  context.closePath();
}

/** Seats as pixels on the background. Copying them is many times faster than drawing on the canvas. */
export class Sprites {
  constructor(theme) {
    this.theme = theme;
    this.#known = new Map();
    this.#bytes = 0;
    this.#context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  }

  #known;
  #bytes;
  #context;

  /** The sprites of one size, by look, style and number. */
  of(size) {
    if (this.#bytes > BYTES_MAX) {
      this.#known.clear();
      this.#bytes = 0;
    }
    if (!this.#known.has(size)) this.#known.set(size, new Map());
    return this.#known.get(size);
  }

  /** One background pixel. */
  ground() {
    this.#context.fillStyle = this.theme.background;
    this.#context.fillRect(0, 0, 1, 1);
    return new Uint32Array(this.#context.getImageData(0, 0, 1, 1).data.buffer)[0];
  }

  make(look, style, size, number, ratio) {
    const context = this.#context;
    if (context.canvas.width < size) context.canvas.width = context.canvas.height = size;
    context.fillStyle = this.theme.background;
    context.fillRect(0, 0, size, size);
    drawSeat(context, look, style, size, this.theme, ratio);
    if (number) this.#write(number, look, style, size);
    this.#bytes += size * size * 4;
    return new Uint32Array(context.getImageData(0, 0, size, size).data.buffer);
  }

  #write(number, look, style, size) {
    const context = this.#context;
    context.fillStyle = this.theme.on(colourOf(look, style, this.theme));
    context.font = `600 ${Math.round(size * (number.length > 2 ? 0.38 : 0.46))}px ${this.theme.font}`;
    context.textAlign = "center";
    context.textBaseline = "alphabetic";
    const { actualBoundingBoxAscent: above, actualBoundingBoxDescent: below } = context.measureText("0");
    context.fillText(number, size / 2, (size + above - below) / 2, size * 0.86);
  }
}
