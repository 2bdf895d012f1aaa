/** Which pools are on sale at the server's time, by the same rules as the server. */

import { page } from "./page.js";
import { runAt, serverNow } from "./server_clock.js";

/** One of "soon", "open", "closed" and "begun". */
export function saleState(pool) {
  const now = serverNow();
  if (pool.startsAt !== undefined && now >= pool.startsAt) {
    return "begun";
  }
  if (now >= pool.closesAt) {
    return "closed";
  }
  return pool.opensAt !== null && now < pool.opensAt ? "soon" : "open";
}

/** Whether anything in the event is on sale. */
export function isOnSale() {
  return page.pools.some((pool) => saleState(pool) === "open");
}

/** Run the function whenever a pool opens, closes or begins. */
export function watchSale(run) {
  const times = page.pools.flatMap((pool) => [pool.opensAt, pool.closesAt, pool.startsAt]);
  const next = Math.min(...times.filter((time) => time > serverNow()));
  if (next !== Infinity) {
    runAt(next, () => {
      run();
      watchSale(run);
    });
  }
}
