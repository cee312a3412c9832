/**
 * How both tensors are spread, and their differences in units in the last place.
 * @module tensor_histograms
 */
import { el, fill } from "dom";
import { chartPlace, choice, draw, shareText, sideColor } from "tensor_charts";
import { color } from "theme";

const HEIGHT = 250;
const MOST_TICKS = 13;
const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";

/**
 * @param {import("views").Context} context
 * @param {any} overview
 * @param {() => Promise<any>} linear asks for the histogram over equal bins
 * @returns {HTMLElement}
 */
export function valuesCard({ store, word }, overview, linear) {
  const place = chartPlace("values", word("tensor.values.label"), word("tensor.reading"), HEIGHT);
  const note = el("p", { class: "muted tensor-note" });
  const scale = () => (store.get()["tensor.scale"] === "log" ? "log" : "linear");
  async function show() {
    const kind = scale();
    const found = kind === "log" ? overview.magnitudes : await linear();
    if (kind !== scale()) return;
    if (!found?.edges) {
      fill(note, word("tensor.values.none"));
      return;
    }
    fill(note, kind === "log" ? zeros(word, overview) : outside(word, overview, found));
    await draw(place, ["reference", "target"].map((side) => steps(word, found, side)), {
      xaxis: {
        type: kind,
        title: { text: word(kind === "log" ? "tensor.values.size" : "tensor.values.value") },
        exponentformat: "power",
      },
      yaxis: { title: { text: word("tensor.count"), standoff: 10 }, rangemode: "tozero" },
      showlegend: true,
      legend: { orientation: "h", x: 1, xanchor: "right", y: 1.02, yanchor: "bottom" },
    });
  }
  const names = ["linear", "log"];
  const options = /** @type {[string, string][]} */ (names.map((name) => [name, word(`tensor.scale.${name}`)]));
  const change = (/** @type {string} */ value) => {
    store.set({ "tensor.scale": value });
    show();
  };
  const chooser = choice(word("tensor.scale"), "scale", options, scale(), change);
  const head = el("header", {}, el("h2", {}, word("tensor.values")), chooser);
  show();
  return el("section", { class: "card" }, head, place, note);
}

/** @param {import("views").Context["word"]} word @param {any} found @param {string} side */
function steps(word, found, side) {
  const counts = found[side];
  return {
    x: found.edges,
    y: [...counts, counts[counts.length - 1]],
    type: "scatter",
    mode: "lines",
    name: word(`side.${side}`),
    line: { shape: "hv", width: 1.6, color: sideColor(side), dash: side === "target" ? "dot" : "solid" },
    fill: side === "reference" ? "tozeroy" : "none",
    hovertemplate: "%{x:.4g}: %{y:,}",
  };
}

/** @param {import("views").Context["word"]} word @param {any} overview */
function zeros(word, { zeros: counts }) {
  if (!counts.reference && !counts.target) return "";
  return word("tensor.values.zeros", { reference: counts.reference, target: counts.target });
}

/** What the bins leave out. @param {import("views").Context["word"]} word @param {any} overview @param {any} found */
function outside(word, { elements }, found) {
  const left = (/** @type {number[]} */ counts) => elements - counts.reduce((sum, count) => sum + count, 0);
  const reference = left(found.reference);
  const target = left(found.target);
  return reference || target ? word("tensor.values.outside", { reference, target }) : "";
}

/** @param {import("views").Context} context @param {any} overview @returns {HTMLElement} */
export function errorsCard({ word }, { errors, elements, mismatched }) {
  const unit = word(`tensor.unit.${errors.unit}`);
  const place = chartPlace("errors", word("tensor.errors.label", { unit }), "", HEIGHT);
  const title = el("header", {}, el("h2", {}, word("tensor.errors", { unit })));
  const share = shareText(errors.equal / elements);
  const equal = word("tensor.errors.equal", { equal: errors.equal, share });
  const broken = mismatched ? ` ${word("tensor.errors.broken", { mismatched })}` : "";
  const note = el("p", { class: "muted tensor-note" }, equal, " ", word("tensor.errors.bars"), broken);
  const bars = mirrored(errors);
  const tickvals = ticks(bars.x, bars.x.indexOf("0"));
  draw(place, [bars], {
    xaxis: { type: "category", title: { text: word("tensor.errors.axis", { unit }) }, tickangle: 0, tickvals },
    yaxis: {
      type: "log",
      title: { text: word("tensor.count"), standoff: 10 },
      exponentformat: "power",
      dtick: 1,
      range: [-0.3, Math.log10(Math.max(...bars.y)) + 0.2],
      autorange: false,
    },
    bargap: 0.12,
  });
  return el("section", { class: "card" }, title, place, note);
}

/** Errors below and above the reference, on both sides of those that are equal. @param {any} errors */
function mirrored({ lows, below, above, equal }) {
  const labels = lows.map(powerText);
  return {
    type: "bar",
    x: [...labels.map((/** @type {string} */ label) => `−${label}`).reverse(), "0", ...labels],
    y: [...below].reverse().concat(equal, above),
    marker: {
      color: [...below.map(() => color("rounding")), color("identical"), ...above.map(() => color("inherited"))],
    },
    hovertemplate: "%{x}: %{y:,}<extra></extra>",
  };
}

/** As many labels as there is room for, 0 among them. @param {string[]} labels @param {number} zero */
function ticks(labels, zero) {
  const step = Math.ceil(labels.length / MOST_TICKS);
  return labels.filter((_, place) => (place - zero) % step === 0);
}

/** @param {number} low where a bin begins @returns {string} */
function powerText(low) {
  if (low < 1) return low < 0.2 ? "<¼" : low < 0.4 ? "¼" : "½";
  if (low <= 512) return String(low);
  return "2" + [...String(Math.round(Math.log2(low)))].map((digit) => SUPERSCRIPTS[Number(digit)]).join("");
}
