/**
 * Operators as a graph: the inside of a module, or what lies around a call.
 * @module graph_view
 */
import { callName } from "calls";
import { shortName } from "columns";
import { selectedRow } from "details";
import { el, fill, visible } from "dom";
import { WRAPPING, aroundCall, callGraph, insideModule } from "graph_edges";
import { layered } from "graph_layout";
import { separator } from "modules";
import { escaped, listenToPoints, plotly } from "plotting";
import { PHASES, SYMBOLS, color, judgementColor, plotConfig, plotLayout } from "theme";
import { createTip } from "tip";

const MOST_BOXES = 240;
const STEPS_AROUND = 3;
const LONGEST_LABEL = 34;
const [SHOWN_WIDE, SHOWN_HIGH] = [6, 9];

/** @param {import("views").Context} context */
export function createGraph(context) {
  const { content, store, select, word } = context;
  const { pairs } = content.tables;
  const head = el("header");
  const chart = el("div", { class: "chart" });
  const tip = createTip();
  const element = el("section", { class: "graph hidden", "aria-label": word("graph.label") }, head, chart, tip.element);
  /** @type {import("graph_edges").Drawing} */
  let drawing = { boxes: [], edges: [], left: 0 };
  let place = { rank: 0, step: 0 };
  let listens = false;

  /** @returns {{module: string} | {row: number} | null} */
  function wanted() {
    const text = store.get()["model.graph"];
    if (typeof text !== "string") return null;
    const [, kind, name] = /^(module|row):(.*)$/s.exec(text) ?? [];
    if (kind === "module") return { module: name };
    const row = Number(name);
    if (kind !== "row" || !Number.isInteger(row) || row < 0 || row >= pairs.length) return null;
    const module = pairs.text("module", row);
    return module !== null && WRAPPING.has(pairs.text("kind", row) ?? "") ? { module } : { row };
  }

  /**
   * The phase that is drawn: the chosen one, that of the selection, or the first that there is.
   * @param {import("graph_edges").CallGraph} graph @param {string} module
   */
  function phaseOf(graph, module) {
    const row = selectedRow(context);
    const there = phasesOf(graph, module);
    const likes = [store.get()["model.phase"], row === null ? null : pairs.text("phase", row), "forward", there[0]];
    return likes.find((phase) => there.includes(phase)) ?? "forward";
  }

  /** @param {import("graph_edges").CallGraph} graph @param {string} module */
  function phasesOf(graph, module) {
    const parting = separator(pairs);
    const found = new Set(
      graph.calls
        .filter((call) => call.module === module || call.module?.startsWith(module + parting))
        .map((call) => call.phase),
    );
    return PHASES.filter((phase) => found.has(phase));
  }

  async function draw() {
    const what = wanted();
    element.classList.toggle("hidden", what === null);
    if (what === null) return;
    const at = "row" in what ? { rank: pairs.number("rank", what.row), step: pairs.number("step", what.row) } : place;
    const graph = callGraph(pairs, at.rank, at.step);
    if ("row" in what) {
      drawing = aroundCall(graph, pairs.number("id_target", what.row), STEPS_AROUND, MOST_BOXES);
      drawHead(word("graph.around", { call: callName(pairs, what.row) }), null, [], "");
    } else {
      const phase = phaseOf(graph, what.module);
      drawing = insideModule(pairs, graph, what.module, phase, MOST_BOXES);
      drawHead(word("graph.inside", { module: what.module }), what.module, phasesOf(graph, what.module), phase);
    }
    const library = await plotly();
    await library.react(chart, ...picture(drawing, selectedRow(context)), { ...plotConfig(), scrollZoom: true });
    listen();
  }

  /** @param {string} title @param {string | null} module @param {string[]} phases @param {string} phase */
  function drawHead(title, module, phases, phase) {
    const up = module === null ? null : module.split(separator(pairs)).slice(0, -1).join(separator(pairs));
    const options = phases.map((name) =>
      el("option", { value: name, selected: name === phase }, word(`phase.${name}`)),
    );
    fill(
      head,
      el("h2", { class: "name" }, title),
      drawing.boxes.length ? null : el("span", { class: "muted" }, word("graph.empty")),
      drawing.left
        ? el("span", { class: "muted" }, word("graph.left", { shown: drawing.boxes.length, left: drawing.left }))
        : null,
      phases.length > 1 &&
        el(
          "select",
          {
            "aria-label": word("column.phase"),
            on: { change: (/** @type {any} */ event) => store.set({ "model.phase": event.target.value }) },
          },
          options,
        ),
      up && el("button", { on: { click: () => store.set({ "model.graph": `module:${up}` }) } }, word("graph.up")),
      el("button", { on: { click: () => store.set({ "model.graph": null }) } }, word("graph.close")),
    );
  }

  /** @param {any} event */
  function boxAt(event) {
    const point = event.points?.find((/** @type {any} */ one) => one.data.name === "boxes");
    return point ? drawing.boxes[point.pointNumber] : null;
  }

  function listen() {
    if (listens) return;
    listens = true;
    listenToPoints(chart, tip, { at: boxAt, tell: about, choose });
  }

  /** @param {import("graph_edges").Box} box */
  function about(box) {
    return [
      el("strong", { class: "name" }, box.module ?? box.label),
      el("div", {}, word(`judgement.${box.worst}`)),
      box.module && el("div", { class: "muted" }, word("graph.calls", { calls: box.calls })),
    ];
  }

  /** @param {import("graph_edges").Box} box */
  function choose(box) {
    if (box.module) store.set({ "model.graph": `module:${box.module}` });
    else if (box.row !== null) select(box.row);
  }

  const redraw = () => (element.parentElement?.offsetParent === null ? undefined : draw());
  store.subscribe(["model.graph", "model.phase", "selected"], redraw);
  return {
    element,
    /** @param {{rank: number, step: number}} where */
    show(where) {
      place = where;
      draw();
    },
  };
}

