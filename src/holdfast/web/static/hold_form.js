/** Sends the forms that place a hold, and shows what the server answers. */

import { showErrors } from "./field_errors.js";
import { GuestCheck } from "./guest_check.js";
import { page, say } from "./page.js";

export class HoldForm {
  /** `showProblem` shows a refusal; its fields are marked in the order form. */
  constructor(order, showProblem) {
    this.order = order;
    this.showProblem = showProblem;
    this.check = page.check ? new GuestCheck(page.check) : null;
    this.isSending = false;
    document.querySelectorAll("form[data-hold]").forEach((form) => form.addEventListener("submit", (event) => this.hold(event)));
  }

  async hold(event) {
    event.preventDefault();
    const form = event.target;
    const button = form.querySelector(".button:not([type=button])");
    if (this.isSending) {
      return;
    }
    this.isSending = true;
    button.setAttribute("aria-busy", "true");
    try {
      await this.send(form);
    } catch {
      this.showProblem({ text: say("offline") });
    } finally {
      this.isSending = false;
      button.removeAttribute("aria-busy");
    }
  }

  async send(form) {
    let result = await this.post(form);
    if (result.code === "check_expired") {
      await this.check.renew();
      result = await this.post(form);
    }
    if (result.booking) {
      location.assign(result.booking);
      // Stay busy until the browser leaves this page.
      await new Promise(() => {});
    } else if (result.code === "details_needed") {
      this.openDetails(form);
    } else {
      this.showProblem({ ...result, text: result.text ?? say("failed") });
      showErrors(this.order, result.errors);
    }
  }

  async post(form) {
    const body = new URLSearchParams(new FormData(form));
    this.buyerFields(form).forEach(([name, value]) => body.set(name, value));
    Object.entries((await this.check?.fields()) ?? {}).forEach(([name, value]) => body.set(name, value));
    const response = await fetch(page.hold, { method: "POST", body, headers: { accept: "application/json" } });
    return response.json();
  }

  /** The form for the best seats has no fields about the buyer, so those of the order go with it. */
  buyerFields(form) {
    const names = ["name", "email", "phone", "asked"];
    const fields = form === this.order ? [] : [...new FormData(this.order)];
    return fields.filter(([name]) => names.includes(name) || name.startsWith("answer."));
  }

  /** Let the server ask for the rest on another page. */
  openDetails(form) {
    this.buyerFields(form)
      .filter(([name]) => name !== "asked")
      .forEach(([name, value]) => {
        const field = document.createElement("input");
        Object.assign(field, { type: "hidden", name, value });
        form.append(field);
      });
    form.submit();
  }
}
