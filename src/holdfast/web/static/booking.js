/** The booking page: its countdown, and a reload when the booking changes on the server. */

import { Countdown, formatMinutes } from "./clock.js";
import { startNotifying } from "./notify.js";
import { page, reloadWhenRestored, say } from "./page.js";

const POLL_MS = 2_000;
const SOON_SECONDS = 60;

reloadWhenRestored();
startCountdown();
startReceipt();
startCopying();
startNotifying();
document.querySelectorAll("form[data-once]").forEach((form) => form.addEventListener("submit", () => showBusy(form)));
if (page.secondsLeft !== null) {
  setInterval(() => document.hidden || reloadIfChanged(), POLL_MS);
  document.addEventListener("visibilitychange", () => document.hidden || reloadIfChanged());
}

function startCountdown() {
  const clock = document.querySelector("[data-countdown]");
  if (!clock) {
    return;
  }
  const announce = document.querySelector("[data-announce]");
  const tick = (seconds) => {
    clock.textContent = formatMinutes(seconds);
    document.querySelector("[data-ring]").style.strokeDashoffset = 100 - (100 * seconds) / page.totalSeconds;
    document.getElementById("hold").classList.toggle("hold--soon", seconds <= SOON_SECONDS);
    announce.textContent = seconds <= SOON_SECONDS ? say("minuteLeft") : "";
    offerMoreTime(seconds < page.extendSeconds);
  };
  // When a receipt comes too late even for an expired hold, nothing changes on the server.
  new Countdown(page.secondsLeft, { tick, end: () => (page.isLate ? reload() : reloadIfChanged()) });
}

/** An extension lasts from now, so asking earlier would not move the deadline. */
function offerMoreTime(isAllowed) {
  document.querySelectorAll("[data-extend]").forEach((form) => (form.hidden = !isAllowed));
  document.querySelectorAll("[data-extend-later]").forEach((text) => (text.hidden = isAllowed));
}

/** Another tab, the payment provider or a reviewer may have changed the booking. */
async function reloadIfChanged() {
  try {
    const response = await fetch(page.stateUrl, { headers: { accept: "application/json" } });
    const now = await response.json();
    if (response.ok && ["status", "payment", "version"].some((name) => now[name] !== page[name])) {
      reload();
    }
  } catch {
    // No connection. The next poll may succeed.
  }
}

function reload() {
  location.replace(location.pathname);
}

/** Browsers offer the clipboard only over TLS and on this machine. */
function startCopying() {
  document.querySelectorAll("[data-copy]").forEach((button) => {
    button.hidden = !navigator.clipboard;
    button.addEventListener("click", () => copy(button));
  });
}

async function copy(button) {
  const label = button.querySelector("span");
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
  } catch {
    // The browser does not allow it. The reader can still select the text.
    return;
  }
  label.textContent = say("copied");
  document.querySelector("[data-copied]").textContent = say("copied");
}

function showBusy(form) {
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
  ["dragenter", "dragover"].forEach((name) => input.addEventListener(name, () => highlightDrop(form, true)));
  ["dragleave", "drop"].forEach((name) => input.addEventListener(name, () => highlightDrop(form, false)));
}

function highlightDrop(form, isOver) {
  form.querySelector("[data-drop]").classList.toggle("drop--over", isOver);
}

function preview(form, input) {
  const [file] = input.files;
  const image = form.querySelector("[data-preview]");
  const problem = form.querySelector("[data-file-problem]");
  URL.revokeObjectURL(image.src);
  image.hidden = !file?.type.startsWith("image/");
  form.querySelector("[data-prompt]").hidden = !image.hidden;
  if (!image.hidden) {
    image.src = URL.createObjectURL(file);
    // The browser cannot show every kind of picture that we accept.
    image.onerror = () => (image.hidden = true);
  }
  form.querySelector("[data-name]").textContent = file?.name ?? "";
  problem.hidden = !(file?.size > page.fileBytesMax);
  problem.textContent = say("fileTooLarge");
  form.querySelector(".button").disabled = !problem.hidden;
}
