/**
 * Colours that all views share: as CSS variables, and as layout of charts.
 * @module theme
 */

/** What a tensor was judged to be, the worst first. */
export const JUDGEMENTS = [
  "made_here",
  "inherited",
  "after_choice",
  "another_way",
  "unresolved",
  "rounding",
  "identical",
  "not_compared",
];

export const PHASES = ["setup", "forward", "backward", "update", "other"];

/** Shapes tell judgements apart where colours do not. */
export const SYMBOLS = {
  made_here: "diamond",
  inherited: "triangle-up",
  after_choice: "square",
  another_way: "cross",
  unresolved: "square-open",
  rounding: "circle",
  identical: "circle-open",
  not_compared: "x-thin",
};

/** @param {string} name a variable of the style without its dashes @returns {string} */
export function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** @param {string} judgement */
export function judgementColor(judgement) {
  return color(judgement.replace("_", "-"));
}

/** Which theme holds: the chosen one, or that of the system. @param {string} chosen */
export function applyTheme(chosen) {
  const dark = chosen === "dark" || (chosen === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}

/** A chart's layout in the page's colours; charts add to it. @returns {any} */
export function plotLayout() {
  const axis = {
    gridcolor: color("line"),
    linecolor: color("line"),
    zerolinecolor: color("line"),
    tickcolor: color("line"),
    automargin: true,
  };
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: color("font"), size: 12, color: color("text") },
    margin: { l: 60, r: 16, t: 12, b: 44 },
    xaxis: { ...axis },
    yaxis: { ...axis },
    hovermode: "closest",
    showlegend: false,
    dragmode: "zoom",
  };
}

/** What every chart is configured with. @returns {any} */
export function plotConfig() {
  return {
    displaylogo: false,
    responsive: true,
    scrollZoom: true,
    displayModeBar: false,
    doubleClick: "reset",
    showTips: false,
    plotGlPixelRatio: devicePixelRatio,
  };
}
