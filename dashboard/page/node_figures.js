// The node's state at the top of its page: health, the last minute in tiles, and the last five
// minutes as lines.

import { element, find } from "./dom.js";
import { count, seconds } from "./format.js";
import { figure, hitFigure, memoryFigure, pictureFigure, rateFigure, waitFigure, whole } from "./parts/figures.js";
import { LinePlot } from "./parts/line_plot.js";
import { mark } from "./parts/marks.js";

// An older sample of the engine's counters is marked with its age.
const STALE_SECONDS = 5;

export class Figures {
  constructor() {
    this.output = new LinePlot(find("output-plot"), [["rate", "usable"]], (value) => `${count(value)}/s`);
    this.ttft = new LinePlot(find("ttft-plot"), [["p50", "focus"], ["p95", "checkpoint_evicted"]], whole);
  }

  draw(state) {
    this.drawTiles(state, 0);
    const columns = state.about.role === "prefill" ? promptRates(state.hits) : { at: state.series.at, rate: state.series.output_rate };
    this.output.draw(columns.at, columns);
    this.ttft.draw(state.first_tokens.at, state.first_tokens);
    document.body.classList.toggle("prefill", state.about.role === "prefill");
  }

  // silent: seconds since the node sent this.
  drawTiles({ about, at, figures, in_flight: asked }, silent) {
    const age = figures.sampled_at === null ? 0 : at - figures.sampled_at + silent;
    const { running, waiting } = figures;
    const load = running === null ? [] : [`${count(running)} running`];
    if (age > STALE_SECONDS) load.push(element("br"), element("span", { class: "stale" }, `as of ${seconds(Math.round(age)).replace(".00", "")} ago`
      + (asked > running + waiting ? `; ${count(asked)} asked for now` : "")));
    find("figures").replaceChildren(
      healthFigure(figures.health),
      ...(about.role === "prefill"
        ? [rateFigure("Prompts", figures.prompt_rate, "computed for decode nodes"), waitFigure("In the queue", figures.queued, null)]
        : [rateFigure("Output", figures.output_rate, `${count(figures.ended)} ended in the last minute`),
          waitFigure("First token", figures.ttft, null), waitFigure("Each token after", figures.itl, null)]),
      figure("Waiting", waiting === null ? "-" : count(waiting), ...load),
      hitFigure(figures.hit),
      memoryFigure(figures.memory),
      ...(figures.pictures ? [pictureFigure(figures.pictures)] : []),
    );
  }
}

function healthFigure({ word, level, reasons }) {
  const told = reasons.map(({ level: how, text }) => element("span", { class: `trouble ${how}` }, text));
  return figure("Health", element("span", { class: "level", "data-health": word }, mark(level), ` ${word}`),
    ...(told.length ? told.flatMap((one, index) => (index ? [element("br"), one] : [one])) : ["no fault in the last minute"]));
}

function promptRates({ at, columns }) {
  const width = at.length > 1 ? at[1] - at[0] : 1;
  return { at, rate: columns.prompt.map((tokens) => tokens / width) };
}
