// Lines over time, drawn by uPlot, with a unit at each mark of the axis.

import { colour } from "../dom.js";

const HEIGHT = 150;

// A value without a neighbour has no line, so it gets a point.
function alone(plot, series) {
  const values = plot.data[series];
  return values.flatMap((value, index) => (value != null && values[index - 1] == null && values[index + 1] == null ? [index] : []));
}

export class LinePlot {
  // lines: [column, colour]; words: a value with its unit.
  constructor(place, lines, words) {
    this.place = place;
    this.lines = lines;
    this.words = words;
    this.plot = null;
    new ResizeObserver(() => this.resize()).observe(place);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.plot?.destroy(); this.plot = null; });
  }

  // at: seconds since 1970; columns: numbers by name, null for a missing one.
  draw(at, columns) {
    const data = [at, ...this.lines.map(([name]) => columns[name])];
    if (this.plot) this.plot.setData(data);
    else this.plot = new window.uPlot(this.options(), data, this.place);
  }

  options() {
    const axis = { stroke: colour("ink"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line"), size: 4 }, font: "12px system-ui, sans-serif" };
    return {
      width: this.place.clientWidth || 600,
      height: HEIGHT,
      legend: { show: false },
      cursor: { show: false },
      scales: { y: { range: (_, __, top) => [0, top > 0 ? 1.1 * top : 1] } },
      axes: [
        { ...axis, space: 80, size: 28, values: (_, ticks) => ticks.map((at) => new Date(at * 1000).toLocaleTimeString("en-GB").replace(/:00$/, "")) },
        { ...axis, space: 28, size: 72, values: (_, ticks) => ticks.map(this.words) },
      ],
      series: [{}, ...this.lines.map(([name, stroke]) => ({
        label: name, stroke: colour(stroke), width: 2, spanGaps: false, points: { show: true, size: 4, fill: colour(stroke), filter: alone },
      }))],
    };
  }

  resize() {
    if (this.place.clientWidth) this.plot?.setSize({ width: this.place.clientWidth, height: HEIGHT });
  }
}
