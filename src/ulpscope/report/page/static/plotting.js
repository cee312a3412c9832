/**
 * The plotting library, unpacked when the first chart asks for it.
 * @module plotting
 */
import { inflate } from "data";

/** @type {Promise<any> | null} */
let loading = null;

/** @returns {Promise<any>} Plotly */
export function plotly() {
  loading ??= load();
  return loading;
}

async function load() {
  const packed = /** @type {HTMLElement} */ (document.getElementById("plotly"));
  const text = packed.textContent ?? "";
  packed.remove();
  const script = document.createElement("script");
  script.textContent = new TextDecoder().decode(await inflate(text));
  document.head.append(script);
  return /** @type {any} */ (window).Plotly;
}

/**
 * Keep a chart as large as its place: the window is not all that changes it.
 * @param {HTMLElement} chart
 */
export function keepSize(chart) {
  new ResizeObserver(async () => {
    const { width, height } = /** @type {any} */ (chart)._fullLayout ?? {};
    const isOther = Math.abs(width - chart.clientWidth) > 1 || Math.abs(height - chart.clientHeight) > 1;
    if (chart.clientWidth > 0 && isOther) (await plotly()).Plots.resize(chart);
  }).observe(chart);
}

/**
 * Tell about the point under the pointer, and choose it by a click; the chart keeps the size of its place from now on.
 * @template Point
 * @param {HTMLElement} chart drawn
 * @param {ReturnType<import("tip").createTip>} tip
 * @param {{at: (event: any) => Point | null, tell: (point: Point) => any, choose: (point: Point) => void}} points
 */
export function listenToPoints(chart, tip, { at, tell, choose }) {
  keepSize(chart);
  const plot = /** @type {any} */ (chart);
  plot.on("plotly_hover", (/** @type {any} */ event) => {
    const point = at(event);
    if (point !== null) tip.show(event.event, tell(point));
  });
  plot.on("plotly_unhover", () => tip.hide());
  onClick(chart, (event) => {
    const point = at(event);
    tip.hide();
    if (point !== null) choose(point);
  });
}

/**
 * What a click on a chart does, instead of what it did.
 * @param {HTMLElement} chart drawn @param {(event: any) => void} clicked
 */
export function onClick(chart, clicked) {
  const plot = /** @type {any} */ (chart);
  plot.removeAllListeners("plotly_click");
  plot.on("plotly_click", clicked);
}

/**
 * Give back what charts hold; browsers have few WebGL contexts.
 * @param {HTMLElement} place
 */
export function closeCharts(place) {
  for (const chart of place.querySelectorAll(".js-plotly-plot")) /** @type {any} */ (window).Plotly.purge(chart);
}

/** Whether points can be drawn by WebGL here; remote desktops and virtual machines often have none. */
export function hasWebgl() {
  const canvas = document.createElement("canvas");
  return (canvas.getContext("webgl") ?? canvas.getContext("experimental-webgl")) !== null;
}

/**
 * A text out of data for a label of a chart, which understands some markup.
 * @param {string} text
 * @returns {string}
 */
export function escaped(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll("$", "&#36;");
}
