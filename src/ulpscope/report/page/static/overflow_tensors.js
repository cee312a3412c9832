/**
 * The tensors of an operation that overflowed, and what its device noted.
 * @module overflow_tensors
 */
import { el } from "dom";
import { countText, valueText } from "numbers";

const NUMBERS = ["min", "max", "mean", "nan", "pos_inf", "neg_inf"];
const COLUMNS = ["side", "place", "dtype", "shape", ...NUMBERS];

/** @param {import("views").Context} context @param {any} found @returns {(HTMLElement | null)[]} */
export function overflowTensors({ word }, { evidence }) {
  return [record(word, evidence.record), tensors(word, evidence.tensors ?? [])];
}

/** @param {import("views").Context["word"]} word @param {any[]} found */
function tensors(word, found) {
  if (!found.length) return null;
  const look = (/** @type {string} */ name) => (NUMBERS.includes(name) ? "number" : "name");
  const head = COLUMNS.map((name) => el("th", { scope: "col", class: look(name) }, word(`seen.${name}`)));
  const rows = found.map((tensor) =>
    el(
      "tr",
      {},
      COLUMNS.map((name) => el("td", { class: look(name) }, cell(word, name, tensor[name]))),
    ),
  );
  return el(
    "section",
    { class: "card scroll" },
    el("h2", {}, word("seen.title")),
    el("table", { class: "plain" }, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows)),
  );
}

/** @param {import("views").Context["word"]} word @param {string} name @param {any} value */
function cell(word, name, value) {
  if (value === null || value === undefined) return "–";
  if (name === "side") return word(`seen.${value}`);
  if (Array.isArray(value)) return `[${value.join(", ")}]`;
  return typeof value === "number" ? (Number.isInteger(value) ? countText(value) : valueText(value)) : String(value);
}

/** @param {import("views").Context["word"]} word @param {any} noted */
function record(word, noted) {
  if (!noted) return null;
  const lines = [
    [word("record.unit"), noted.unit],
    [word("record.status"), noted.status.map((/** @type {number} */ code) => `0x${code.toString(16)}`).join(" ")],
    [word("record.meanings"), noted.meanings.join(", ") || "–"],
    [word("record.task"), `${noted.task ?? "–"} / ${noted.stream ?? "–"}`],
    [word("record.file"), noted.file],
  ];
  const entries = lines.map(([name, text]) => [el("dt", {}, name), el("dd", { class: "name" }, text)]);
  return el("section", { class: "card" }, el("h2", {}, word("record.title")), el("dl", { class: "counts" }, entries));
}
