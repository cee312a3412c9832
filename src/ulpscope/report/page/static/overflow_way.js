/**
 * The way of an inf or nan: from the call that made it to where it ends, usually the loss.
 * @module overflow_way
 */
import { el } from "dom";
import { countText } from "numbers";

/** So many calls of a long way are shown at each end. */
const ENDS = 6;

/** @param {import("views").Context} context @param {any} found @returns {HTMLElement | null} */
export function overflowWay({ word }, found) {
  const way = found.evidence.way ?? [];
  if (way.length < 2) return null;
  const severalSteps = way.some((/** @type {any} */ call) => call.step !== way[0].step);
  const lines = way.map((/** @type {any} */ call, /** @type {number} */ at) => {
    const role = at === 0 ? "born" : at < way.length - 1 ? "" : call.loss ? "loss" : "last";
    return line(word, call, role, severalSteps ? word("where.step", { step: call.step }) : "");
  });
  const list = el("ol", { class: "way" }, lines);
  if (way.length > 2 * ENDS + 1) {
    const showAll = () => list.replaceChildren(...lines);
    const between = el("button", { on: { click: showAll } }, word("way.between", { calls: way.length - 2 * ENDS }));
    list.replaceChildren(...lines.slice(0, ENDS), el("li", { class: "between" }, between), ...lines.slice(-ENDS));
  }
  return el("section", { class: "card" }, el("h2", {}, word("way.title")), list);
}

/** @param {import("views").Context["word"]} word @param {any} call @param {string} role @param {string} step */
function line(word, call, role, step) {
  const where = [step, call.module, word(`phase.${call.phase}`), call.tensor].filter(Boolean).join(" · ");
  return el(
    "li",
    { class: role },
    el(
      "div",
      {},
      role && [el("span", { class: "kind" }, word(`way.${role}`)), " "],
      el("span", { class: "mono name" }, call.call),
    ),
    el("div", { class: "muted name" }, where),
    el("div", { class: "signs" }, signs(word, call)),
  );
}

/** @param {import("views").Context["word"]} word @param {any} call */
function signs(word, call) {
  const sign = (/** @type {string} */ text) => el("span", { class: "chip made_here" }, text);
  const shown = ["nan", "pos_inf", "neg_inf"].filter((name) => call[name] > 0);
  if (!shown.length) return sign(word("way.saturated"));
  return shown.map((name) => sign(`${countText(call[name])} ${word(`way.${name}`)}`));
}
