/** The boxes of pools and of the chosen slot: what is left, whether it is on sale, and how many a buyer can choose. */

import { number, page, say } from "./page.js";
import { saleState } from "./sale_states.js";

const QUANTITY_MAX = 99;
const byCode = new Map(page?.pools?.map((pool) => [pool.code, pool]));

export function isAvailable(pool, left) {
  return saleState(pool) === "open" && (left.get(pool.code)?.remaining ?? 1) > 0;
}

/** Show in the badge what is left of the pool, or why nobody can book it. */
export function showBadge(badge, pool, left) {
  const state = saleState(pool);
  const remaining = left.get(pool.code)?.remaining;
  const isFree = isAvailable(pool, left);
  badge.className = `badge ${isFree ? "is-good" : state === "soon" ? "is-info" : "is-off"}`;
  if (state === "soon") {
    badge.textContent = say("opens", { when: pool.opens });
  } else if (state !== "open") {
    badge.textContent = say(state);
  } else if (remaining !== undefined) {
    badge.textContent = isFree ? say("left", { n: number(remaining) }) : say("soldOut");
  }
}

/** Bring every box up to date. */
export function showPools(left) {
  document.querySelectorAll("[data-pool]").forEach((box) => showPool(box, byCode.get(box.dataset.pool), left));
}

function showPool(box, pool, left) {
  const counts = left.get(pool.code);
  const isFree = isAvailable(pool, left);
  showBadge(box.querySelector("[data-left]"), pool, left);
  box.classList.toggle("pool--out", !isFree);
  if (counts) {
    const bar = box.querySelector("progress");
    bar.max = counts.capacity;
    bar.value = counts.capacity - counts.remaining;
  }
  box.querySelectorAll("input").forEach((input) => limit(input, isFree, counts?.remaining ?? QUANTITY_MAX));
}

function limit(input, isFree, remaining) {
  if (input.name === "choice") {
    input.disabled = !isFree;
    return;
  }
  input.max = Math.min(remaining, page.most ?? QUANTITY_MAX, QUANTITY_MAX);
  // Buyers who have already chosen some can still choose fewer.
  input.disabled = !isFree && Number(input.value) === 0;
}
