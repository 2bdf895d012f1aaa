/** The event page: the live feed updates the map, the calendar and the numbers, and the order form places a hold. */

import { SlotCalendar } from "./calendar.js";
import { Countdown, formatMinutes } from "./clock.js";
import { followMap, loadLayout, resetMap } from "./event_map.js";
import { clearErrorsOnInput } from "./field_errors.js";
import { HoldForm } from "./hold_form.js";
import { reloadSoon, waitForOpening } from "./opening.js";
import { Order } from "./order.js";
import { findOwn, ownSeats } from "./own_seats.js";
import { page, reloadWhenRestored, say } from "./page.js";
import { showPools } from "./pool_boxes.js";
import { ProblemNotice } from "./problem.js";
import { isOnSale, watchSale } from "./sale_states.js";

reloadWhenRestored();
if (page) {
  startCountdown();
}
if (document.getElementById("order")) {
  await start();
} else if (document.querySelector("[data-opens]")) {
  waitForOpening();
}

async function start() {
  const problem = new ProblemNotice(document.getElementById("problem"));
  const order = new Order(document.getElementById("order"));
  const form = new HoldForm(order.form, (refusal) => showRefusal(problem, refusal));
  clearErrorsOnInput(order.form);
  updateTariffs();
  const update = followPools(order);
  const layout = await loadLayout();
  const map = await followMap(layout, update);
  watchSale(() => {
    resetMap(map, layout);
    update();
    if (!isOnSale()) {
      reloadSoon();
    }
  });
  if (map) {
    problem.map = map;
    connectMapAndOrder(map, order, layout);
    connectMapAndProblem(map, problem, form);
  }
}

/** Keep the boxes, the calendar and the order in step with what is left and with what is on sale. */
function followPools(order) {
  let known = new Map();
  const element = document.getElementById("calendar");
  const calendar = element ? new SlotCalendar(element, document.getElementById("slot")) : null;
  const update = (left = known) => {
    known = left;
    showPools(left);
    calendar?.update(left);
    order.render();
  };
  calendar?.addEventListener("choose", () => update());
  update();
  return update;
}

/** Keep the map and the order in step. */
function connectMapAndOrder(map, order, layout) {
  const element = document.getElementById("map");
  order.setLayout(layout);
  order.addEventListener("remove", (event) => map.select(event.detail, false));
  map.max = page.most;
  map.markMine(page.mine);
  element.addEventListener("seats:change", (event) => order.setSeats(event.detail.selected));
  order.restoreSeats((label) => map.select(label, true));
}

function connectMapAndProblem(map, problem, form) {
  const element = document.getElementById("map");
  element.addEventListener("seats:refused", ({ detail: { label, reason } }) => {
    if (reason === "limit") {
      const { limit, most } = page;
      problem.show({ text: limit === most ? say("limit", { limit }) : say("most", { most }) });
    } else {
      problem.show(ownSeats([label]) ?? { text: say("takenSeat", { seat: label }), seats: [label] });
    }
  });
  // While a hold request is running, the seats may be this buyer's own; its response decides.
  element.addEventListener("seats:lost", ({ detail: { labels } }) => form.isSending || showLostSeats(map, problem, labels));
}

/** The seats may be this buyer's own: another tab may have taken them. */
async function showLostSeats(map, problem, labels) {
  const own = await findOwn(labels);
  if (own) {
    map.markMine(own.own);
  }
  const seats = labels.filter((label) => !own?.own.includes(label));
  const text = seats.length ? say("lost", { seats: seats.join(", ") }) : "";
  problem.show({ ...own, text: [text, own?.text].filter(Boolean).join(" "), seats });
}

function showRefusal(problem, { conflicts = [], url, ...refusal }) {
  conflicts.forEach((label) => problem.map?.select(label, false));
  problem.show({ ...refusal, url, seats: url ? [] : conflicts });
}

function startCountdown() {
  const clock = document.querySelector("[data-countdown]");
  if (page.secondsLeft !== null) {
    const tick = (seconds) => (clock.textContent = formatMinutes(seconds));
    new Countdown(page.secondsLeft, { tick, end: () => location.reload() });
  }
}

/** Offer the tariffs of the chosen area. */
function updateTariffs() {
  const pool = document.getElementById("best-pool");
  const tariff = document.getElementById("best-tariff");
  pool?.addEventListener("change", () => {
    const { tariffs } = page.pools.find((candidate) => candidate.code === pool.value);
    tariff.replaceChildren(...tariffs.map(({ name, code }) => new Option(name, code)));
  });
}
