// Short forms of values: a level's mark, a value over another, a spread.

import { element } from "../dom.js";
import { percent, seconds } from "../format.js";

// A level of trouble: its mark, distinct even without its colour, and its word.
export const LEVELS = { dead: ["✕", "dead"], faulty: ["◆", "faulty"], slow: ["▲", "slow"], fine: ["●", "ok"], unasked: ["○", "not asked yet"] };

export function mark(level) {
  const [sign, word] = LEVELS[level] ?? LEVELS.faulty;
  return element("span", { class: `mark ${level in LEVELS ? level : "faulty"}`, title: word, role: "img", "aria-label": word }, sign);
}

// Median and 95th percentile, one over the other.
export function spread(value) {
  return value ? pair(seconds(value.p50), `p95 ${seconds(value.p95)}`) : "-";
}

export function pair(first, second) {
  return element("span", { class: "pair" }, first, element("small", {}, second));
}

export function share(part, whole) {
  return percent(part, whole).replace(".0 %", " %");
}
