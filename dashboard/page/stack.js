// A stacked area over time, drawn by uPlot.

import { colour } from "./dom.js";

export class StackPlot {
  // names: from the bottom up, each a colour.
  constructor(place, names) {
    this.place = place;
    this.names = names;
    this.plot = null;
  }

  // at: seconds since 1970, one a point; columns: numbers by name, missing ones are zero.
  draw(at, columns) {
    const present = this.names.filter((name) => columns[name]?.some((value) => value > 0));
    let below = at.map(() => 0);
    const sums = present.map((name) => (below = columns[name].map((value, i) => value + below[i])));
    const data = [at, ...sums.reverse()];
    if (this.plot && this.shown === present.join()) {
      this.plot.setData(data);
      return;
    }
    this.plot?.destroy();
    this.shown = present.join();
    this.plot = new window.uPlot(this.options([...present].reverse(), columns), data, this.place);
  }

  // The upper areas are drawn first and the lower ones over them.
  options(names) {
    const axis = { stroke: colour("ink"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line") } };
    return {
      width: this.place.clientWidth || 600,
      height: 240,
      legend: { show: false },
      cursor: { show: false },
      scales: { y: { range: (_, __, top) => [0, Math.max(1, top)] } },
      axes: [axis, { ...axis, size: 64 }],
      series: [{}, ...names.map((name) => ({
        label: name, stroke: colour(name), fill: colour(name), width: 1,
        paths: window.uPlot.paths.stepped({ align: -1 }), points: { show: false },
      }))],
    };
  }

  resize() {
    if (this.place.clientWidth) this.plot?.setSize({ width: this.place.clientWidth, height: 240 });
  }
}
