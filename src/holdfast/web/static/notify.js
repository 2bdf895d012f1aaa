/** The button that subscribes this browser to push messages about the booking. */

import { page, say } from "./page.js";

/** Browsers offer push messages only over TLS and on this machine, and not inside the frames of other sites. */
export async function startNotifying() {
  const form = document.querySelector("form[data-notify]");
  const isOffered = "serviceWorker" in navigator && "PushManager" in window && "Notification" in window && top === window;
  if (!form || !page.push || !isOffered || Notification.permission === "denied") {
    return;
  }
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    notify(form);
  });
  form.hidden = false;
  if (await isSubscribed()) {
    showResult(form, "notifyOn");
  }
}

async function isSubscribed() {
  const registration = await navigator.serviceWorker.getRegistration(page.push.scope);
  const subscription = await registration?.pushManager.getSubscription();
  return Boolean(subscription) && page.push.subscribed.includes(await hash(subscription.endpoint));
}

async function hash(text) {
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text));
  return Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

async function notify(form) {
  const button = form.querySelector("button");
  button.setAttribute("aria-busy", "true");
  try {
    const isAllowed = (await Notification.requestPermission()) === "granted";
    showResult(form, isAllowed ? await subscribe(form) : "notifyBlocked");
  } catch {
    showResult(form, "failed");
  }
  button.removeAttribute("aria-busy");
}

/** Returns what to tell the buyer. */
async function subscribe(form) {
  await navigator.serviceWorker.register(page.push.worker, { scope: page.push.scope });
  const { pushManager } = await navigator.serviceWorker.ready;
  const { endpoint, keys } = (await subscribeWithKey(pushManager)).toJSON();
  const body = new URLSearchParams(new FormData(form));
  Object.entries({ endpoint, ...keys, key_number: page.push.keyNumber }).forEach(([name, value]) => body.set(name, value));
  const response = await fetch(form.action, { method: "POST", headers: { accept: "application/json" }, body });
  if (response.ok) {
    return "notifyOn";
  }
  return (await response.json()).code === "unknown_push_service" ? "notifyUnknownService" : "failed";
}

/** A subscription accepts one key only. After the server's key has changed, the browser needs a new subscription. */
async function subscribeWithKey(pushManager) {
  const options = { userVisibleOnly: true, applicationServerKey: page.push.key };
  try {
    return await pushManager.subscribe(options);
  } catch (error) {
    if (error.name !== "InvalidStateError") {
      throw error;
    }
    await (await pushManager.getSubscription()).unsubscribe();
    return pushManager.subscribe(options);
  }
}

function showResult(form, key) {
  form.querySelector("[data-notify-offer]").hidden = key === "notifyOn";
  form.querySelector("[data-notify-result]").textContent = say(key);
}
