// All nodes together: the figures at the top, and how output and first tokens went.

import { element, find } from "../dom.js";
import { bytes, count, percent, seconds, spoken } from "../format.js";
import { CAUSES } from "../words.js";
import { LinePlot } from "./line_plot.js";
import { LEVELS, mark, stacked } from "./parts.js";

export class Summary {
  constructor() {
    this.output = new LinePlot(find("output-plot"), [["output_rate", "usable"]], (value) => `${count(value)}/s`);
    this.ttft = new LinePlot(find("ttft-plot"), [["ttft_p50", "focus"], ["ttft_p95", "checkpoint_evicted"]],
      whole);
  }

  draw({ totals, series, targets }) {
    const roles = Object.entries(totals.roles).sort().map(([role, number]) => `${count(number)} ${role}`);
    const kept = Object.entries(totals.memory).map(([name, size]) => `${bytes(size)} ${name}`).join(", ");
    find("about").textContent = [...totals.models, ...roles].join(", ") + (kept ? `; caches: ${kept}` : "");
    document.title = `${totals.levels.dead ? `${totals.levels.dead} dead - ` : ""}tasuki fleet`;
    find("figures").replaceChildren(
      figure("Nodes that answer", `${count(totals.nodes - (totals.levels.dead ?? 0) - (totals.levels.unasked ?? 0))} of ${count(totals.nodes)}`, levels(totals.levels)),
      figure("Output", totals.output_rate === null ? "-" : `${count(totals.output_rate)} tok/s`, `${count(totals.running)} requests running`),
      figure("First token", seconds(totals.ttft.p50), late(totals.ttft.p95, targets.ttft)),
      figure("Each token after", seconds(totals.itl.p50), late(totals.itl.p95, targets.itl)),
      figure("Waiting", `${count(totals.waiting)}`, "requests in queues"),
      figure("Hit rate", percent(totals.hit.usable, totals.hit.prompt), [hitBar(totals.hit), losses(totals.hit)]),
    );
    this.output.draw(series.at, series);
    this.ttft.draw(series.at, series);
  }
}

// "hit" as the nodes' rows have it.
export function hitBar(hit) {
  const lost = CAUSES.filter(([name]) => hit.lost[name]).map(([name]) => [name, hit.lost[name]]);
  const words = [["usable", hit.usable], ...lost].map(([name, tokens]) => `${name} ${percent(tokens, hit.prompt)}`).join(", ");
  return hit.prompt ? stacked([["usable", hit.usable], ...lost], words) : "no prompt in the last minute";
}

// The two causes that cost most.
function losses(hit) {
  const worst = Object.entries(hit.lost).sort(([, one], [, other]) => other - one).slice(0, 2);
  return worst.map(([cause, tokens]) => `${spoken(cause)} ${percent(tokens, hit.prompt)}`).join(", ");
}

const whole = (value) => seconds(value).replace(".00 ", " ");

function figure(title, value, detail) {
  return element("div", {}, element("dt", {}, title), element("dd", {}, value), element("dd", { class: "detail" }, ...[detail].flat()));
}

function late(p95, target) {
  const words = `target ${whole(target)}`;
  return p95 === null ? words : [element("span", p95 > target ? { class: "over" } : {}, `p95 ${seconds(p95)}`), element("br"), words];
}

function levels(numbers) {
  const shown = Object.keys(LEVELS).filter((level) => numbers[level]);
  return shown.map((level) => element("span", { class: "level" }, mark(level), ` ${count(numbers[level])} ${LEVELS[level][1]}`));
}
