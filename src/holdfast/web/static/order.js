/** The order beside the map: what the buyer has chosen, with prices. */

import { make } from "./dom.js";
import { icon, money, page, say } from "./page.js";

export class Order extends EventTarget {
  constructor(form) {
    super();
    this.form = form;
    this.field = (name) => form.querySelector(`[data-${name}]`);
    this.tariffs = new Map();
    this.poolOf = new Map();
    this.seats = [];
    document.querySelectorAll("[data-pool]").forEach((pool) => this.listen(pool));
    this.render();
  }

  /** Look up the pool of each seat, once the layout is loaded. */
  setLayout(layout) {
    layout.seats.forEach(([label, pool]) => this.poolOf.set(label, page.pools[pool]));
  }

  setSeats(labels) {
    this.seats = labels;
    this.render();
  }

  listen(pool) {
    const inputs = [...pool.querySelectorAll("input")];
    pool.addEventListener("click", (event) => this.step(event.target.closest("[data-step]")));
    inputs.forEach((input) => input.addEventListener("input", () => this.render()));
  }

  step(button) {
    const input = button?.parentElement.querySelector("input");
    if (!input || input.disabled) {
      return;
    }
    const wanted = Number(input.value) + Number(button.dataset.step);
    input.value = Math.max(0, Math.min(wanted, Number(input.max)));
    this.render();
  }

  tariffOf(label) {
    const { tariffs } = this.poolOf.get(label);
    return tariffs.find((tariff) => tariff.code === this.tariffs.get(label)) ?? tariffs[0];
  }

  quantities() {
    return page.pools.flatMap((pool, n) =>
      pool.tariffs.map((tariff, m) => {
        const input = document.getElementsByName(`quantity.${n}.${m}`)[0];
        return { price: tariff.price, quantity: Number(input?.value ?? 0) };
      }),
    );
  }

  get subtotal() {
    const seats = this.seats.map((label) => this.tariffOf(label).price);
    const pools = this.quantities().map((chosen) => chosen.price * chosen.quantity);
    return [...seats, ...pools].reduce((sum, price) => sum + price, 0);
  }

  get units() {
    return this.seats.length + this.quantities().reduce((sum, chosen) => sum + chosen.quantity, 0);
  }

  render() {
    const tax = Math.floor((this.subtotal * page.taxBps + 5000) / 10000);
    this.field("picks").replaceChildren(...this.seats.map((label) => this.row(label)));
    this.field("empty").hidden = this.units > 0;
    this.field("sums").hidden = this.units === 0;
    this.field("subtotal").textContent = money(this.subtotal);
    if (this.field("tax")) {
      this.field("tax").textContent = money(tax);
    }
    this.field("total").textContent = money(this.subtotal + tax);
    this.field("submit").disabled = this.units === 0;
    const chosen = this.seats.map((seat) => ({ seat, tariff: this.tariffOf(seat).code }));
    this.form.elements.seats.value = JSON.stringify(chosen);
    document.querySelectorAll("[data-pool]").forEach((pool) => {
      const isChosen = [...pool.querySelectorAll("input")].some((input) => Number(input.value) > 0);
      pool.classList.toggle("pool--chosen", isChosen);
    });
  }

  row(label) {
    const parts = [this.heading(label), this.removeButton(label), this.tariffSelect(label), this.price(label)];
    return make("li", { class: "pick" }, ...parts);
  }

  heading(label) {
    return make("span", {}, make("strong", {}, label), ` ${this.poolOf.get(label).name}`);
  }

  removeButton(label) {
    const named = { "aria-label": say("remove", { seat: label }) };
    const button = make("button", { type: "button", class: "button button--plain button--icon", ...named }, icon("cross"));
    button.addEventListener("click", () => this.dispatchEvent(new CustomEvent("remove", { detail: label })));
    return button;
  }

  tariffSelect(label) {
    const { tariffs } = this.poolOf.get(label);
    if (tariffs.length === 1) {
      return make("span");
    }
    const options = tariffs.map((tariff) => new Option(tariff.name, tariff.code));
    const select = make("select", { class: "select", "aria-label": say("tariffOf", { seat: label }) }, ...options);
    select.value = this.tariffOf(label).code;
    select.addEventListener("change", () => this.setTariff(label, select.value));
    return select;
  }

  setTariff(label, code) {
    this.tariffs.set(label, code);
    this.render();
    this.form.querySelector(`[aria-label="${CSS.escape(say("tariffOf", { seat: label }))}"]`)?.focus();
  }

  price(label) {
    return make("span", { class: "price" }, money(this.tariffOf(label).price));
  }
}
