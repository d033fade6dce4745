// For each caller: are its targets kept?

import { element, find } from "../dom.js";
import { count, seconds } from "../format.js";
import { drawCards } from "../parts/cards.js";
import { share, spread } from "../parts/marks.js";
import { stacked } from "../parts/stacked.js";

const TITLES = [
  ["caller", "text name"], ["requests", "number"], ["first token", "number"], ["in time", "number wide-cell"],
  ["each after", "number"], ["in time", "number wide-cell"],
  ["own targets", "number wide-cell"], ["refused", "number"],
];

export class CallerView {
  path(filter) {
    return `/fleet/callers?${new URLSearchParams({ filter })}`;
  }

  draw({ targets, known, matched, rows }) {
    const part = rows.length < matched ? `; ${count(rows.length)} are shown, those furthest from their targets first` : "";
    find("caller-words").textContent = known
      ? `Targets: first token within ${seconds(targets.ttft).replace(".00 ", " ")}, each token after it within ${seconds(targets.itl)}. ${count(matched)} of ${count(known)} callers${part}.`
      : "No node has answered a caller in the last minute.";
    const told = rows.map((row) => [
      row.caller,
      `${row.per_minute < 10 ? row.per_minute.toFixed(1) : count(row.per_minute)}/min`,
      spread(row.ttft.p50 === null ? null : row.ttft),
      kept(row.ttft_kept),
      spread(row.itl.p50 === null ? null : row.itl),
      kept(row.itl_kept),
      kept(row.kept),
      row.refused === null ? "-" : share(row.refused, 1),
    ]);
    drawCards(find("caller-rows"), TITLES, known ? told : []);
  }
}

function kept(value) {
  if (value === null) return "-";
  const words = share(value, 1);
  return element("span", { class: "pair" }, words, stacked([["usable", value], ["checkpoint_evicted", 1 - value]], `${words} within the target`));
}
