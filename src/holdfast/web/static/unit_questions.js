/** The questions about each unit: one group of fields per unit that the buyer has chosen. What somebody typed about a
    seat stays with that seat, whatever else they choose. */

export class UnitQuestions {
  constructor(form) {
    this.form = form;
    this.element = form.querySelector("[data-units]");
    this.template = document.getElementById("unit-template");
    this.groups = new Map();
    this.keys = "";
  }

  /** Ask about these units: `[{key, name}]`, in the order of the request. */
  show(units) {
    if (!this.element) {
      return;
    }
    this.form.elements.asked.value = units.length;
    const keys = JSON.stringify(units.map(({ key }) => key));
    if (keys === this.keys) {
      return;
    }
    this.keys = keys;
    // Take all groups out before any of them gets another's name: two groups of radio buttons must never share one.
    this.element.replaceChildren();
    this.element.append(...units.map(({ key, name }, n) => this.group(key, name, n + 1)));
  }

  group(key, name, number) {
    const group = this.groups.get(key) ?? this.template.content.cloneNode(true).firstElementChild;
    this.groups.set(key, group);
    group.dataset.unit = number;
    const [heading] = group.querySelector("legend").childNodes;
    heading.textContent = heading.textContent.replace(/\d+/, number);
    group.querySelector("[data-unit-name]").textContent = name ? ` · ${name}` : "";
    rename(group, number);
    return group;
  }
}

/** Fields are named `answer.<code>#<unit>`, and their ids start with `unit-<unit>-`. */
function rename(group, number) {
  group.querySelectorAll("*").forEach((element) => {
    for (const attribute of ["name", "data-field"]) {
      replace(element, attribute, /#\d+$/, `#${number}`);
    }
    for (const attribute of ["id", "for", "aria-describedby"]) {
      replace(element, attribute, /\bunit-\d+-/g, `unit-${number}-`);
    }
  });
}

function replace(element, attribute, pattern, text) {
  const value = element.getAttribute(attribute);
  if (value !== null && value.search(pattern) >= 0) {
    element.setAttribute(attribute, value.replace(pattern, text));
  }
}
