// The state of every seat, shared by the map and the list.

export const [FREE, HELD, SOLD, BLOCKED, SELECTED, MINE] = [0, 1, 2, 3, 4, 5];
export const LOOKS = ["free", "held", "sold", "blocked", "selected", "mine"];
const STATES = LOOKS.slice(0, 4);

export class Seats {
  constructor(hall) {
    this.hall = hall;
    this.states = new Uint8Array(hall.count);
    this.mine = new Uint8Array(hall.count);
    this.looks = new Uint8Array(hall.count);
    this.chosen = new Set();
    this.freeInRow = Uint32Array.from(hall.rows, (row) => row.seats.length);
    this.freeInPool = new Uint32Array(hall.pools.length);
    for (const pool of hall.pool) this.freeInPool[pool] += 1;
  }

  /** The state for this buyer: their own seats are theirs, whatever other buyers see. */
  state(seat) {
    return this.mine[seat] ? MINE : this.states[seat];
  }

  /** Like the three methods below, returns whether the seat looks different now. */
  setState(seat, name) {
    const state = STATES.indexOf(name);
    if (state < 0) throw new RangeError(`unknown seat state: ${name}`);
    this.states[seat] = state;
    return this.#updateLook(seat);
  }

  select(seat) {
    this.chosen.add(seat);
    return this.#updateLook(seat);
  }

  unselect(seat) {
    this.chosen.delete(seat);
    return this.#updateLook(seat);
  }

  setMine(seat, isMine) {
    this.mine[seat] = Number(isMine);
    return this.#updateLook(seat);
  }

  /** Selected seats that another buyer has taken. */
  lost() {
    return [...this.chosen].filter((seat) => !this.mine[seat] && this.states[seat] !== FREE);
  }

  #updateLook(seat) {
    const state = this.state(seat);
    const look = state === FREE && this.chosen.has(seat) ? SELECTED : state;
    if (look === this.looks[seat]) return false;
    this.#count(seat, isFree(look) - isFree(this.looks[seat]));
    this.looks[seat] = look;
    return true;
  }

  #count(seat, change) {
    this.freeInRow[this.hall.row[seat]] += change;
    this.freeInPool[this.hall.pool[seat]] += change;
  }
}

function isFree(look) {
  return Number(look === FREE || look === SELECTED);
}
