// A stacked area over time, drawn by uPlot.

import { colour } from "./dom.js";
import { clock } from "./format.js";

const HEIGHT = 210;

export class StackPlot {
  // names: from the bottom up, each with a colour. unit: unit of the upright axis.
  constructor(place, names, unit) {
    this.place = place;
    this.unit = unit;
    this.names = names;
    this.plot = null;
  }

  // at: seconds since 1970, one a point; columns: numbers by name, missing ones are zero.
  draw(at, columns) {
    const present = this.names.filter((name) => columns[name]?.some((value) => value > 0));
    let below = at.map(() => 0);
    const sums = present.map((name) => (below = columns[name].map((value, i) => value + below[i])));
    const data = [at, ...sums.reverse()];
    const unit = this.unit(at);
    if (this.plot && this.shown === present.join() + unit) {
      this.plot.setData(data);
      return;
    }
    this.plot?.destroy();
    this.shown = present.join() + unit;
    this.plot = new window.uPlot(this.options([...present].reverse(), unit), data, this.place);
  }

  // The upper areas are drawn first and the lower ones over them.
  options(names, unit) {
    const axis = { stroke: colour("ink"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line") } };
    return {
      width: this.place.clientWidth || 600,
      height: HEIGHT,
      legend: { show: false },
      cursor: { show: false },
      scales: { y: { range: (_, __, top) => [0, Math.max(1, top)] } },
      axes: [{ ...axis, space: 80, values: (_, ticks) => ticks.map(clock) }, { ...axis, size: 64, label: unit, labelSize: 20 }],
      series: [{}, ...names.map((name) => ({
        label: name, stroke: colour(name), fill: colour(name), width: 1,
        paths: window.uPlot.paths.stepped({ align: -1 }), points: { show: false },
      }))],
    };
  }

  resize() {
    if (this.place.clientWidth) this.plot?.setSize({ width: this.place.clientWidth, height: HEIGHT });
  }
}
