/**
 * What is shown right now. It lives in the address behind #, so that a link and the back button bring it back.
 * @module store
 */

/**
 * @typedef {Record<string, any>} State
 * @typedef {(keys: string[], callback: (state: State) => void) => () => void} Subscribe gives what ends it
 * @typedef {{get(): State, set(patch: State): void, subscribe: Subscribe}} Store
 */

/** A change of these is a place to come back to; of others only the address is kept up. */
const PLACES = ["view", "selected"];

/**
 * @param {State} initial what holds where the address says nothing
 * @returns {Store}
 */
export function createStore(initial) {
  let state = { ...initial, ...read(initial) };
  /** @type {Set<{keys: string[], callback: (state: State) => void}>} */
  const listeners = new Set();

  /** @param {State} patch @returns {boolean} whether anything has changed */
  function apply(patch) {
    const changed = Object.keys(patch).filter((key) => !same(state[key], patch[key]));
    state = { ...state, ...patch };
    for (const { keys, callback } of [...listeners]) {
      if (keys.some((key) => changed.includes(key))) callback(state);
    }
    return changed.length > 0;
  }

  window.addEventListener("popstate", () => apply({ ...initial, ...read(initial) }));
  return {
    get: () => state,
    set(patch) {
      const isPlace = PLACES.some((key) => key in patch && !same(patch[key], state[key]));
      if (!apply(patch)) return;
      const address = "#" + written(state, initial);
      if (isPlace) history.pushState(null, "", address);
      else history.replaceState(null, "", address);
    },
    subscribe(keys, callback) {
      const listener = { keys, callback };
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}

/** @param {State} state @param {State} initial */
function written(state, initial) {
  const parts = new URLSearchParams();
  for (const [key, value] of Object.entries(state)) {
    if (same(value ?? null, initial[key] ?? null)) continue;
    parts.set(key, typeof value === "string" ? value : JSON.stringify(value));
  }
  return parts.toString();
}

/** What the address says; anything unreadable is left out. @param {State} initial @returns {State} */
function read(initial) {
  /** @type {State} */
  const found = {};
  for (const [key, text] of new URLSearchParams(location.hash.slice(1))) {
    found[key] = typeof initial[key] === "string" ? text : parsed(text, initial[key]);
  }
  return found;
}

/** @param {string} text @param {any} otherwise */
function parsed(text, otherwise) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    return otherwise === undefined ? text : otherwise;
  }
  if (otherwise === null || otherwise === undefined) return value;
  return Array.isArray(value) === Array.isArray(otherwise) && typeof value === typeof otherwise && value !== null
    ? value
    : otherwise;
}

/** @param {any} one @param {any} other */
function same(one, other) {
  return one === other || JSON.stringify(one) === JSON.stringify(other);
}
