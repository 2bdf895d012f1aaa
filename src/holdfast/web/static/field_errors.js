/** What is wrong with a field, next to the field. */

/** Mark the fields with these errors, by name, and move to the first of them. Clear all others. */
export function showErrors(form, errors = {}) {
  const marked = [...form.querySelectorAll("[data-field]")].filter((field) => mark(field, errors[field.dataset.field]));
  marked[0]?.querySelector("input, select")?.focus();
  return marked.length;
}

/** A correction removes the mark. */
export function clearErrorsOnInput(form) {
  form.addEventListener("input", (event) => {
    const field = event.target.closest("[data-field]");
    if (field) {
      mark(field, undefined);
    }
  });
}

function mark(field, text) {
  const error = field.querySelector("[data-error]");
  error.hidden = text === undefined;
  error.querySelector("span").textContent = text ?? "";
  // A group of radio buttons is invalid as a whole.
  const owner = field.matches("fieldset") ? field : field.querySelector("input, select");
  if (text === undefined) {
    owner.removeAttribute("aria-invalid");
  } else {
    owner.setAttribute("aria-invalid", "true");
  }
  return text !== undefined;
}
