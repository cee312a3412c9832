/**
 * The views that there are: a line each, in the order of their tabs. A view's tab is named by the phrase `view.NAME`.
 * @module views
 */

/**
 * @typedef {{content: any, store: import("store").Store, word: (key: string, params?: Record<string, any>) => string,
 *   select: (row: number | null) => void, served: boolean}} Context
 * @typedef {{element: HTMLElement, show?: () => void}} View
 * @typedef {{name: string, kinds: string[], when?: (context: Context) => boolean,
 *   load: () => Promise<{create: (context: Context) => View}>}} ViewEntry
 */

/** @type {ViewEntry[]} */
export const VIEWS = [
  { name: "found", kinds: ["check", "overflow"], load: () => import("found") },
  {
    name: "checks",
    kinds: ["check"],
    when: ({ content }) => content.tables.details !== undefined,
    load: () => import("check_matrix"),
  },
  { name: "answer", kinds: ["compare"], load: () => import("answer") },
  { name: "run", kinds: ["compare"], load: () => import("run") },
  { name: "model", kinds: ["compare"], load: () => import("model") },
  { name: "table", kinds: ["compare"], load: () => import("table") },
  { name: "map", kinds: ["compare", "trace"], load: () => import("heat_map") },
  { name: "tensor_pair", kinds: ["compare"], load: () => import("tensor_pair") },
];
