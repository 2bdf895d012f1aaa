/** The server's time. The page and the live feed bring it; the device's clock only counts on from there, because it may
    be wrong. What they bring is a little old when it arrives, so this clock may be late, and is never early. */

import { page } from "./page.js";

// The feed repeats a snapshot for a second. More than this means that somebody changed the device's clock.
const DRIFT_MS = 5_000;
// Timers pause while a device sleeps, so check again now and then.
const LOOK_MS = 15_000;

let offset = (page?.now ?? Date.now()) - Date.now();

export function serverNow() {
  return Date.now() + offset;
}

export function setServerTime(time) {
  const found = Date.parse(time) - Date.now();
  if (found > offset || offset - found > DRIFT_MS) {
    offset = found;
  }
}

/** Run the function once the server's clock reaches this time. */
export function runAt(time, run) {
  const left = time - serverNow();
  if (left <= 0) {
    run();
  } else {
    setTimeout(() => runAt(time, run), Math.min(left, LOOK_MS));
  }
}
