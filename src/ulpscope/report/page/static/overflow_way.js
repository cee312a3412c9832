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
  const list = el("ol", { class: "way" });
  const short = way.length > 2 * ENDS + 1;
  const rest = el("li", { class: "between" }, el("button", { on: { click: showAll } }, word("way.between", { calls: way.length - 2 * ENDS })));
  function showAll() {
    list.replaceChildren(...way.map((/** @type {any} */ call, /** @type {number} */ at) => line(word, call, at, way.length)));
  }
  if (short) {
    const lines = way.map((/** @type {any} */ call, /** @type {number} */ at) => line(word, call, at, way.length));
    list.replaceChildren(...lines.slice(0, ENDS), rest, ...lines.slice(-ENDS));
  } else showAll();
  return el("section", { class: "card" }, el("h2", {}, word("way.title")), list);
}

/** @param {import("views").Context["word"]} word @param {any} call @param {number} at @param {number} length */
function line(word, call, at, length) {
  const role = at === 0 ? "born" : at === length - 1 ? (call.loss ? "loss" : "last") : "";
  return el(
    "li",
    { class: role },
    el("div", {}, role && el("span", { class: "kind" }, word(`way.${role}`)), " ", el("span", { class: "mono name" }, call.call)),
    el("div", { class: "muted name" }, [call.module, word(`phase.${call.phase}`), call.tensor].filter(Boolean).join(" · ")),
    el("div", { class: "signs" }, signs(word, call)),
  );
}

/** @param {import("views").Context["word"]} word @param {any} call */
function signs(word, call) {
  const shown = ["nan", "pos_inf", "neg_inf"].filter((name) => call[name] > 0);
  if (!shown.length) return el("span", { class: "chip made_here" }, word("way.saturated"));
  return shown.map((name) => el("span", { class: "chip made_here" }, `${countText(call[name])} ${word(`way.${name}`)}`));
}
