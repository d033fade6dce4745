// Elements are built, not written as markup, so no text of a request becomes markup.

const SVG = "http://www.w3.org/2000/svg";

export const find = (id) => document.getElementById(id);

export function element(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function shape(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

export function legend(entries) {
  return entries.map(([name, text]) =>
    element("span", {}, element("i", { class: `swatch ${name}` }), text));
}

// Terms and their descriptions; pairs with null are left out.
export function describe(list, pairs) {
  list.replaceChildren(...pairs.filter(([, text]) => text !== null).flatMap(([term, text]) =>
    [element("dt", {}, term), element("dd", {}, text)]));
}

// Calls act on a click and on Enter.
export function onChoose(target, act) {
  target.addEventListener("click", act);
  target.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); act(); }
  });
}

// On an arrow key, focus the result of beside(key), if any.
export function onArrows(target, beside) {
  target.addEventListener("keydown", (event) => {
    const next = beside(event.key);
    if (next) { event.preventDefault(); next.focus(); }
  });
}

// Replace the contents of a place by newly drawn ones. The focus stays on the element with the same
// data-`key`.
export function redraw(place, key, ...drawn) {
  const focused = place.contains(document.activeElement) ? document.activeElement.dataset[key] : undefined;
  place.replaceChildren(...drawn);
  if (focused !== undefined) [...place.querySelectorAll(`[data-${key}]`)].find((one) => one.dataset[key] === focused)?.focus();
}

function fill(target, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) target.setAttribute(name, value);
  target.append(...children);
  return target;
}