/** @param {import("graph_edges").Drawing} drawing @param {number | null} selected @returns {[any[], any]} */
function picture({ boxes, edges }, selected) {
  const { x, y, lines } = layered(boxes.length, edges);
  return [[edgeTrace(lines), boxTrace(boxes, x, y, selected)], graphLayout(x, y)];
}

/** All edges as one line with gaps; an arrow where one ends. @param {{x: number, y: number}[][]} lines */
function edgeTrace(lines) {
  const gap = { x: null, y: null };
  const points = lines.flatMap((line) => [...line, gap]);
  const sizes = lines.flatMap((line) => [...line.map((_, at) => (at === line.length - 1 ? 8 : 0)), 0]);
  return {
    type: "scatter",
    mode: "lines+markers",
    x: points.map((point) => point.x),
    y: points.map((point) => point.y),
    line: { color: color("identical"), width: 1, shape: "spline", smoothing: 0.6 },
    marker: {
      symbol: "arrow",
      angleref: "previous",
      size: sizes,
      standoff: 8,
      color: color("identical"),
      line: { width: 0 },
    },
    hoverinfo: "skip",
  };
}

/**
 * @param {import("graph_edges").Box[]} boxes @param {number[]} x @param {number[]} y
 * @param {number | null} selected
 */
function boxTrace(boxes, x, y, selected) {
  const symbols = boxes.map((box) => (box.module ? "square" : SYMBOLS[/** @type {"rounding"} */ (box.worst)]));
  return {
    type: "scatter",
    mode: "markers+text",
    name: "boxes",
    x,
    y,
    text: boxes.map((box) => label(box)),
    textposition: "middle right",
    textfont: { size: 11, color: color("text") },
    hoverinfo: "none",
    cliponaxis: true,
    marker: {
      opacity: 1,
      size: boxes.map((box) => (box.module ? 16 : 12)),
      symbol: symbols,
      color: boxes.map((box) => judgementColor(box.worst)),
      line: { width: boxes.map((box) => (box.row !== null && box.row === selected ? 3 : 0)), color: color("text") },
    },
  };
}

/** @param {import("graph_edges").Box} box */
function label(box) {
  const name = visible(shortName(box.label));
  const short =
    name.length > LONGEST_LABEL ? `${name.slice(0, LONGEST_LABEL / 2)}…${name.slice(-LONGEST_LABEL / 2)}` : name;
  return ` ${escaped(short)}${box.module ? ` (${box.calls})` : ""}`;
}

/** The beginning of the graph at a size that can be read. @param {number[]} x @param {number[]} y */
function graphLayout(x, y) {
  const layout = plotLayout();
  const hidden = {
    showgrid: false,
    zeroline: false,
    showticklabels: false,
    showline: false,
    ticks: "",
    automargin: false,
  };
  const [left, right] = [Math.min(...x, 0), Math.max(...x, 0)];
  const lowest = Math.min(...y, 0);
  const width = Math.min(right - left + 1.6, SHOWN_WIDE);
  const start = x[0] ?? 0;
  const begin = right - left + 1.6 > SHOWN_WIDE ? start - width / 2 : left - 0.5;
  return {
    ...layout,
    margin: { l: 10, r: 10, t: 6, b: 6 },
    dragmode: "pan",
    uirevision: `${x.length} ${lowest} ${left}`,
    xaxis: { ...layout.xaxis, ...hidden, range: [begin, begin + width] },
    yaxis: { ...layout.yaxis, ...hidden, range: [Math.max(lowest - 0.8, -SHOWN_HIGH), 0.8] },
  };
}
