/**
 * Both runs as one tree: modules, submodules and calls, partners side by side.
 * @module model_tree
 */
import { errorsOf, judgementOf } from "calls";
import { shortName } from "columns";
import { placesAlong } from "lone_calls";
import { separator } from "modules";
import { JUDGEMENTS } from "theme";

/**
 * A module, or a call (which has no children). A side that does not have it has no name for it.
 * @typedef {{reference: string | null, target: string | null}} Sides
 * @typedef {{key: string, label: Sides, full: Sides,
 *   depth: number, children: Node[], isCall: boolean, row: number | null, phase: string | null, order: number,
 *   counts: Record<string, number>, unmatched: number, worst: string | null, error: number, path: string | null}} Node
 */

/**
 * @param {any} content @param {number} rank @param {number} step
 * @param {(phase: string) => string} outside what holds calls of no module
 * @returns {Node} the root
 */
export function buildTree(content, rank, step, outside) {
  const builder = new Builder(content, rank, outside);
  builder.addPairs(step);
  builder.addUnmatched(step);
  sum(builder.root);
  builder.root.children.sort(
    (one, other) => Number(one.path === null) - Number(other.path === null) || one.order - other.order,
  );
  return builder.root;
}

class Builder {
  /** @param {any} content @param {number} rank @param {(phase: string) => string} outside */
  constructor(content, rank, outside) {
    this.content = content;
    this.rank = rank;
    this.outside = outside;
    this.separator = separator(content.tables.pairs);
    /** Names that the reference has for modules of the target. @type {Record<string, string>} */
    this.renamed = content.modules[String(rank)] ?? {};
    /** @type {Map<string, string>} */
    this.inTarget = new Map(Object.entries(this.renamed).map(([target, reference]) => [reference, target]));
    this.root = node("", { reference: "", target: "" }, { reference: "", target: "" }, 0);
    /** @type {Map<string, Node>} */
    this.modules = new Map([["", this.root]]);
  }

  /** @param {number} step */
  addPairs(step) {
    const { pairs } = this.content.tables;
    const errors = errorsOf(pairs);
    const [ranks, steps, ids] = ["rank", "step", "id_target"].map((name) => pairs.columns[name].numbers);
    /** @type {Map<number, Node>} */
    const calls = new Map();
    for (let row = 0; row < pairs.length; row++) {
      if (ranks[row] !== this.rank || steps[row] !== step) continue;
      const call = calls.get(ids[row]) ?? this.#call(row);
      calls.set(ids[row], call);
      count(call, judgementOf(pairs, row), errors[row], row);
    }
  }

  /** @param {number} step */
  addUnmatched(step) {
    const { pairs, unmatched } = this.content.tables;
    const places = {
      reference: placesAlong(pairs, this.rank, step, "reference"),
      target: placesAlong(pairs, this.rank, step, "target"),
    };
    for (let row = 0; row < unmatched.length; row++) {
      if (unmatched.number("rank", row) !== this.rank || unmatched.number("step", row) !== step) continue;
      const side = unmatched.text("side", row) === "reference" ? "reference" : "target";
      const name = unmatched.text("name", row) ?? "";
      const module = this.#inTarget(unmatched.text("module", row), side);
      const parent = module ? this.#module(module) : this.#outside(unmatched.text("phase", row));
      const names = { reference: null, target: null, [side]: name };
      const call = node(`u${row}`, { ...names, [side]: shortName(name) }, names, parent.depth + 1);
      Object.assign(call, {
        isCall: true,
        unmatched: 1,
        phase: unmatched.text("phase", row),
        order: places[side](unmatched.number("id", row)),
      });
      parent.children.push(call);
    }
  }

