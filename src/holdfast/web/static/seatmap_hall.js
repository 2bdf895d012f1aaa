// The place of every seat. One unit is the usual distance between neighbours, and y grows away from the stage.

const GAP_ACROSS = 5;
const GAP_ALONG = 4;
const LINE_MAX = 60;
const SAMPLES_MAX = 200;

export class Hall {
  /** `shape` is the screen's width divided by its height. Seats without coordinates are arranged to fit it. */
  constructor(layout, shape) {
    this.pools = layout.pools;
    this.stage = layout.stage;
    this.count = layout.seats.length;
    this.labels = layout.seats.map((seat) => seat[0]);
    this.numbers = layout.seats.map((seat) => seat[3]);
    this.pool = Uint16Array.from(layout.seats, (seat) => seat[1]);
    this.row = new Uint32Array(this.count);
    this.x = new Float64Array(this.count);
    this.y = new Float64Array(this.count);
    this.rows = gatherRows(layout.seats, this.row);
    this.#byLabel = new Map(this.labels.map((label, seat) => [label, seat]));
    placeSeats(this, layout.seats, shape);
    this.rows.forEach((row) => sortAlong(this, row));
    this.bounds = boundsOf(this, allOf(this.count));
    this.areas = areasOf(this);
    this.#index = new Cells(this);
  }

  #byLabel;
  #index;

  find(label) {
    return this.#byLabel.get(label);
  }

  /** Call `see` with every seat inside the box. */
  visit(left, top, right, bottom, see) {
    this.#index.visit(left, top, right, bottom, see);
  }

  hasSeatIn(left, top, right, bottom) {
    let isFound = false;
    this.visit(left, top, right, bottom, (seat) => {
      const [x, y] = [this.x[seat], this.y[seat]];
      isFound ||= x > left && x < right && y > top && y < bottom;
    });
    return isFound;
  }

  /** Seats within `reach` of a point, nearest first. */
  around(x, y, reach) {
    const found = [];
    this.visit(x - reach, y - reach, x + reach, y + reach, (seat) => {
      const away = Math.hypot(this.x[seat] - x, this.y[seat] - y);
      if (away <= reach) found.push([away, seat]);
    });
    return found.sort((one, other) => one[0] - other[0]).map(([, seat]) => seat);
  }
}

function gatherRows(seats, rowOf) {
  const known = new Map();
  seats.forEach(([, pool, name], seat) => {
    const key = `${pool} ${name ?? ""}`;
    if (!known.has(key)) known.set(key, { index: known.size, pool, name: name ?? "", rank: 0, seats: [] });
    const row = known.get(key);
    row.seats.push(seat);
    rowOf[seat] = row.index;
  });
  const rows = [...known.values()];
  const ranks = new Map();
  for (const row of rows) {
    row.rank = ranks.get(row.pool) ?? 0;
    ranks.set(row.pool, row.rank + 1);
  }
  return rows;
}

/** Pools with coordinates keep them. A pool with any coordinate missing becomes a block of rows. */
function placeSeats(hall, seats, shape) {
  const isLoose = new Set(seats.filter((seat) => seat[4] == null || seat[5] == null).map((seat) => seat[1]));
  const placed = allOf(hall.count).filter((seat) => !isLoose.has(hall.pool[seat]));
  for (const seat of placed) [hall.x[seat], hall.y[seat]] = [seats[seat][4], seats[seat][5]];
  scaleToUnits(hall, placed);
  const ground = boundsOf(hall, placed);
  const top = placed.length ? ground.bottom + GAP_ALONG : 0;
  const blocks = [...isLoose].sort((one, other) => one - other).map((pool) => blockOf(hall, pool, shape));
  stackBlocks(hall, blocks, shape, (ground.left + ground.right) / 2, top);
}

function scaleToUnits(hall, seats) {
  const pitch = usualPitch(hall, seats);
  for (const seat of seats) {
    hall.x[seat] /= pitch;
    hall.y[seat] /= pitch;
  }
}

/** The 10th percentile of the distance to the nearest neighbour. With larger seats, many would overlap. */
function usualPitch(hall, seats) {
  const step = Math.max(1, Math.floor(seats.length / SAMPLES_MAX));
  const found = [];
  for (let at = 0; at < seats.length; at += step) {
    const nearest = nearestDistance(hall, seats, seats[at]);
    if (nearest < Infinity) found.push(nearest);
  }
  found.sort((one, other) => one - other);
  return found[Math.floor(found.length / 10)] ?? 1;
}

function nearestDistance(hall, seats, from) {
  let nearest = Infinity;
  for (const seat of seats) {
    const square = (hall.x[seat] - hall.x[from]) ** 2 + (hall.y[seat] - hall.y[from]) ** 2;
    if (square > 0 && square < nearest) nearest = square;
  }
  return Math.sqrt(nearest);
}

function blockOf(hall, pool, shape) {
  const lines = hall.rows.filter((row) => row.pool === pool).flatMap((row) => linesOf(hall, row, shape));
  return { lines, width: Math.max(...lines.map((line) => line.width)), height: lines.length };
}

/** A named row is one line, with gaps for missing numbers. Seats without a row wrap like words in a paragraph. */
function linesOf(hall, row, shape) {
  if (!row.name && row.seats.length > LINE_MAX) return wrapLines(row.seats, shape);
  const numbers = row.seats.map((seat) => hall.numbers[seat]);
  const isNumbered = numbers.every((number) => number != null);
  const first = Math.min(...numbers);
  const width = isNumbered ? Math.max(...numbers) - first + 1 : Infinity;
  if (width > 1.5 * row.seats.length) return [lineOf(row.seats)];
  return [{ seats: row.seats, places: numbers.map((number) => number - first), width }];
}

