/** The event page: the live feed updates the map and the numbers, and the order form places a hold. */

import { Countdown, formatMinutes } from "./clock.js";
import { make } from "./dom.js";
import { followMap, loadLayout } from "./event_map.js";
import { GuestCheck } from "./guest_check.js";
import { Order } from "./order.js";
import { number, page, reloadWhenRestored, say } from "./page.js";

const NEARBY = 4;

const problem = document.getElementById("problem");
const check = page?.check ? new GuestCheck(page.check) : null;
let map = null;
let isSending = false;

reloadWhenRestored();
if (page) {
  await start();
}

async function start() {
  const order = new Order(document.getElementById("order"));
  document.querySelectorAll("form[data-hold]").forEach((form) => form.addEventListener("submit", hold));
  problem.querySelector("[data-close]").addEventListener("click", () => (problem.hidden = true));
  startCountdown();
  updateTariffs();
  const layout = await loadLayout();
  map = await followMap(layout, showPools);
  if (map) {
    connectMapAndOrder(order, layout);
  }
}

/** Keep the map and the order in step. */
function connectMapAndOrder(order, layout) {
  const element = document.getElementById("map");
  order.setLayout(layout);
  order.addEventListener("remove", (event) => map.select(event.detail, false));
  map.max = page.limit;
  map.markMine(page.mine);
  element.addEventListener("seats:change", (event) => order.setSeats(event.detail.selected));
  element.addEventListener("seats:refused", (event) => showRefusedSeat(event.detail));
  element.addEventListener("seats:lost", (event) => showLostSeats(event.detail.labels));
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

function showRefusedSeat({ label, reason }) {
  if (reason === "limit") {
    showProblem(say("limit", { limit: page.limit }));
  } else {
    showProblem(say("takenSeat", { seat: label }), [label]);
  }
}

/** While a hold request is running, the seats may be this buyer's own; its response decides. */
function showLostSeats(labels) {
  if (isSending) {
    return;
  }
  showProblem(say("lost", { seats: labels.join(", ") }), labels);
}

/** Show what went wrong, with free seats near the ones it is about. */
function showProblem(text, labels = []) {
  problem.hidden = false;
  problem.querySelector("[data-problem]").textContent = text;
  const offers = map ? nearby(labels) : [];
  const heading = make("span", {}, offers.length ? say("nearby") : "");
  problem.querySelector("[data-nearby]").replaceChildren(heading, ...offers.map(seatButton));
  problem.scrollIntoView({ block: "nearest" });
}

/** Prefer as many seats side by side as the buyer wanted, then add single ones. */
function nearby(labels) {
  const counts = Array.from({ length: NEARBY }, (_, n) => labels.length + n);
  const found = labels.flatMap((label) => counts.flatMap((count) => map.nearby(label, count)));
  return [...new Set(found)].filter((label) => !map.selected.includes(label)).slice(0, NEARBY);
}

function seatButton(label) {
  const button = make("button", { type: "button", class: "button button--quiet button--small" }, label);
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
    showProblem(say("offline"));
  } finally {
    isSending = false;
    button.removeAttribute("aria-busy");
  }
}

async function send(form) {
  let result = await post(form);
  if (result.code === "check_expired") {
    await check.renew();
    result = await post(form);
  }
  if (result.booking) {
    location.assign(result.booking);
    // Stay busy until the browser leaves this page.
    await new Promise(() => {});
  } else {
    showRefusal(result);
  }
}

async function post(form) {
  const body = new URLSearchParams(new FormData(form));
  Object.entries((await check?.fields()) ?? {}).forEach(([name, value]) => body.set(name, value));
  const response = await fetch(page.hold, { method: "POST", body, headers: { accept: "application/json" } });
  return response.json();
}

function showRefusal({ text, conflicts = [] }) {
  conflicts.forEach((label) => map?.select(label, false));
  showProblem(text ?? say("failed"), conflicts);
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
