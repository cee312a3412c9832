/**
 * What the charts of a tensor pair have in common.
 * @module tensor_charts
 */
import { el } from "dom";
import { plotly } from "plotting";
import { color, plotConfig, plotLayout } from "theme";

/** @param {string} side */
export function sideColor(side) {
  return color(side === "reference" ? "rounding" : "inherited");
}

/**
 * A place for a chart; `label` tells those who do not see it what it shows, `wait` stands there until it is drawn.
 * @param {string} name @param {string} label @param {string} wait @param {number} height @returns {HTMLElement}
 */
export function chartPlace(name, label, wait, height) {
  const style = { height: `${height}px` };
  const data = { "data-chart": name, "data-wait": wait };
  return el("div", { class: "tensor-chart", role: "img", "aria-label": label, style, ...data });
}

/** @param {HTMLElement} place @param {any[]} traces @param {any} layout what differs from every chart's */
export async function draw(place, traces, layout) {
  const Plotly = await plotly();
  const base = plotLayout();
  const axes = { xaxis: { ...base.xaxis, ...layout.xaxis }, yaxis: { ...base.yaxis, ...layout.yaxis } };
  await Plotly.react(place, traces, { ...base, ...layout, ...axes }, { ...plotConfig(), scrollZoom: false });
  place.dataset.drawn = "true";
}

/** From nothing to the largest error. @returns {[number, string][]} */
export function errorScale() {
  return dark()
    ? [[0, color("raised")], [0.25, "#5b2a52"], [0.5, "#a8355a"], [0.75, "#ee6c4d"], [1, "#ffe08a"]]
    : [[0, color("raised")], [0.25, "#f3c58f"], [0.5, "#e5814d"], [0.75, "#b93a32"], [1, "#5c1033"]];
}

/** From one sign to the other. @returns {[number, string][]} */
export function signedScale() {
  return dark()
    ? [[0, "#62aee8"], [0.25, "#2f618c"], [0.5, color("raised")], [0.75, "#97582f"], [1, "#ffab5e"]]
    : [[0, "#134b86"], [0.25, "#7fb1dc"], [0.5, "#f2f4f7"], [0.75, "#eba869"], [1, "#9c3d05"]];
}

function dark() {
  return document.documentElement.dataset.theme === "dark";
}

/** The bar that tells what a colour stands for. @param {string} title @returns {any} */
export function colorBar(title) {
  return {
    thickness: 12,
    outlinewidth: 0,
    tickfont: { size: 11, color: color("muted") },
    exponentformat: "power",
    title: { text: title, side: "right", font: { size: 11, color: color("muted") } },
  };
}

/** A number of the server, which writes what JSON has no number for as text. @param {number | string | null} number */
export function finite(number) {
  return typeof number === "number" ? number : null;
}

/**
 * A labelled choice.
 * @param {string} label @param {string} name @param {[string, string][]} options value and text of each
 * @param {string} chosen @param {(value: string) => void} change @returns {HTMLElement}
 */
export function choice(label, name, options, chosen, change) {
  const select = el(
    "select",
    { "data-choice": name, on: { change: (/** @type {any} */ event) => change(event.target.value) } },
    options.map(([value, text]) => el("option", { value, selected: value === chosen }, text)),
  );
  return el("label", { class: "tensor-choice" }, label, select);
}

/** A share in percent; what is not all is not said to be. @param {number | null} share @returns {string} */
export function shareText(share) {
  if (share === null) return "–";
  const percent = 100 * share;
  if (percent >= 99.95) return share < 1 ? ">99.9 %" : "100 %";
  return percent < 0.05 ? (share > 0 ? "<0.1 %" : "0 %") : `${percent.toFixed(1)} %`;
}