function wrapLines(seats, shape) {
  const width = Math.ceil(Math.sqrt(seats.length * shape));
  const lines = [];
  for (let at = 0; at < seats.length; at += width) lines.push(lineOf(seats.slice(at, at + width)));
  return lines;
}

function lineOf(seats) {
  return { seats, places: seats.map((_, place) => place), width: seats.length };
}

/** Stack the blocks, in as many columns as fit the screen best. */
function stackBlocks(hall, blocks, shape, middle, top) {
  if (!blocks.length) return;
  let y = top;
  for (const tier of tiersOf(blocks, bestColumns(blocks, shape))) {
    let x = middle - widthOf(tier) / 2;
    for (const block of tier) {
      placeBlock(hall, block, x + 0.5, y);
      x += block.width + GAP_ACROSS;
    }
    y += heightOf(tier) + GAP_ALONG;
  }
}

function placeBlock(hall, block, left, top) {
  block.lines.forEach((line, at) => {
    const start = left + Math.floor((block.width - line.width) / 2);
    line.seats.forEach((seat, number) => {
      hall.x[seat] = start + line.places[number];
      hall.y[seat] = top + at;
    });
  });
}

function bestColumns(blocks, shape) {
  let best = [Infinity, 1];
  for (let columns = 1; columns <= blocks.length; columns += 1) {
    const tiers = tiersOf(blocks, columns);
    const height = tiers.reduce((sum, tier) => sum + heightOf(tier) + GAP_ALONG, 0);
    const width = Math.max(...tiers.map(widthOf));
    const badness = Math.abs(Math.log(width / height / shape));
    if (badness < best[0]) best = [badness, columns];
  }
  return best[1];
}

function tiersOf(blocks, columns) {
  const tiers = [];
  for (let at = 0; at < blocks.length; at += columns) tiers.push(blocks.slice(at, at + columns));
  return tiers;
}

function widthOf(tier) {
  return tier.reduce((sum, block) => sum + block.width + GAP_ACROSS, -GAP_ACROSS);
}

function heightOf(tier) {
  return Math.max(...tier.map((block) => block.height));
}

/** Rows run across the hall or, at its sides, along it. Their seats are sorted by position. */
function sortAlong(hall, row) {
  const box = boundsOf(hall, row.seats);
  row.isAcross = box.right - box.left >= box.bottom - box.top;
  const [main, other] = row.isAcross ? [hall.x, hall.y] : [hall.y, hall.x];
  row.seats.sort((one, two) => main[one] - main[two] || other[one] - other[two]);
}

function boundsOf(hall, seats) {
  if (!seats.length) return { left: 0, top: 0, right: 0, bottom: 0 };
  const box = { left: Infinity, top: Infinity, right: -Infinity, bottom: -Infinity };
  for (const seat of seats) {
    box.left = Math.min(box.left, hall.x[seat]);
    box.right = Math.max(box.right, hall.x[seat]);
    box.top = Math.min(box.top, hall.y[seat]);
    box.bottom = Math.max(box.bottom, hall.y[seat]);
  }
  return box;
}

function areasOf(hall) {
  const seats = hall.pools.map(() => []);
  hall.pool.forEach((pool, seat) => seats[pool].push(seat));
  return seats.map((ofPool) => (ofPool.length ? areaOf(hall, ofPool) : null));
}

/** The middle of a pool and its first row there, which in a curved hall is not the top of its box. */
function areaOf(hall, seats) {
  const box = boundsOf(hall, seats);
  const middle = (box.left + box.right) / 2;
  const central = seats.filter((seat) => Math.abs(hall.x[seat] - middle) <= 4);
  return { x: middle, y: central.length ? boundsOf(hall, central).top : box.top, width: box.right - box.left + 1 };
}

function allOf(count) {
  return Array.from({ length: count }, (_, seat) => seat);
}

/** A grid of cells over the hall, with the seats of each cell side by side in one array, for fast lookup. */
class Cells {
  constructor(hall) {
    const { left, top, right, bottom } = hall.bounds;
    this.hall = hall;
    this.size = Math.max(2, Math.sqrt(((right - left + 1) * (bottom - top + 1)) / Math.max(1, hall.count)));
    this.across = Math.floor((right - left) / this.size) + 1;
    this.down = Math.floor((bottom - top) / this.size) + 1;
    this.#fill();
  }

  #fill() {
    const { hall } = this;
    const cells = Uint32Array.from(hall.x, (x, seat) => this.#column(x) + this.#line(hall.y[seat]) * this.across);
    this.starts = new Uint32Array(this.across * this.down + 1);
    for (const cell of cells) this.starts[cell + 1] += 1;
    for (let cell = 1; cell < this.starts.length; cell += 1) this.starts[cell] += this.starts[cell - 1];
    const next = this.starts.slice();
    this.seats = new Uint32Array(hall.count);
    cells.forEach((cell, seat) => {
      this.seats[next[cell]] = seat;
      next[cell] += 1;
    });
  }

  #column(x) {
    return Math.max(0, Math.min(this.across - 1, Math.floor((x - this.hall.bounds.left) / this.size)));
  }

  #line(y) {
    return Math.max(0, Math.min(this.down - 1, Math.floor((y - this.hall.bounds.top) / this.size)));
  }

  visit(left, top, right, bottom, see) {
    const [first, last] = [this.#column(left), this.#column(right)];
    for (let line = this.#line(top); line <= this.#line(bottom); line += 1) {
      const start = this.starts[line * this.across + first];
      const end = this.starts[line * this.across + last + 1];
      for (let at = start; at < end; at += 1) see(this.seats[at]);
    }
  }
}
