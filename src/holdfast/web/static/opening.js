/** A page that waits for sales to open: it counts down on the server's clock, and then reloads. */

import { Live } from "./live.js";
import { page, say } from "./page.js";
import { serverNow } from "./server_clock.js";

const TICK_MS = 250;
const DAY_SECONDS = 86_400;
// Thousands of browsers may wait for the same moment.
const SPREAD_MS = 3_000;

export function waitForOpening() {
  const clock = document.querySelector("[data-opens]");
  const announce = document.querySelector("[data-opens-announce]");
  document.querySelectorAll("[data-opens], [data-opens-hint]").forEach((element) => (element.hidden = false));
  // The heartbeats of the feed keep the clock right.
  const ignore = () => {};
  new Live(page.live, { snapshot: ignore, change: ignore, connected: ignore, lost: ignore });
  const timer = setInterval(tick, TICK_MS);
  tick();

  function tick() {
    const seconds = Math.ceil((page.sale.opensAt - serverNow()) / 1000);
    clock.textContent = formatLeft(Math.max(0, seconds));
    if (seconds === 60) {
      announce.textContent = say("minuteToOpening");
    }
    if (seconds <= 0) {
      clearInterval(timer);
      announce.textContent = say("opensNow");
      reloadSoon();
    }
  }
}

/** Reload the event's page, at a slightly different moment in each browser. */
export function reloadSoon() {
  setTimeout(() => location.replace(location.pathname.replace(/\/hold$/, "") + location.search), Math.random() * SPREAD_MS);
}

function formatLeft(seconds) {
  const two = (value) => String(Math.floor(value)).padStart(2, "0");
  const time = `${two((seconds % DAY_SECONDS) / 3600)}:${two((seconds % 3600) / 60)}:${two(seconds % 60)}`;
  const days = Math.floor(seconds / DAY_SECONDS);
  return days ? say("opensIn", { n: days, time }) : time;
}
