/** The page of a booking: its clock, and everything that may change behind the buyer's back. */

import { Countdown, minutes } from "./clock.js";
import { page, reloadWhenBack, say } from "./page.js";

const POLL_MS = 2_000;
const SOON_SECONDS = 60;
const FILE_MAX = 10 * 1024 * 1024;

reloadWhenBack();
startCountdown();
startReceipt();
document.querySelectorAll("form[data-once]").forEach((form) => form.addEventListener("submit", () => busy(form)));
if (["held", "payment_submitted"].includes(page.status)) {
  setInterval(() => document.hidden || check(), POLL_MS);
  document.addEventListener("visibilitychange", () => document.hidden || check());
}

function startCountdown() {
  const clock = document.querySelector("[data-countdown]");
  if (!clock) {
    return;
  }
  const announce = document.querySelector("[data-announce]");
  const tick = (seconds) => {
    clock.textContent = minutes(seconds);
    document.querySelector("[data-ring]").style.strokeDashoffset = 100 - (100 * seconds) / page.wholeSeconds;
    document.getElementById("hold").classList.toggle("hold--soon", seconds <= SOON_SECONDS);
    announce.textContent = seconds <= SOON_SECONDS ? say("minuteLeft") : "";
    offerMoreTime(seconds < page.extendSeconds);
  };
  new Countdown(page.secondsLeft, { tick, end: () => check() });
}

/** Before, asking for more would change nothing. */
function offerMoreTime(isTime) {
  document.querySelectorAll("[data-extend]").forEach((form) => (form.hidden = !isTime));
  document.querySelectorAll("[data-extend-later]").forEach((text) => (text.hidden = isTime));
}

/** Another tab, the payment provider or a person may have changed it. */
async function check() {
  try {
    const answer = await fetch(page.address, { headers: { accept: "application/json" } });
    const now = await answer.json();
    if (answer.ok && ["status", "payment", "version"].some((name) => now[name] !== page[name])) {
      location.replace(location.pathname);
    }
  } catch {
    // No connection: the next look may have one.
  }
}

function busy(form) {
  const button = form.querySelector("button");
  button.setAttribute("aria-busy", "true");
  setTimeout(() => button.removeAttribute("aria-busy"), 5_000);
}

function startReceipt() {
  const form = document.querySelector("form[data-receipt]");
  if (!form) {
    return;
  }
  const input = form.querySelector("input[type=file]");
  input.addEventListener("change", () => preview(form, input));
  ["dragenter", "dragover"].forEach((name) => input.addEventListener(name, () => mark(form, true)));
  ["dragleave", "drop"].forEach((name) => input.addEventListener(name, () => mark(form, false)));
}

function mark(form, isOver) {
  form.querySelector("[data-drop]").classList.toggle("drop--over", isOver);
}

function preview(form, input) {
  const [file] = input.files;
  const image = form.querySelector("[data-preview]");
  const trouble = form.querySelector("[data-file-problem]");
  URL.revokeObjectURL(image.src);
  image.hidden = !file?.type.startsWith("image/");
  form.querySelector("[data-prompt]").hidden = !image.hidden;
  if (!image.hidden) {
    image.src = URL.createObjectURL(file);
    // A kind of picture that this browser cannot show may be a receipt all the same.
    image.onerror = () => (image.hidden = true);
  }
  form.querySelector("[data-name]").textContent = file?.name ?? "";
  trouble.hidden = !(file?.size > FILE_MAX);
  trouble.textContent = say("fileTooLarge");
  form.querySelector(".button").disabled = !trouble.hidden;
}