  /** The target's name of a module. @param {string | null} module @param {"reference" | "target"} side */
  #inTarget(module, side) {
    if (side === "target" || module === null) return module;
    return this.inTarget.get(module) ?? module;
  }

  /** @param {number} row */
  #call(row) {
    const { pairs } = this.content.tables;
    const module = pairs.text("module", row);
    const flat = this.separator === "/" && module !== null;
    const holder = flat ? module.split("/").slice(0, -1).join("/") : module;
    const parent = holder ? this.#module(holder) : this.#outside(flat ? null : pairs.text("phase", row));
    const full = { reference: pairs.text("call_reference", row), target: pairs.text("call_target", row) };
    const shown = (/** @type {string | null} */ name) =>
      name === null ? null : flat ? `${module.split("/").at(-1)} (${name})` : shortName(name);
    const call = node(
      `c${row}`,
      { reference: shown(full.reference), target: shown(full.target) },
      full,
      parent.depth + 1,
    );
    Object.assign(call, { isCall: true, row, phase: pairs.text("phase", row), order: row });
    parent.children.push(call);
    return call;
  }

  /** @param {string} path @returns {Node} */
  #module(path) {
    const known = this.modules.get(path);
    if (known) return known;
    const parts = path.split(this.separator);
    const parent = parts.length > 1 ? this.#module(parts.slice(0, -1).join(this.separator)) : this.root;
    const reference = Object.hasOwn(this.renamed, path) ? this.renamed[path] : path;
    const label = { reference: reference.split(this.separator).at(-1) ?? "", target: parts.at(-1) ?? "" };
    const made = node(`m${path}`, label, { reference, target: path }, parent.depth + 1);
    made.path = path;
    return this.#add(path, made, parent);
  }

  /**
   * What holds a phase's calls of no module; the root holds operators that stand alone.
   * @param {string | null} phase @returns {Node}
   */
  #outside(phase) {
    if (phase === null) return this.root;
    const key = `\u0000${phase}`;
    const label = this.outside(phase);
    const names = { reference: label, target: label };
    return this.modules.get(key) ?? this.#add(key, node(`o${phase}`, names, names, 1), this.root);
  }

  /** @param {string} key @param {Node} made @param {Node} parent */
  #add(key, made, parent) {
    this.modules.set(key, made);
    parent.children.push(made);
    return made;
  }
}

/** @param {string} key @param {Node["label"]} label @param {Node["full"]} full @param {number} depth @returns {Node} */
function node(key, label, full, depth) {
  return {
    key,
    label,
    full,
    depth,
    children: [],
    isCall: false,
    row: null,
    phase: null,
    order: Infinity,
    counts: {},
    unmatched: 0,
    worst: null,
    error: NaN,
    path: null,
  };
}

/** @param {Node} call @param {string} judgement @param {number} error @param {number} row */
function count(call, judgement, error, row) {
  call.counts[judgement] = (call.counts[judgement] ?? 0) + 1;
  if (isWorse(judgement, call.worst)) {
    call.worst = judgement;
    call.row = row;
  }
  if (!(error <= call.error) && !Number.isNaN(error)) call.error = error;
}

/** @param {string} judgement @param {string | null} other */
function isWorse(judgement, other) {
  return other === null || JUDGEMENTS.indexOf(judgement) < JUDGEMENTS.indexOf(other);
}

/**
 * What modules hold is the sum of what is in them; one that a run calls nothing of is none of its.
 * @param {Node} parent
 */
function sum(parent) {
  if (parent.isCall) return;
  for (const child of parent.children) {
    sum(child);
    parent.order = Math.min(parent.order, child.order);
    parent.unmatched += child.unmatched;
    for (const [judgement, number] of Object.entries(child.counts))
      parent.counts[judgement] = (parent.counts[judgement] ?? 0) + number;
    if (child.worst !== null && isWorse(child.worst, parent.worst)) parent.worst = child.worst;
    if (!(child.error <= parent.error) && !Number.isNaN(child.error)) parent.error = child.error;
  }
  for (const side of /** @type {const} */ (["reference", "target"])) {
    if (parent.children.every((child) => child.full[side] === null)) parent.label[side] = parent.full[side] = null;
  }
  parent.children.sort((one, other) => Number(one.isCall) - Number(other.isCall) || one.order - other.order);
}

/**
 * Nodes in sight, from top to bottom.
 * @param {Node} root @param {Set<string>} open keys of modules that are open
 * @param {string} text only what has it in a name, with all above it
 * @returns {Node[]}
 */
export function flattened(root, open, text) {
  const wanted = text.toLowerCase();
  /** @type {Node[]} */
  const found = [];
  /** @param {Node} parent @param {boolean} isInside */
  function visit(parent, isInside) {
    for (const child of parent.children) {
      const hit = wanted === "" || isInside || hasText(child, wanted);
      if (wanted !== "" && !hit && !child.children.some((each) => contains(each, wanted))) continue;
      found.push(child);
      if (!child.isCall && (open.has(child.key) || (wanted !== "" && !hit))) visit(child, wanted !== "" && hit);
    }
  }
  visit(root, false);
  return found;
}

/** @param {Node} one @param {string} text */
function hasText(one, text) {
  return [one.full.reference, one.full.target].some((name) => name?.toLowerCase().includes(text));
}

/** @param {Node} one @param {string} text @returns {boolean} */
function contains(one, text) {
  return hasText(one, text) || one.children.some((child) => contains(child, text));
}

/**
 * The modules above a call or module, outermost first.
 * @param {Node} root @param {(one: Node) => boolean} is @returns {Node[]}
 */
export function pathTo(root, is) {
  for (const child of root.children) {
    if (is(child)) return [child];
    if (child.isCall) continue;
    const found = pathTo(child, is);
    if (found.length) return [child, ...found];
  }
  return [];
}
