// Making elements, and filling words into texts.

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function fill(text, words) {
  return text.replace(/\{(\w+)\}/g, (all, name) => words[name] ?? all);
}
