/** The order beside the map: what the buyer has chosen, with prices. */

import { make } from "./dom.js";
import { icon, money, page, say } from "./page.js";
import { UnitQuestions } from "./unit_questions.js";

const CHOICES = '[name^="quantity."], [name="choice"]';

export class Order extends EventTarget {
  constructor(form) {
    super();
    this.form = form;
    this.field = (name) => form.querySelector(`[data-${name}]`);
    this.tariffs = new Map();
    this.poolOf = new Map();
    this.seats = [];
    // What the buyer sent before. The map may still be loading.
    this.sentSeats = JSON.parse(form.elements.seats.value || "[]");
    this.questions = new UnitQuestions(form);
    // The box of a slot comes and goes, so the document listens for all boxes.
    document.addEventListener("click", (event) => this.step(event.target.closest("[data-step]")));
    document.addEventListener("input", (event) => event.target.matches(CHOICES) && this.render());
    this.render();
  }

  /** Look up the pool of each seat, once the layout is loaded. */
  setLayout(layout) {
    layout.seats.forEach(([label, pool]) => this.poolOf.set(label, page.pools[pool]));
  }

  /** Choose the seats again that the page was sent with. */
  restoreSeats(select) {
    this.sentSeats.forEach(({ seat, tariff }) => {
      this.tariffs.set(seat, tariff);
      select(seat);
    });
  }

  setSeats(labels) {
    this.seats = labels;
    this.render();
  }

  step(button) {
    const input = button?.parentElement.querySelector("input");
    if (!input || input.disabled) {
      return;
    }
    const wanted = Number(input.value) + Number(button.dataset.step);
    const most = Math.min(Number(input.max), Number(input.value) + this.room);
    input.value = Math.max(0, Math.min(wanted, most));
    this.render();
  }

  /** How many more units the booking can have. */
  get room() {
    return page.most === null ? Infinity : Math.max(0, page.most - this.units);
  }

  tariffOf(label) {
    const { tariffs } = this.poolOf.get(label);
    return tariffs.find((tariff) => tariff.code === this.tariffs.get(label)) ?? tariffs[0];
  }

  /** The tariffs that the buyer wants of pools, in the order in which the server reads them. */
  quantities() {
    const inputs = [...document.querySelectorAll(CHOICES)].filter((input) => !input.disabled);
    return inputs.map(readInput).filter(({ quantity }) => quantity > 0).sort((one, other) => one.n - other.n || one.m - other.m);
  }

  get subtotal() {
    const seats = this.seats.map((label) => this.tariffOf(label).price);
    const pools = this.quantities().map((chosen) => chosen.tariff.price * chosen.quantity);
    return [...seats, ...pools].reduce((sum, price) => sum + price, 0);
  }

  get units() {
    return this.seats.length + this.quantities().reduce((sum, chosen) => sum + chosen.quantity, 0);
  }

  render() {
    const { units, subtotal } = this;
    const tax = Math.floor((subtotal * page.taxBps + 5000) / 10000);
    const rows = [...this.seats.map((label) => this.row(label)), ...this.quantities().map(quantityRow)];
    this.field("picks").replaceChildren(...rows);
    this.field("empty").hidden = units > 0;
    if (page.taxBps) {
      this.field("sums").hidden = units === 0;
      this.field("subtotal").textContent = money(subtotal);
      this.field("tax").textContent = money(tax);
    }
    this.field("total").textContent = money(subtotal + tax);
    this.field("submit").disabled = units < page.least;
    const chosen = this.seats.map((seat) => ({ seat, tariff: this.tariffOf(seat).code }));
    this.form.elements.seats.value = JSON.stringify(chosen);
    this.questions.show(this.unitList());
    this.showBoxes();
  }

  /** Every unit, with a key that stays the same while the buyer chooses others. */
  unitList() {
    const seats = this.seats.map((label) => ({ key: label, name: label }));
    const others = this.quantities().flatMap(({ n, m, tariff, quantity }) =>
      Array.from({ length: quantity }, (_, at) => ({ key: `${n}.${m}.${at}`, name: tariff.name })),
    );
    return [...seats, ...others];
  }

  showBoxes() {
    const { room } = this;
    document.querySelectorAll("[data-pool]").forEach((pool) => {
      const inputs = [...pool.querySelectorAll(CHOICES)];
      pool.classList.toggle("pool--chosen", inputs.some((input) => readInput(input).quantity > 0));
      pool.querySelectorAll("[data-step]").forEach((button) => showStep(button, room));
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

/** Inputs are named `quantity.<pool>.<tariff>`; a choice of one has that position as its value. */
function readInput(input) {
  const isChoice = input.name === "choice";
  const [n, m] = (isChoice ? input.value : input.name.slice("quantity.".length)).split(".").map(Number);
  const one = input.checked || input.type === "hidden" ? 1 : 0;
  return { n, m, pool: page.pools[n], tariff: page.pools[n].tariffs[m], quantity: isChoice ? one : Number(input.value) };
}

function quantityRow({ pool, tariff, quantity }) {
  const where = pool.time ?? pool.name;
  // A pool with one tariff needs no name for it, unless the organiser gave it one.
  const isPlain = pool.tariffs.length === 1 && tariff.name === tariff.code;
  const name = isPlain ? [where] : [tariff.name, make("br"), make("span", { class: "fine" }, where)];
  const price = make("span", { class: "price" }, tariff.price ? money(tariff.price * quantity) : say("free"));
  return make("li", { class: "pick pick--units" }, make("span", {}, `${quantity} × `, ...name), price);
}

function showStep(button, room) {
  const input = button.parentElement.querySelector("input");
  const isMore = button.dataset.step === "1";
  const isAtMost = Number(input.value) >= Number(input.max) || room === 0;
  button.disabled = input.disabled || (isMore ? isAtMost : Number(input.value) <= 0);
}
