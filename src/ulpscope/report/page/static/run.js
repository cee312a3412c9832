/**
 * Error along the run: every tensor's error against execution order.
 * @module run
 */
import { callName, errorOf, shownText } from "calls";
import { selectedRow } from "details";
import { el, fill } from "dom";
import { createFilterBar } from "filter_bar";
import { rowsShown } from "filtering";
import { answerPlace } from "lone_calls";
import { errorText } from "numbers";
import { listenToPoints, plotly } from "plotting";
import { guides, wholeLayout, zoomed } from "run_guides";
import { heights, judgementTraces, selectedTrace } from "run_points";
import { JUDGEMENTS, PHASES, plotConfig } from "theme";
import { createTip } from "tip";

const RESTING_MS = 150;

/** @param {import("views").Context} context @returns {import("views").View} */
export function create(context) {
  const { content, store, select, word } = context;
  const { pairs } = content.tables;
  const chart = el("div", { class: "chart", tabindex: "0", role: "application", "aria-label": word("run.label") });
  const tip = createTip();
  const legend = el("div", { class: "legend" });
  const reset = el("button", { on: { click: () => store.set({ "run.range": null }) } }, word("run.reset"));
  const drag = el("button", { "aria-pressed": "false", on: { click: togglePan } }, word("run.pan"));
  const element = el(
    "div",
    { class: "run-view" },
    createFilterBar(context, drag, reset),
    el("div", { class: "chart-card" }, legend, chart, tip.element),
    el("p", { class: "hint muted" }, word("run.hint")),
  );
  const height = heights(pairs, content.rounding);
  /** @type {any} */
  let library = null;
  /** @type {ReturnType<typeof judgementTraces>} */
  let traces = [];
  /** @type {any[] | null} */
  let behind = null;
  /** @type {any} */
  let whole = null;
  /** Whether it is the chart itself that changes what is in sight. */
  let isMoving = false;
  /** @type {any} */
  let resting;
  let isStale = true;

  async function draw() {
    isStale = false;
    library ??= await plotly();
    whole ??= wholeLayout(content, height, word);
    const layout = zoomed(whole, store.get()["run.range"]);
    const rows = rowsShown(pairs, store.get().filter, store.get().sort);
    traces = judgementTraces(pairs, rows, height, sight(layout));
    drawLegend(rows.length - traces.reduce((sum, trace) => sum + trace.total, 0));
    behind ??= guides(content, height);
    layout.dragmode = drag.getAttribute("aria-pressed") === "true" ? "pan" : "zoom";
    await library.react(
      chart,
      [...behind, ...traces.map((trace) => trace.plot), selectedTrace(pairs, selectedRow(context), height)],
      layout,
      plotConfig(),
    );
    listen();
  }

  /** @param {any} layout @returns {import("run_points").Sight} */
  function sight({ xaxis, yaxis }) {
    const [[left, right], [low, high]] = [xaxis.range, yaxis.range];
    return { left, right, low, high, width: chart.clientWidth || 1000, height: chart.clientHeight || 500 };
  }

  /** @param {number} left how many tensors have no point */
  function drawLegend(left) {
    const numbers = new Map(traces.map((trace) => [trace.judgement, trace.total]));
    const hidden = hiddenJudgements();
    fill(
      legend,
      JUDGEMENTS.filter((name) => numbers.get(name)).map((name) =>
        el(
          "button",
          { "aria-pressed": String(!hidden.includes(name)), "data-judgement": name, on: { click: () => toggle(name) } },
          el("span", { class: `chip ${name}` }, word(`judgement.${name}`)),
          el("span", { class: "muted" }, ` ${numbers.get(name)?.toLocaleString("en-US")}`),
        ),
      ),
      el("span", { class: "swatch band" }, word("run.band")),
      el("span", { class: "swatch explained" }, word("run.explained")),
      PHASES.filter((phase) => pairs.words("phase").includes(phase)).map((phase) =>
        el("span", { class: "swatch phase", style: { "--phase": `var(--phase-${phase})` } }, word(`phase.${phase}`)),
      ),
      answerPlace(content) === null ? null : el("span", { class: "swatch found" }, word("run.finding")),
      left ? el("span", { class: "muted" }, word("run.left", { tensors: left })) : null,
      left || traces.some((trace) => trace.total) ? null : el("span", {}, word("table.empty")),
    );
    for (const trace of traces) trace.plot.visible = !hidden.includes(trace.judgement);
  }

  /** @returns {string[]} */
  function hiddenJudgements() {
    const hidden = store.get()["run.hidden"];
    return Array.isArray(hidden) ? hidden : [];
  }

  /** @param {string} name */
  function toggle(name) {
    const hidden = hiddenJudgements();
    store.set({ "run.hidden": hidden.includes(name) ? hidden.filter((other) => other !== name) : [...hidden, name] });
  }

  function togglePan() {
    const pans = drag.getAttribute("aria-pressed") !== "true";
    drag.setAttribute("aria-pressed", String(pans));
    library?.relayout(chart, { dragmode: pans ? "pan" : "zoom" });
  }

  /** The row of a point that the chart names. @param {any} event @returns {number | null} */
  function rowAt(event) {
    const point = event.points?.[0];
    const trace = traces.find((one) => one.plot.name === point?.data?.name);
    return trace ? trace.rows[point.pointNumber] : null;
  }

  let listens = false;
  function listen() {
    if (listens) return;
    listens = true;
    listenToPoints(chart, tip, { at: rowAt, tell: about, choose: select });
    const plot = /** @type {any} */ (chart);
    plot.on("plotly_relayout", () => keepRange());
    plot.on("plotly_doubleclick", () => store.set({ "run.range": null }));
  }

  function keepRange() {
    const { xaxis, yaxis } = /** @type {any} */ (chart)._fullLayout;
    const range = [...xaxis.range, ...yaxis.range].map((number) => Number(number.toPrecision(6)));
    const isWhole = [...whole.xaxis.range, ...whole.yaxis.range].every(
      (number, at) => Math.abs(number - range[at]) < 1e-3 * (1 + Math.abs(number)),
    );
    isMoving = true;
    store.set({ "run.range": isWhole ? null : range });
    isMoving = false;
  }

  /** The chart has moved its points already; only thinned ones are drawn anew, when it has come to rest. */
  function onRange() {
    clearTimeout(resting);
    if (!isMoving) refresh();
    else if (traces.some((trace) => trace.rows.length < trace.total)) resting = setTimeout(refresh, RESTING_MS);
  }

  /** @param {number} row */
  function about(row) {
    const lines = [
      el("strong", { class: "name" }, callName(pairs, row)),
      el(
        "div",
        { class: "name" },
        ["module", "role", "place"]
          .map((name) => shownText(pairs, name, row, word))
          .filter(Boolean)
          .join(" · "),
      ),
      el(
        "div",
        {},
        word("run.errors", {
          out: errorText(errorOf(pairs, row)),
          in: errorText(pairs.number("error_in", row)),
          expected: errorText(pairs.number("expected", row)),
        }),
      ),
    ];
    return lines;
  }

  /** @param {KeyboardEvent} event */
  function onKey(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const rows = rowsShown(pairs, store.get().filter, null);
    const at = rows.indexOf(selectedRow(context) ?? -1);
    const next = at < 0 ? 0 : Math.max(0, Math.min(rows.length - 1, at + step));
    if (rows.length) select(rows[next]);
  }

  function refresh() {
    if (element.offsetParent === null) isStale = true;
    else draw();
  }

  async function moveSelection() {
    if (!library || element.offsetParent === null) {
      isStale = true;
      return;
    }
    const mark = selectedTrace(pairs, selectedRow(context), height);
    const last = /** @type {any} */ (chart).data.length - 1;
    await library.restyle(chart, { x: [mark.x], y: [mark.y] }, [last]);
  }

  chart.addEventListener("keydown", onKey);
  store.subscribe(["filter", "run.hidden"], refresh);
  store.subscribe(["run.range"], onRange);
  store.subscribe(["selected"], moveSelection);
  return {
    element,
    show() {
      if (isStale) draw();
    },
  };
}
