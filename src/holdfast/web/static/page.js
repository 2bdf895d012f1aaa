/** The data that the server embeds in the page, and how scripts format texts, numbers and money. */

import { fill } from "./dom.js";

const element = document.getElementById("page");

export const page = element ? JSON.parse(element.textContent) : null;

/** The text with its placeholders filled in. `n` chooses between the texts for one and for many. */
export function say(key, values = {}) {
  const text = page.texts[key] ?? page.texts[`${key}.${String(values.n) === "1" ? "one" : "many"}`];
  return fill(text, values);
}

/** Chromium has no data for Uzbek: it calls a month "M11". */
export const knowsLanguage = !page || !/\d/.test(new Intl.DateTimeFormat(page.language, { month: "long" }).format(0));
// Uzbek numbers and amounts look like Russian ones.
const numberLanguage = knowsLanguage ? page?.language : "ru";

export function number(count) {
  return new Intl.NumberFormat(numberLanguage).format(count);
}

/** The server decides how many decimals a currency has; browsers disagree about some. */
export function money(amount) {
  const digits = { minimumFractionDigits: page.digits, maximumFractionDigits: page.digits };
  const format = new Intl.NumberFormat(numberLanguage, { style: "currency", currency: page.currency, ...digits });
  return format.format(amount / 10 ** page.digits);
}

/** An icon from the sprite that the page already uses. */
export function icon(name) {
  const sprite = document.querySelector(".icon use").getAttribute("href").split("#")[0];
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `${sprite}#${name}`);
  svg.append(use);
  return svg;
}

/** A page from the browser's back/forward cache is out of date. */
export function reloadWhenRestored() {
  addEventListener("pageshow", (event) => event.persisted && location.reload());
}
