/**
 * Which call's result is which call's input: edges by the ids of values.
 * @module graph_edges
 */
import { MADE, judgementOf } from "calls";
import { separator } from "modules";
import { JUDGEMENTS } from "theme";

/**
 * @typedef {{id: number, row: number, name: string, module: string | null, phase: string | null,
 *   worst: string}} Call with the worst of its rows
 * @typedef {{calls: Call[], edges: [number, number][]}} CallGraph edges are places among the calls
 */

/** Kinds of calls that are modules. */
export const WRAPPING = new Set(["module", "module_backward"]);

/** @type {WeakMap<any, Map<string, CallGraph>>} */
const known = new WeakMap();

/**
 * The calls of one step of one rank, in execution order.
 * @param {import("data").Table} pairs @param {number} rank @param {number} step @returns {CallGraph}
 */
export function callGraph(pairs, rank, step) {
  const graphs = known.get(pairs) ?? new Map();
  known.set(pairs, graphs);
  const key = `${rank} ${step}`;
  if (!graphs.has(key)) graphs.set(key, build(pairs, rank, step));
  return graphs.get(key);
}

/** @param {import("data").Table} pairs @param {number} rank @param {number} step @returns {CallGraph} */
function build(pairs, rank, step) {
  const [ranks, steps, ids, values] = ["rank", "step", "id_target", "value_target"].map(
    (name) => pairs.columns[name]?.numbers ?? [],
  );
  const onlyModules = pairs.words("kind").every((kind) => WRAPPING.has(kind));
  /** @type {Call[]} */
  const calls = [];
  /** @type {Map<number, number>} */
  const makers = new Map();
  const edges = new Map();
  /** @type {Map<number, number>} */
  const places = new Map();
  for (let row = 0; row < pairs.length; row++) {
    if (ranks[row] !== rank || steps[row] !== step) continue;
    const kind = pairs.text("kind", row);
    // A module hands on what the calls inside it make.
    if (!onlyModules && kind !== null && WRAPPING.has(kind)) continue;
    const at = places.get(ids[row]) ?? calls.push(callAt(pairs, row)) - 1;
    places.set(ids[row], at);
    keepWorst(pairs, calls[at], row);
    if (MADE.has(pairs.text("role", row) ?? "")) {
      makers.set(values[row], at);
    } else {
      const maker = makers.get(values[row]);
      if (maker !== undefined && maker !== at) edges.set(`${maker} ${at}`, [maker, at]);
    }
  }
  return { calls, edges: [...edges.values()] };
}

/** @param {import("data").Table} pairs @param {number} row @returns {Call} */
function callAt(pairs, row) {
  return {
    id: pairs.number("id_target", row),
    row,
    name: pairs.text("call_target", row) ?? "",
    module: pairs.text("module", row),
    phase: pairs.text("phase", row),
    worst: judgementOf(pairs, row),
  };
}

/** @param {import("data").Table} pairs @param {Call} call @param {number} row */
function keepWorst(pairs, call, row) {
  const judgement = judgementOf(pairs, row);
  if (JUDGEMENTS.indexOf(judgement) >= JUDGEMENTS.indexOf(call.worst)) return;
  call.worst = judgement;
  call.row = row;
}

/**
 * What a drawing shows: calls, or whole submodules.
 * @typedef {{label: string, worst: string, row: number | null, module: string | null, calls: number}} Box
 * @typedef {{boxes: Box[], edges: [number, number][], left: number}} Drawing
 */

/**
 * The inside of a module: its own calls, and its submodules as one box each.
 * @param {import("data").Table} pairs @param {CallGraph} graph @param {string} module @param {string} phase
 * @param {number} most
 * @returns {Drawing}
 */
export function insideModule(pairs, graph, module, phase, most) {
  const parting = separator(pairs);
  const inside = (/** @type {Call} */ call) =>
    call.phase === phase &&
    call.module !== null &&
    (call.module === module || call.module.startsWith(module + parting));
  return drawing(graph, most, (call) => {
    if (!inside(call)) return null;
    const rest = /** @type {string} */ (call.module).slice(module.length + 1);
    if (rest === "" || (parting === "/" && !rest.includes("/"))) return { key: `call ${call.id}`, module: null };
    const child = rest.split(parting)[0];
    return { key: `module ${child}`, module: module + parting + child, label: child };
  });
}

/**
 * The calls around one, some steps up and down.
 * @param {CallGraph} graph @param {number} id of the call @param {number} steps @param {number} most
 * @returns {Drawing}
 */
export function aroundCall(graph, id, steps, most) {
  const center = graph.calls.findIndex((call) => call.id === id);
  const near = new Set(center < 0 ? [] : [center]);
  for (const [from, to] of [
    [0, 1],
    [1, 0],
  ]) {
    let border = new Set(near.size ? [center] : []);
    for (let step = 0; step < steps && near.size < most; step++) {
      const next = new Set();
      for (const edge of graph.edges) if (border.has(edge[from]) && !near.has(edge[to])) next.add(edge[to]);
      border = new Set([...next].slice(0, most - near.size));
      border.forEach((each) => near.add(each));
    }
  }
  const places = new Map(graph.calls.map((call, at) => [call, at]));
  return drawing(graph, most, (call) =>
    near.has(/** @type {number} */ (places.get(call))) ? { key: `call ${call.id}`, module: null } : null,
  );
}

/**
 * @param {CallGraph} graph @param {number} most
 * @param {(call: Call) => {key: string, module: string | null, label?: string} | null} group its box
 * @returns {Drawing}
 */
function drawing(graph, most, group) {
  /** @type {Map<string, number>} */
  const places = new Map();
  /** @type {Box[]} */
  const boxes = [];
  let left = 0;
  const of = graph.calls.map((call) => {
    const found = group(call);
    if (found === null) return -1;
    if (!places.has(found.key)) {
      if (boxes.length >= most) {
        left++;
        return -1;
      }
      places.set(found.key, boxes.length);
      boxes.push({
        label: found.label ?? call.name,
        worst: call.worst,
        row: call.row,
        module: found.module,
        calls: 0,
      });
    }
    const box = boxes[/** @type {number} */ (places.get(found.key))];
    box.calls++;
    if (JUDGEMENTS.indexOf(call.worst) < JUDGEMENTS.indexOf(box.worst))
      Object.assign(box, { worst: call.worst, row: call.row });
    return /** @type {number} */ (places.get(found.key));
  });
  const edges = new Map();
  for (const [from, to] of graph.edges) {
    if (of[from] >= 0 && of[to] >= 0 && of[from] !== of[to]) edges.set(`${of[from]} ${of[to]}`, [of[from], of[to]]);
  }
  return { boxes, edges: [...edges.values()], left };
}
