/** The seat map of a page and the number of what is free, as they are at every moment. */

import { Live } from "./live.js";
import { number, page, say } from "./page.js";

const status = document.getElementById("live");
const left = new Map();

/** Where seats are and what they cost, for those who draw or sell them. Null where an event has none. */
export async function loadLayout() {
  if (!page.layout) {
    return null;
  }
  const answer = await fetch(page.layout);
  return { ...(await answer.json()), pools: page.pools, stage: page.map.stage };
}

/** Draws the map, if there is a layout, and keeps it current. `pools` is told of every change of numbers. */
export async function followMap(layout, pools = () => {}) {
  layout ??= await loadLayout();
  const map = layout && (await drawMap(layout));
  const take = (seats, changed) => {
    seats();
    changed.forEach(([code, pool]) => left.set(code, pool));
    pools(left);
    showLive();
  };
  new Live(page.live, {
    snapshot: (message) => take(() => map?.reset(message.seats), message.pools.map((pool) => [pool.code, pool])),
    change: (message) => take(() => map?.apply(message.seats), Object.entries(message.pools)),
    connected: showLive,
    lost: showLost,
  });
  return map;
}

async function drawMap(layout) {
  const { SeatMap } = await import("./seatmap.js");
  const element = document.getElementById("map");
  // Whoever has the element has the map, too: a browser's console, or a test.
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
