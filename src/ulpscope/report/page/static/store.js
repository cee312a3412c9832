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
/** Selections that follow one another faster than this, such as a held key's, are one place. */
const RUSH_MS = 700;

/**
 * @param {State} initial what holds where the address says nothing
 * @returns {Store}
 */
export function createStore(initial) {
  let state = { ...initial, ...read(initial) };
  /** @type {Set<{keys: string[], callback: (state: State) => void}>} */
  const listeners = new Set();
  let lastSelected = -Infinity;

  /** @param {State} next @returns {string[]} what is different in it */
  function changes(next) {
    return Object.keys(next).filter((key) => !same(state[key], next[key]));
  }

  /** @param {string[]} changed */
  function notify(changed) {
    for (const { keys, callback } of [...listeners]) {
      if (keys.some((key) => changed.includes(key))) callback(state);
    }
  }

  /** Whether a change makes a new place. @param {string[]} changed */
  function isPlace(changed) {
    const found = PLACES.filter((key) => changed.includes(key));
    if (!found.includes("selected")) return found.length > 0;
    const isRush = performance.now() - lastSelected < RUSH_MS && found.length === 1;
    lastSelected = performance.now();
    return !isRush;
  }

  window.addEventListener("popstate", () => {
    const gone = Object.fromEntries(Object.keys(state).map((key) => [key, undefined]));
    const next = { ...gone, ...initial, ...read(initial) };
    const changed = changes(next);
    state = next;
    notify(changed);
  });
  return {
    get: () => state,
    set(patch) {
      const changed = changes(patch);
      if (!changed.length) return;
      state = { ...state, ...patch };
      // The address before the listeners: what they set belongs to this place, not to the one before.
      visit("#" + written(state, initial), isPlace(changed));
      notify(changed);
    },
    subscribe(keys, callback) {
      const listener = { keys, callback };
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}

/** @param {string} address @param {boolean} isNew */
function visit(address, isNew) {
  try {
    if (isNew) history.pushState(null, "", address);
    else history.replaceState(null, "", address);
  } catch {
    // Browsers refuse very many changes within seconds; what is shown does not depend on the address.
  }
}

/** @param {State} state @param {State} initial */
function written(state, initial) {
  const parts = new URLSearchParams();
  for (const [key, value] of Object.entries(state)) {
    if (same(value, initial[key])) continue;
    parts.set(key, isPlain(value, initial[key]) ? value : JSON.stringify(value));
  }
  return parts.toString();
}

/**
 * Whether a value is a text that is read as it is written.
 * @param {any} value @param {any} usual what holds where the address says nothing
 */
function isPlain(value, usual) {
  return typeof value === "string" && (typeof usual === "string" || parsed(value, undefined) === value);
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
  return one === other || JSON.stringify(one ?? null) === JSON.stringify(other ?? null);
}
