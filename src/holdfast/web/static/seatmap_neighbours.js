// Finds other seats from one seat: the next in a direction, the ends of its row, and free seats to offer instead.

const DIRECTIONS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

export function isDirection(key) {
  return key in DIRECTIONS;
}

/** The next seat in a direction: in the same row if possible, or else the seat closest to that direction. */
export function stepFrom(hall, from, key) {
  const [right, down] = DIRECTIONS[key];
  const row = hall.rows[hall.row[from]];
  const inRow = bestAlong(hall, from, right, down, row.seats, 1);
  return inRow ?? bestAlong(hall, from, right, down, hall.x.keys(), 3) ?? from;
}

function bestAlong(hall, from, right, down, seats, slope) {
  let best = [Infinity, undefined];
  for (const seat of seats) {
    const [dx, dy] = [hall.x[seat] - hall.x[from], hall.y[seat] - hall.y[from]];
    const along = dx * right + dy * down;
    const aside = Math.abs(dx * down) + Math.abs(dy * right);
    if (along < 0.25 || aside > along * slope) continue;
    const cost = along + 2 * aside;
    if (cost < best[0]) best = [cost, seat];
  }
  return best[1];
}

export function rowEnd(hall, from, key) {
  const { seats } = hall.rows[hall.row[from]];
  return key === "Home" ? seats[0] : seats[seats.length - 1];
}

/** Up to `count` free seats nearest to `from`: side by side if its pool has them, or else single seats. */
export function nearest(hall, from, count, isFree) {
  const run = nearestRun(hall, from, count, isFree);
  return run ?? nearestOnes(hall, from, count, isFree);
}

function nearestRun(hall, from, count, isFree) {
  let best = [Infinity, null];
  for (const row of hall.rows) {
    if (row.pool !== hall.pool[from]) continue;
    for (const run of runsOf(hall, row, count, isFree)) {
      const away = run.reduce((sum, seat) => sum + distance(hall, from, seat), 0);
      if (away < best[0]) best = [away, run];
    }
  }
  return best[1];
}

function* runsOf(hall, row, count, isFree) {
  let length = 0;
  for (let at = 0; at < row.seats.length; at += 1) {
    const isNext = length > 0 && areNeighbours(hall, row.seats[at - 1], row.seats[at]);
    length = isFree(row.seats[at]) ? (isNext ? length + 1 : 1) : 0;
    if (length >= count) yield row.seats.slice(at + 1 - count, at + 1);
  }
}

/** Like the engine, compare numbers. Seats without numbers are neighbours if they stand close together. */
function areNeighbours(hall, one, other) {
  const [left, right] = [hall.numbers[one], hall.numbers[other]];
  if (left != null && right != null) return Math.abs(left - right) === 1;
  return distance(hall, one, other) < 1.6;
}

function nearestOnes(hall, from, count, isFree) {
  const isElsewhere = (seat) => Number(hall.pool[seat] !== hall.pool[from]);
  const found = [];
  for (let seat = 0; seat < hall.count; seat += 1) {
    if (isFree(seat)) found.push([isElsewhere(seat), distance(hall, from, seat), seat]);
  }
  found.sort((one, other) => one[0] - other[0] || one[1] - other[1]);
  return found.slice(0, count).map(([, , seat]) => seat);
}

function distance(hall, one, other) {
  return Math.hypot(hall.x[one] - hall.x[other], hall.y[one] - hall.y[other]);
}
