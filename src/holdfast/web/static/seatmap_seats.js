// What is known of every seat, whoever draws it.

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

  /** Its state for this buyer: one of their own is theirs, whatever others see. */
  state(seat) {
    return this.mine[seat] ? MINE : this.states[seat];
  }

  /** All four return whether the seat looks different now. */
  turn(seat, name) {
    const state = STATES.indexOf(name);
    if (state < 0) throw new RangeError(`no such state of a seat: ${name}`);
    this.states[seat] = state;
    return this.#look(seat);
  }

  choose(seat) {
    this.chosen.add(seat);
    return this.#look(seat);
  }

  leave(seat) {
    this.chosen.delete(seat);
    return this.#look(seat);
  }

  own(seat, isMine) {
    this.mine[seat] = Number(isMine);
    return this.#look(seat);
  }

  /** Chosen seats that can no longer be had. */
  lost() {
    return [...this.chosen].filter((seat) => !this.mine[seat] && this.states[seat] !== FREE);
  }

  #look(seat) {
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
