/**
 * Questions to the server behind a served page. A long one answers with its progress until it is done.
 * @module tensor_asking
 */

const AGAIN_AFTER = 300;
const KEPT = 40;
/** @type {Map<string, any>} */
const known = new Map();

/** Why the server does not answer: what was seen, what it expected, what to do. */
export class Refusal extends Error {
  /** @param {{kind: string | null, what: string, expected: string, next: string}} told */
  constructor(told) {
    super(told.what);
    this.told = told;
  }
}

/**
 * @param {string} path relative to the page
 * @param {{progress?: (share: number) => void, wanted?: () => boolean}} [options] `wanted`: whether to go on asking
 * @returns {Promise<any>} the answer; null if it is not wanted any more
 */
export async function ask(path, { progress = () => {}, wanted = () => true } = {}) {
  if (known.has(path)) return known.get(path);
  for (;;) {
    const reply = await fetched(path);
    if (!wanted()) return null;
    if (reply.error) throw new Refusal(reply.error);
    if (reply.done) return keep(path, reply.answer);
    progress(reply.share);
    await new Promise((resolve) => setTimeout(resolve, AGAIN_AFTER));
  }
}

/** @param {string} path @returns {Promise<any>} */
async function fetched(path) {
  try {
    return await (await fetch(path, { credentials: "omit", cache: "no-store" })).json();
  } catch (error) {
    return { error: { kind: "gone", what: String(error), expected: "", next: "ulpscope report RESULT --serve" } };
  }
}

/** @param {string} path @param {any} answer */
function keep(path, answer) {
  // What cannot be read now may be there later: only sound answers are kept.
  if (!answer.problem) known.set(path, answer);
  if (known.size > KEPT) known.delete(/** @type {string} */ (known.keys().next().value));
  return answer;
}
