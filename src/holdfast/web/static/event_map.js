/** Keeps the seat map of a page and its count of free seats up to date. */

import { Live } from "./live.js";
import { number, page, say } from "./page.js";
import { saleState } from "./sale_states.js";

const status = document.getElementById("live");
const left = new Map();
let states = {};
let closed = {};

/** The places and pools of all seats, or null for an event without seats. */
export async function loadLayout() {
  if (!page.layout) {
    return null;
  }
  const response = await fetch(page.layout);
  return { ...(await response.json()), pools: page.pools, stage: page.map.stage };
}

/** Draw the map, if there is a layout, and follow the live feed. `onPools` runs whenever the numbers change. */
export async function followMap(layout, onPools = () => {}) {
  const map = layout && (await drawMap(layout));
  const update = (changed) => {
    changed.forEach(([code, pool]) => left.set(code, pool));
    onPools(left);
    showLive();
  };
  new Live(page.live, {
    snapshot: (message) => {
      states = message.seats;
      resetMap(map, layout);
      update(message.pools.map((pool) => [pool.code, pool]));
    },
    change: (message) => {
      Object.assign(states, message.seats);
      map?.apply(Object.fromEntries(Object.entries(message.seats).filter(([label]) => !(label in closed))));
      update(Object.entries(message.pools));
    },
    connected: showLive,
    lost: showLost,
  });
  return map;
}

/** Show all seats as they are. Buyers cannot choose seats of pools that are not on sale. */
export function resetMap(map, layout) {
  if (map) {
    const seats = layout.seats.filter(([, pool]) => saleState(page.pools[pool]) !== "open");
    closed = Object.fromEntries(seats.map(([label]) => [label, "blocked"]));
    map.reset({ ...states, ...closed });
  }
}

async function drawMap(layout) {
  const { SeatMap } = await import("./seatmap.js");
  const element = document.getElementById("map");
  // The browser's console and tests reach the map through its element.
  element.map = new SeatMap(element, layout, page.map);
  return element.map;
}

function showLive() {
  const free = [...left.values()].reduce((sum, pool) => sum + pool.remaining, 0);
  status.classList.remove("live--lost");
  status.querySelector("[data-live]").textContent = say("live", { n: number(free) });
}

function showLost() {
  status.classList.add("live--lost");
  status.querySelector("[data-live]").textContent = say("reconnecting");
}
