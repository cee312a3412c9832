/**
 * The elements that differ most.
 * @module tensor_worst
 */
import { el, fill } from "dom";
import { errorText, valueText } from "numbers";
import { choice } from "tensor_charts";

const ORDERS = ["absolute", "relative", "ulps", "broken"];

/**
 * @param {import("views").Context} context
 * @param {any} overview
 * @param {(index: number[]) => void} look goes to an element
 * @returns {HTMLElement}
 */
export function worstCard({ store, word }, overview, look) {
  const body = el("div", { class: "tensor-worst", tabindex: "0", role: "group", "aria-label": word("tensor.worst") });
  const offered = ORDERS.filter((order) => overview.worst[order].length);
  const order = () => {
    const { "tensor.order": asked } = store.get();
    return offered.includes(asked) ? asked : offered.includes("broken") ? "broken" : offered[0];
  };
  const show = () => fill(body, table(word, overview.worst[order()], look));
  const change = (/** @type {string} */ value) => {
    store.set({ "tensor.order": value });
    show();
  };
  const options = /** @type {[string, string][]} */ (offered.map((name) => [name, word(`tensor.order.${name}`)]));
  show();
  return el(
    "section",
    { class: "card" },
    el(
      "header",
      {},
      el("h2", {}, word("tensor.worst")),
      offered.length > 1 && choice(word("tensor.order"), "order", options, order(), change),
    ),
    body,
  );
}

/** @param {import("views").Context["word"]} word @param {any[]} elements @param {(index: number[]) => void} look */
function table(word, elements, look) {
  const heads = ["side.reference", "side.target", "tensor.absolute", "tensor.relative", "tensor.unit.ulp"];
  const columns = heads.map((key) => el("th", { scope: "col", class: "number" }, word(key)));
  return el(
    "table",
    { class: "plain" },
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, word("tensor.element")), columns)),
    el("tbody", {}, elements.map((element) => line(element, look))),
  );
}

/** @param {any} element @param {(index: number[]) => void} look */
function line(element, look) {
  const errors = [errorText(element.absolute), errorText(element.relative), ulpText(element.ulps)];
  const numbers = [element.reference, element.target, ...errors];
  const click = () => look(element.index);
  const name = `[${element.index.join(", ")}]`;
  return el(
    "tr",
    {},
    el("th", { scope: "row", class: "mono" }, el("button", { class: "link", on: { click } }, name)),
    numbers.map((text) => el("td", { class: "number mono" }, text)),
  );
}

/** @param {number | null} ulps */
function ulpText(ulps) {
  return ulps === null ? "–" : valueText(ulps);
}
