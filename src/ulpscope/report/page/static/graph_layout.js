/**
 * Places boxes in layers, what is made before what uses it.
 * @module graph_layout
 */

const SWEEPS = 6;

/**
 * @param {number} number of boxes, in execution order
 * @param {[number, number][]} edges
 * @returns {{x: number[], y: number[], lines: {x: number, y: number}[][]}} a place for each box, a line for each edge
 */
export function layered(number, edges) {
  const forward = edges.filter(([from, to]) => from < to);
  const layers = longestPaths(number, forward);
  const { chains, all, links } = withBends(number, layers, forward);
  const places = ordered(all, links);
  const at = (/** @type {number} */ one) => ({ x: places[one], y: -all[one] });
  const boxes = Array.from({ length: number }, (_, one) => at(one));
  const bends = new Map(forward.map((edge, place) => [edge, chains[place]]));
  const lines = edges.map((edge) => (bends.get(edge) ?? edge).map(at));
  return { x: boxes.map((box) => box.x), y: boxes.map((box) => box.y), lines };
}

/**
 * The layer of a box: one below the lowest that it takes from.
 * @param {number} number @param {[number, number][]} edges
 */
function longestPaths(number, edges) {
  const layers = new Array(number).fill(0);
  for (const [from, to] of [...edges].sort((one, other) => one[0] - other[0] || one[1] - other[1])) {
    layers[to] = Math.max(layers[to], layers[from] + 1);
  }
  return layers;
}

/**
 * An edge over several layers gets a bend in each, so that it goes around boxes.
 * @param {number} number @param {number[]} layers @param {[number, number][]} edges
 */
function withBends(number, layers, edges) {
  const all = [...layers];
  /** @type {[number, number][]} */
  const links = [];
  const chains = edges.map(([from, to]) => {
    const chain = [from];
    for (let layer = layers[from] + 1; layer < layers[to]; layer++) {
      all.push(layer);
      chain.push(all.length - 1);
    }
    chain.push(to);
    for (let place = 1; place < chain.length; place++) links.push([chain[place - 1], chain[place]]);
    return chain;
  });
  return { chains, all, links };
}

/**
 * Where each stands in its layer: near the middle of what it is linked with.
 * @param {number[]} layers @param {[number, number][]} links
 */
function ordered(layers, links) {
  const rows = /** @type {number[][]} */ ([]);
  layers.forEach((layer, one) => (rows[layer] ??= []).push(one));
  const places = new Array(layers.length).fill(0);
  const spread = (/** @type {number[]} */ row) => row.forEach((one, at) => (places[one] = at - (row.length - 1) / 2));
  rows.forEach(spread);
  const above = neighbours(layers.length, links, 1, 0);
  const below = neighbours(layers.length, links, 0, 1);
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    const near = sweep % 2 ? below : above;
    for (const row of sweep % 2 ? [...rows].reverse() : rows) {
      const middles = new Map(row.map((one) => [one, middle(near[one], places, places[one])]));
      row.sort((one, other) => /** @type {number} */ (middles.get(one)) - /** @type {number} */ (middles.get(other)));
      spread(row);
    }
  }
  rows.forEach((row) => straightened(row, above, places));
  return places;
}

/**
 * A row moves as a whole to where its links come from.
 * @param {number[]} row @param {number[][]} above @param {number[]} places
 */
function straightened(row, above, places) {
  const wanted = row.filter((one) => above[one].length);
  if (!wanted.length) return;
  const shift =
    wanted.reduce((sum, one) => sum + middle(above[one], places, places[one]) - places[one], 0) / wanted.length;
  row.forEach((one) => (places[one] += shift));
}

/** @param {number} number @param {[number, number][]} links @param {0 | 1} of @param {0 | 1} to */
function neighbours(number, links, of, to) {
  const found = Array.from({ length: number }, () => /** @type {number[]} */ ([]));
  for (const link of links) found[link[of]].push(link[to]);
  return found;
}

/** @param {number[]} near @param {number[]} places @param {number} otherwise */
function middle(near, places, otherwise) {
  return near.length ? near.reduce((sum, one) => sum + places[one], 0) / near.length : otherwise;
}
