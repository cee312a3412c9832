/**
 * The rows of the model's tree: a name on either side, and between them what was found.
 * @module model_rows
 */
import { el } from "dom";
import { errorText } from "numbers";
import { JUDGEMENTS } from "theme";

/** @typedef {import("model_tree").Node} Node */

/** @param {import("views").Context["word"]} word */
export function headRow(word) {
  const heads = ["side.reference", "column.judgement", "side.target", "model.graph.head"];
  return el(
    "div",
    { class: "row", role: "row", "aria-rowindex": 1 },
    heads.map((key) => el("div", { class: "cell", role: "columnheader" }, word(key))),
  );
}

/** @param {import("views").Context} context @param {Node} one @param {boolean} isOpen @returns {HTMLElement[]} */
export function rowCells({ store, word }, one, isOpen) {
  return [
    nameCell(word, one, "reference", isOpen),
    stateCell(word, one),
    nameCell(word, one, "target", isOpen),
    el("div", { class: "cell", role: "gridcell" }, graphButton(store, word, one)),
  ];
}

/** What a graph is asked for by: of a call, what lies around it; of a module, its inside. @param {Node} one */
export function graphOf(one) {
  if (one.isCall) return one.row === null ? null : `row:${one.row}`;
  return one.path === null ? null : `module:${one.path}`;
}

/**
 * @param {import("views").Context["word"]} word @param {Node} one @param {"reference" | "target"} side
 * @param {boolean} isOpen
 */
function nameCell(word, one, side, isOpen) {
  const name = one.label[side];
  const style = { "padding-left": `${8 + 16 * (one.depth - 1)}px` };
  if (name === null) {
    return el(
      "div",
      { class: "cell partnerless", role: "gridcell", style },
      el("span", { class: "twisty", "aria-hidden": "true" }),
      word("model.partnerless"),
    );
  }
  const isUsual = !one.isCall || one.phase === null || one.phase === "forward";
  return el(
    "div",
    { class: `cell name ${one.isCall ? "" : "module"}`, role: "gridcell", style, title: one.full[side] ?? "" },
    el("span", { class: "twisty", "aria-hidden": "true" }, one.isCall ? "" : isOpen ? "▾" : "▸"),
    name,
    isUsual ? null : el("span", { class: "muted" }, ` ${word(`phase.${one.phase}`)}`),
  );
}

/** @param {import("views").Context["word"]} word @param {Node} one */
function stateCell(word, one) {
  const judged = JUDGEMENTS.filter((name) => one.counts[name]);
  const told = judged.map((name) => `${word(`judgement.${name}`)} ${one.counts[name]}`);
  if (one.unmatched) told.push(word("model.unmatched", { calls: one.unmatched }));
  const worst = one.worst === null ? word("model.unmatched.short") : word(`judgement.${one.worst}`);
  const parts = judged.map((name) =>
    el("span", { style: { "flex-grow": String(one.counts[name]), background: `var(--${name.replace("_", "-")})` } }),
  );
  return el(
    "div",
    { class: "cell state", role: "gridcell", title: told.join(", ") },
    el("span", { class: `chip ${one.worst ?? "not_compared"}` }, worst),
    el("span", { class: judged.length ? "share" : "", "aria-hidden": "true" }, parts),
    el("span", { class: "number" }, one.worst === null ? "" : errorText(one.error)),
    el("span", { class: "lone" }, one.unmatched && !one.isCall ? word("model.alone", { calls: one.unmatched }) : ""),
  );
}

/** @param {import("store").Store} store @param {import("views").Context["word"]} word @param {Node} one */
function graphButton(store, word, one) {
  const wanted = graphOf(one);
  if (wanted === null) return null;
  const title = word(one.isCall ? "model.graph_around" : "model.graph");
  const click = () => store.set({ "model.graph": wanted });
  const props = { class: "link", tabindex: "-1", title, "aria-label": title, on: { click } };
  return el("button", props, word("model.graph.short"));
}
