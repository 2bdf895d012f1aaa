/** The box of the slot that a buyer chose: its tariffs, each with a stepper, or a choice of one. */

import { money, page, say } from "./page.js";

/** Show the slot in the panel. Quantities move with the buyer to tariffs with the same code. */
export function showSlot(panel, slot, dayName) {
  const carried = readQuantities(panel);
  const box = document.getElementById("slot-template").content.cloneNode(true).firstElementChild;
  box.dataset.pool = slot.code;
  box.querySelector("legend").textContent = slot.name;
  box.querySelector("h3").textContent = slot.name;
  box.querySelector(".pool__time span").textContent = `${dayName}, ${slot.time}`;
  const [row, ...others] = box.querySelectorAll("[data-tariff]");
  others.forEach((other) => other.remove());
  const rows = slot.tariffs.map((tariff, n) => fillRow(row.cloneNode(true), slot, tariff, n, carried));
  row.replaceWith(...rows);
  panel.replaceChildren(box);
}

function readQuantities(panel) {
  const rows = [...panel.querySelectorAll("[data-tariff]")];
  return new Map(rows.map((row) => [row.dataset.tariff, row.querySelector("input").value]));
}

function fillRow(row, slot, tariff, n, carried) {
  const input = row.querySelector("input");
  const position = `${slot.number}.${n}`;
  row.dataset.tariff = tariff.code;
  const name = row.querySelector("[data-tariff-name]");
  name.textContent = tariff.name;
  name.hidden = slot.tariffs.length === 1 && tariff.name === tariff.code;
  row.querySelector("[data-tariff-price]").textContent = tariff.price ? money(tariff.price) : say("free");
  row.querySelector("[data-companion]").hidden = !tariff.needs_companion;
  input.disabled = false;
  if (page.isSingle) {
    input.type = slot.tariffs.length > 1 ? "radio" : "hidden";
    input.value = position;
    input.toggleAttribute("checked", n === 0);
  } else {
    input.name = `quantity.${position}`;
    input.value = carried.get(tariff.code) ?? 0;
    input.setAttribute("aria-label", `${slot.name}, ${tariff.name}`);
    row.querySelector('[data-step="-1"]').setAttribute("aria-label", say("fewer", { tariff: tariff.name }));
    row.querySelector('[data-step="1"]').setAttribute("aria-label", say("more", { tariff: tariff.name }));
  }
  return row;
}
