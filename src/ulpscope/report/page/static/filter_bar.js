/**
 * The controls that choose rows; table and chart share them.
 * @module filter_bar
 */
import { el, fill, visible } from "dom";
import { NOT_COMPARED, isOpen } from "filtering";
import { JUDGEMENTS, PHASES } from "theme";

const TYPING_MS = 60;

/** @param {import("views").Context} context @param {...any} extra controls of the view itself @returns {HTMLElement} */
export function createFilterBar(context, ...extra) {
  const { store } = context;
  const controls = el("div", { class: "controls" });
  function draw() {
    if (controls.contains(document.activeElement) && document.activeElement?.tagName === "INPUT") return;
    const open = focusedName(controls);
    fill(controls, fields(context));
    if (open) /** @type {HTMLElement | null} */ (controls.querySelector(`[name="${open}"]`))?.focus();
  }
  store.subscribe(["filter"], draw);
  draw();
  return el("div", { class: "filter-bar" }, controls, extra);
}

/** @param {HTMLElement} controls */
function focusedName(controls) {
  const focused = /** @type {any} */ (document.activeElement);
  return controls.contains(focused) ? focused.name : null;
}

/** @param {import("views").Context} context */
function fields(context) {
  const { content, store, word } = context;
  const { pairs } = content.tables;
  const { filter } = store.get();
  const judged = new Set([...pairs.words("judgement"), NOT_COMPARED]);
  return [
    search(context, "text", word("filter.text"), 170),
    choice(
      context,
      "judgement",
      JUDGEMENTS.filter((name) => judged.has(name)),
      (name) => word(`judgement.${name}`),
    ),
    choice(context, "op", [...pairs.words("op")].sort(), (name) => name),
    moduleSearch(context),
    choice(
      context,
      "phase",
      PHASES.filter((name) => pairs.words("phase").includes(name)),
      (name) => word(`phase.${name}`),
    ),
    choice(context, "step", content.summary.scope.steps, (step) => word("where.step", { step: String(step) })),
    choice(context, "rank", content.summary.scope.ranks, (rank) => word("where.rank", { rank: String(rank) })),
    choice(context, "role", [...pairs.words("role")].sort(), (name) => name),
    el(
      "button",
      { name: "reset", disabled: isOpen(filter), on: { click: () => store.set({ filter: {} }) } },
      word("filter.reset"),
    ),
  ];
}

/**
 * @param {import("views").Context} context @param {string} name @param {string} label @param {number} width
 * @param {Record<string, string>} [more]
 */
function search({ store }, name, label, width, more = {}) {
  /** @type {any} */
  let waiting;
  const input = /** @type {HTMLInputElement} */ (
    el("input", {
      type: "search",
      name,
      placeholder: label,
      "aria-label": label,
      style: { width: `${width}px` },
      ...more,
    })
  );
  input.value = store.get().filter[name] ?? "";
  input.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => store.set({ filter: changed(store.get().filter, name, input.value) }), TYPING_MS);
  });
  return input;
}

/** @param {import("views").Context} context */
function moduleSearch(context) {
  const { content, word } = context;
  const modules = [...content.tables.pairs.words("module")].sort();
  return [
    search(context, "module", word("filter.module"), 150, { list: "filter-modules" }),
    el(
      "datalist",
      { id: "filter-modules" },
      modules.slice(0, 2000).map((name) => el("option", { value: name })),
    ),
  ];
}

/**
 * @template Value
 * @param {import("views").Context} context @param {string} name @param {Value[]} values
 * @param {(value: Value) => string} shown
 */
function choice({ store, word }, name, values, shown) {
  if (values.length < 2) return null;
  const chosen = store.get().filter[name];
  const label = word(`column.${name}`);
  const options = values.map((value) =>
    el("option", { value: String(values.indexOf(value)), selected: value === chosen }, visible(shown(value))),
  );
  const choose = (/** @type {any} */ event) => {
    const value = event.target.value === "" ? undefined : values[Number(event.target.value)];
    store.set({ filter: changed(store.get().filter, name, value) });
  };
  return el(
    "select",
    { name, "aria-label": label, title: label, class: chosen === undefined ? "" : "chosen", on: { change: choose } },
    el("option", { value: "" }, word("filter.any", { name: label })),
    options,
  );
}

/** @param {any} filter @param {string} name @param {any} value */
function changed(filter, name, value) {
  const { [name]: _, ...others } = filter;
  return value === undefined || value === "" ? others : { ...others, [name]: value };
}
