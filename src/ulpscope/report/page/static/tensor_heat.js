/**
 * Where the error sits: a heat map over two axes, and the worst indices of each axis.
 * @module tensor_heat
 */
import { el, fill } from "dom";
import { errorText } from "numbers";
import { onClick } from "plotting";
import { concentration } from "tensor_axes";
import { chartPlace, choice, colorBar, draw, errorScale, finite, shareText } from "tensor_charts";

/**
 * @param {import("views").Context} context
 * @param {import("tensor_axes").Axes} axes
 * @param {any} overview
 * @param {(rows: number, columns: number | null) => Promise<any>} heat
 * @param {(axis: number, index: number) => void} look goes to an index of an axis
 * @returns {HTMLElement}
 */
export function heatCard({ store, word }, axes, overview, heat, look) {
  const height = axes.shape.length > 1 ? 330 : 120;
  const place = chartPlace("heat", word("tensor.heat.label"), word("tensor.reading"), height);
  const note = el("p", { class: "muted tensor-note" });
  const reduction = () => (store.get()["tensor.reduce"] === "mean" ? "mean" : "largest");
  const colors = () => (store.get()["tensor.colors"] === "log" ? "log" : "linear");

  async function show() {
    const { rows, columns } = axes.chosen();
    const found = await heat(rows, columns);
    const now = axes.chosen();
    if (!found || now.rows !== rows || now.columns !== columns) return;
    const [down, across] = found.axes.length > 1 ? found.axes : [null, found.axes[0]];
    const cells = found.axes.length > 1 ? found[reduction()] : [found[reduction()]];
    await draw(place, [map(word, cells, down, across, colors(), reduction())], {
      xaxis: { title: { text: axes.name(across.axis) }, range: [-0.5, across.size - 0.5], autorange: false },
      yaxis: down
        ? { title: { text: axes.name(down.axis) }, range: [down.size - 0.5, -0.5], autorange: false }
        : { visible: false },
    });
    fill(note, blocks(word, axes, found.axes), found.mismatched ? ` ${word("tensor.heat.broken")}` : "");
    onClick(place, ({ points: [{ x, y }] }) => {
      if (down) look(down.axis, clamp(y, down.size));
      look(across.axis, clamp(x, across.size));
    });
  }

  /**
   * @param {string} name @param {string} label @param {string} phrase what the values' phrases begin with
   * @param {string[]} values @param {string} chosen
   */
  function chooser(name, label, phrase, values, chosen) {
    const options = /** @type {[string, string][]} */ (values.map((value) => [value, word(`${phrase}.${value}`)]));
    return choice(word(label), name, options, chosen, (value) => {
      store.set({ [`tensor.${name}`]: value });
      show();
    });
  }

  const reduce = chooser("reduce", "tensor.heat.reduce", "tensor.heat", ["largest", "mean"], reduction());
  const scale = chooser("colors", "tensor.heat.colors", "tensor.colors", ["linear", "log"], colors());
  axes.subscribe(show);
  show();
  return el(
    "section",
    { class: "card tensor-heat" },
    el("header", {}, el("h2", {}, word("tensor.heat")), axes.choices("heat"), reduce, scale),
    el("div", { class: "tensor-heat-body" }, el("div", {}, place, note), ranking(word, axes, overview, look)),
  );
}

/** @param {number} place @param {number} size */
function clamp(place, size) {
  return Math.max(0, Math.min(Math.round(place), size - 1));
}

/**
 * @param {import("views").Context["word"]} word @param {any[][]} cells @param {any} down @param {any} across
 * @param {string} colors @param {string} reduction
 */
function map(word, cells, down, across, colors, reduction) {
  const log = colors === "log";
  const numbers = cells.map((row) => row.map((cell) => shade(finite(cell), log)));
  return {
    type: "heatmap",
    z: numbers,
    x: centres(across),
    y: down ? centres(down) : [0],
    colorscale: errorScale(),
    ...(log ? {} : { zmin: 0, zmax: numbers.flat().reduce((most, number) => Math.max(most, number ?? 0), 0) || 1 }),
    colorbar: colorBar(log ? word("tensor.heat.log") : ""),
    hovertemplate:
      `${down ? "%{y:.0f}, " : ""}%{x:.0f}: ${log ? "10^" : ""}%{z:.4g}` +
      `<extra>${word(`tensor.heat.${reduction}`)}</extra>`,
  };
}

/** @param {number | null} error @param {boolean} log */
function shade(error, log) {
  if (error === null || !log) return error;
  return error > 0 ? Math.log10(error) : null;
}

/** Where the cells of an axis are. @param {{size: number, block: number}} axis @returns {number[]} */
function centres({ size, block }) {
  const count = Math.ceil(size / block);
  return Array.from({ length: count }, (_, place) => place * block + (block - 1) / 2);
}

/** @param {import("views").Context["word"]} word @param {import("tensor_axes").Axes} axes @param {any[]} found */
function blocks(word, axes, found) {
  const long = found.filter(({ block }) => block > 1);
  return long.map(({ axis, block }) => word("tensor.heat.block", { axis: axes.name(axis), block })).join(" ");
}

/**
 * The worst indices of each axis, those of the axis where the error is most concentrated first.
 * @param {import("views").Context["word"]} word @param {import("tensor_axes").Axes} axes @param {any} overview
 * @param {(axis: number, index: number) => void} look
 */
function ranking(word, axes, overview, look) {
  const ranked = overview.axes.filter((/** @type {any} */ axis) => axis.size > 1 && axis.worst.length);
  ranked.sort((/** @type {any} */ one, /** @type {any} */ other) => concentration(other) - concentration(one));
  return el(
    "div",
    { class: "tensor-ranking", tabindex: "0", role: "group", "aria-label": word("tensor.ranking") },
    ranked.map((/** @type {any} */ axis) => axisTable(word, axes, axis, look)),
  );
}

/**
 * @param {import("views").Context["word"]} word @param {import("tensor_axes").Axes} axes @param {any} axis
 * @param {(axis: number, index: number) => void} look
 */
function axisTable(word, axes, axis, look) {
  const heads = ["tensor.ranking.share", "tensor.heat.largest", "tensor.heat.mean"];
  const head = heads.map((key) => el("th", { scope: "col", class: "number" }, word(key)));
  const rows = axis.worst.slice(0, 5).map((/** @type {any} */ one) => {
    const name = one.first === one.last ? String(one.first) : `${one.first}–${one.last}`;
    const { mismatched } = one;
    const largest = mismatched ? word("tensor.ranking.broken", { mismatched }) : errorText(one.largest);
    const data = { "data-axis": axis.axis, "data-index": one.first };
    const click = () => look(axis.axis, one.first);
    return el(
      "tr",
      {},
      el("th", { scope: "row" }, el("button", { class: "link", ...data, on: { click } }, name)),
      el("td", { class: "number" }, shareText(one.share)),
      el("td", { class: "number" }, largest),
      el("td", { class: "number" }, errorText(one.mean)),
    );
  });
  return el(
    "table",
    { class: "plain" },
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, axes.name(axis.axis)), head)),
    el("tbody", {}, rows),
  );
}
