// The tiles at the top of both pages: a figure has the same meaning and look on each.

import { element } from "../dom.js";
import { bytes, count, percent, seconds, spoken } from "../format.js";
import { CAUSES, MEMORY } from "../words.js";
import { stacked } from "./stacked.js";

export function figure(title, value, ...detail) {
  return element("div", {}, element("dt", {}, title), element("dd", {}, value), element("dd", { class: "detail" }, ...detail));
}

// rate: tokens a second, null if it is not known.
export function rateFigure(title, rate, ...detail) {
  return figure(title, rate === null ? "-" : `${count(rate)} tok/s`, ...detail);
}

// spread: p50 and p95 in seconds, or null. target: null if there is none.
export function waitFigure(title, spread, target) {
  const late = spread ? [element("span", target !== null && spread.p95 > target ? { class: "over" } : {}, `p95 ${seconds(spread.p95)}`)] : [];
  const wanted = target === null ? [] : [`target ${whole(target)}`];
  const words = late.length && wanted.length ? [...late, element("br"), ...wanted] : [...late, ...wanted];
  return figure(title, seconds(spread?.p50), ...(words.length ? words : ["no answer in the last minute"]));
}

// hit: prompt tokens, usable ones, the others by cause; or null.
export function hitFigure(hit) {
  if (!hit?.prompt) return figure("Hit rate", "-", "no prompt in the last minute");
  return figure("Hit rate", percent(hit.usable, hit.prompt), hitBar(hit), losses(hit));
}

export function hitBar(hit) {
  const lost = CAUSES.filter(([name]) => hit.lost[name]).map(([name]) => [name, hit.lost[name]]);
  const words = [["usable", hit.usable], ...lost].map(([name, tokens]) => `${spoken(name)} ${percent(tokens, hit.prompt)}`).join(", ");
  return stacked([["usable", hit.usable], ...lost], words);
}

// The two causes with the highest cost.
function losses(hit) {
  const worst = Object.entries(hit.lost).sort(([, one], [, other]) => other - one).slice(0, 2);
  return worst.map(([cause, tokens]) => `${spoken(cause)} ${percent(tokens, hit.prompt)}`).join(", ");
}

// memory: bytes of the arena by use, or null.
export function memoryFigure(memory) {
  if (!memory?.size) return figure("Memory in use", "-", "not known");
  return figure("Memory in use", percent(memory.in_use, memory.size), memoryBar(memory),
    `${percent(memory.cached, memory.size)} cached, of ${bytes(memory.size)}`);
}

// pictures: those since the start by outcome, and bytes of their rows by use.
export function pictureFigure({ outcomes, row_bytes: rows }) {
  const number = Object.values(outcomes).reduce((sum, one) => sum + one, 0);
  const words = Object.entries(outcomes).map(([outcome, one]) => `${count(one)} ${outcome}`);
  const used = rows.pinned + rows.kept;
  return figure("Pictures", count(number), ...(words.length ? [words.join(", "), element("br")] : []),
    `rows ${bytes(used)} of ${bytes(used + rows.free)}`);
}

export function memoryBar(memory) {
  const words = MEMORY.map(([name]) => `${spoken(name)} ${percent(memory[name], memory.size)}`).join(", ");
  return stacked(MEMORY.map(([name]) => [name, memory[name]]), `arena: ${words}`);
}

export const whole = (value) => seconds(value).replace(".00 ", " ");
