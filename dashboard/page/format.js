// Numbers in a form for people.

export const count = (value) => Math.round(value).toLocaleString("en");

export function percent(part, whole) {
  return whole ? `${((100 * part) / whole).toFixed(1)} %` : "-";
}

export function seconds(value) {
  if (value === null || value === undefined) return "-";
  if (value === 0) return "0 s";
  if (value < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 1) return `${(value * 1000).toFixed(value < 0.01 ? 2 : 0)} ms`;
  return `${value.toFixed(2)} s`;
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let index = 0;
  while (value >= 1024 && index < units.length - 1) { value /= 1024; index += 1; }
  return `${value.toFixed(index ? 1 : 0)} ${units[index]}`;
}

// A duration in its largest two units.
export function duration(value) {
  const minutes = Math.max(0, Math.floor(value / 60));
  const [days, hours] = [Math.floor(minutes / 1440), Math.floor(minutes / 60) % 24];
  return days ? `${days} d ${hours} h` : hours ? `${hours} h ${minutes % 60} min` : `${minutes} min`;
}

// An internal name as words.
export const spoken = (name) => name.replaceAll("_", " ");

export const clock = (at) => new Date(at * 1000).toLocaleTimeString("en-GB");
