// All nodes together: the figures at the top, and the output and first tokens over time.

import { element, find } from "../dom.js";
import { bytes, count } from "../format.js";
import { figure, hitFigure, memoryFigure, rateFigure, waitFigure, whole } from "../parts/figures.js";
import { LinePlot } from "../parts/line_plot.js";
import { LEVELS, mark } from "../parts/marks.js";

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
      figure("Nodes that answer", `${count(totals.nodes - (totals.levels.dead ?? 0) - (totals.levels.unasked ?? 0))} of ${count(totals.nodes)}`, ...levels(totals.levels)),
      rateFigure("Output", totals.output_rate, "of all nodes"),
      waitFigure("First token", known(totals.ttft), targets.ttft),
      waitFigure("Each token after", known(totals.itl), targets.itl),
      figure("Waiting", count(totals.waiting), `${count(totals.running)} running`),
      hitFigure(totals.hit),
      memoryFigure(totals.arena),
    );
    this.output.draw(series.at, series);
    this.ttft.draw(series.at, series);
  }
}

const known = (spread) => (spread.p50 === null ? null : spread);

function levels(numbers) {
  const shown = Object.keys(LEVELS).filter((level) => numbers[level]);
  return shown.map((level) => element("span", { class: "level" }, mark(level), ` ${count(numbers[level])} ${LEVELS[level][1]}`));
}
