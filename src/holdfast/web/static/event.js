/** The page of an event: the map and the numbers follow the live feed, and a choice becomes a hold. */

import { Countdown, minutes } from "./clock.js";
import { followMap, loadLayout } from "./event_map.js";
import { Order } from "./order.js";
import { number, page, reloadWhenBack, say } from "./page.js";

const NEARBY = 4;

const problem = document.getElementById("problem");
let map = null;
let isSending = false;

reloadWhenBack();
if (page) {
  await start();
}

async function start() {
  const order = new Order(document.getElementById("order"));
  document.querySelectorAll("form[data-hold]").forEach((form) => form.addEventListener("submit", hold));
  problem.querySelector("[data-close]").addEventListener("click", () => (problem.hidden = true));
  startCountdown();
  followTariffs();
  const layout = await loadLayout();
  map = await followMap(layout, showPools);
  if (map) {
    connect(order, layout);
  }
}

/** What is chosen on the map is what is in the order. */
function connect(order, layout) {
  const element = document.getElementById("map");
  order.know(layout);
  order.addEventListener("remove", (event) => map.select(event.detail, false));
  map.max = page.most;
  map.hold(page.mine);
  element.addEventListener("seats:change", (event) => order.choose(event.detail.selected));
  element.addEventListener("seats:refused", (event) => refuse(event.detail));
  element.addEventListener("seats:lost", (event) => lose(event.detail.labels));
}

function showPools(left) {
  document.querySelectorAll("[data-pool]").forEach((element) => {
    const pool = left.get(element.dataset.pool);
    const badge = element.querySelector("[data-left]");
    badge.textContent = pool.remaining ? say("left", { n: number(pool.remaining) }) : say("soldOut");
    badge.className = `badge ${pool.remaining ? "is-good" : "is-off"}`;
    element.classList.toggle("pool--out", !pool.remaining);
    element.querySelector("progress").value = pool.capacity - pool.remaining;
    element.querySelectorAll("input").forEach((input) => limit(input, pool.remaining));
  });
}

function limit(input, remaining) {
  input.max = Math.min(remaining, 99);
  input.disabled = remaining === 0 && Number(input.value) === 0;
}

function refuse({ label, reason }) {
  if (reason === "limit") {
    tell(say("limit", { n: page.most }));
  } else {
    tell(say("takenSeat", { seat: label }), [label]);
  }
}

/** While a hold is under way it may be this buyer's own; the answer will tell. */
function lose(labels) {
  if (isSending) {
    return;
  }
  tell(say("lost", { seats: labels.join(", ") }), labels);
}

/** Says what went wrong and offers free seats near those that it is about. */
function tell(text, labels = []) {
  problem.hidden = false;
  problem.querySelector("[data-problem]").textContent = text;
  const offers = map ? nearby(labels) : [];
  const heading = document.createElement("span");
  heading.textContent = offers.length ? say("nearby") : "";
  problem.querySelector("[data-nearby]").replaceChildren(heading, ...offers.map(offer));
  problem.scrollIntoView({ block: "nearest" });
}

/** As many side by side as there were, and then more. */
function nearby(labels) {
  const counts = Array.from({ length: NEARBY }, (_, n) => labels.length + n);
  const found = labels.flatMap((label) => counts.flatMap((count) => map.nearby(label, count)));
  return [...new Set(found)].filter((label) => !map.selected.includes(label)).slice(0, NEARBY);
}

function offer(label) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "button button--quiet button--small";
  button.textContent = label;
  button.addEventListener("click", () => {
    map.select(label, true);
    button.remove();
  });
  return button;
}

async function hold(event) {
  event.preventDefault();
  const form = event.target;
  const button = form.querySelector(".button:not([type=button])");
  form.querySelectorAll("[data-email]").forEach((field) => (field.value = document.getElementById("email").value));
  if (isSending) {
    return;
  }
  isSending = true;
  button.setAttribute("aria-busy", "true");
  try {
    await send(form);
  } catch {
    tell(say("offline"));
  } finally {
    isSending = false;
    button.removeAttribute("aria-busy");
  }
}

async function send(form) {
  const body = new URLSearchParams(new FormData(form));
  const answer = await fetch(page.hold, { method: "POST", body, headers: { accept: "application/json" } });
  const told = await answer.json();
  if (answer.ok) {
    location.assign(told.booking);
    // Until the browser has gone there.
    await new Promise(() => {});
  } else {
    refused(told);
  }
}

function refused({ text, conflicts = [] }) {
  conflicts.forEach((label) => map?.select(label, false));
  tell(text ?? say("failed"), conflicts);
}

function startCountdown() {
  const clock = document.querySelector("[data-countdown]");
  if (page.secondsLeft !== null) {
    const tick = (seconds) => (clock.textContent = minutes(seconds));
    new Countdown(page.secondsLeft, { tick, end: () => location.reload() });
  }
}

/** The prices to choose from are those of the chosen area. */
function followTariffs() {
  const pool = document.getElementById("best-pool");
  const tariff = document.getElementById("best-tariff");
  pool?.addEventListener("change", () => {
    const { tariffs } = page.pools.find((each) => each.code === pool.value);
    tariff.replaceChildren(...tariffs.map((each) => new Option(each.name, each.code)));
  });
}
