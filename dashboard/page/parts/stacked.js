// Parts of a whole as one bar.

import { shape } from "../dom.js";

// A bar of parts: [[class, amount]]. Its widths are attributes: the page's policy forbids styles in markup.
export function stacked(parts, words) {
  const whole = parts.reduce((sum, [, amount]) => sum + amount, 0);
  let x = 0;
  const boxes = parts.filter(([, amount]) => amount > 0).map(([name, amount]) => {
    const width = (100 * amount) / whole;
    const box = shape("rect", { class: name, x: x.toFixed(2), width: width.toFixed(2), y: 0, height: 8 });
    x += width;
    return box;
  });
  return shape("svg", { class: "stacked", viewBox: "0 0 100 8", preserveAspectRatio: "none", role: "img", "aria-label": words },
    shape("title", {}, words), ...boxes);
}
