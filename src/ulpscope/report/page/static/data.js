/**
 * What a page carries: a header of JSON and tables of columns, compressed. Columns are unpacked when asked for.
 * @module data
 */

/**
 * @typedef {{type: string, begin?: number, words?: string[]}} ColumnHeader
 * @typedef {{length: number, columns: Record<string, ColumnHeader>}} TableHeader
 * @typedef {Int32Array | Float32Array | Float64Array} Numbers
 */

const TYPES = { int32: Int32Array, float32: Float32Array, float64: Float64Array, words: Int32Array };
const ALIGNMENT = 8;

/** A table of columns; rows are counted from 0. */
export class Table {
  /**
   * @param {TableHeader} header
   * @param {Uint8Array} bytes all columns
   */
  constructor(header, bytes) {
    this.length = header.length;
    /** @type {Record<string, Column>} */
    this.columns = {};
    for (const [name, column] of Object.entries(header.columns)) {
      this.columns[name] = new Column(column, header.length, bytes);
    }
  }

  /** Whether a column is there and has something in it. @param {string} name */
  has(name) {
    return Object.hasOwn(this.columns, name) && this.columns[name].type !== "empty";
  }

  /** A cell as text; null where there is none. @param {string} name @param {number} row @returns {string | null} */
  text(name, row) {
    return this.columns[name]?.text(row) ?? null;
  }

  /** A cell as a number; NaN where there is none. @param {string} name @param {number} row @returns {number} */
  number(name, row) {
    const column = this.columns[name];
    return column === undefined || column.type === "empty" ? NaN : column.numbers[row];
  }

  /** For each row which word it has, -1 for none. @param {string} name @returns {Int32Array} */
  codes(name) {
    const column = this.columns[name];
    if (column?.type === "words") return /** @type {Int32Array} */ (column.numbers);
    return new Int32Array(this.length).fill(-1);
  }

  /** Each word of a column once. @param {string} name @returns {string[]} */
  words(name) {
    return this.columns[name]?.words ?? [];
  }
}

/** One column: numbers, or words that are kept once each. */
export class Column {
  /** @type {Numbers | null} */
  #numbers = null;
  #bytes;
  #begin;
  #length;

  /** @param {ColumnHeader} header @param {number} length @param {Uint8Array} bytes */
  constructor(header, length, bytes) {
    this.type = header.type;
    this.words = header.words ?? [];
    this.#begin = header.begin ?? 0;
    this.#length = length;
    this.#bytes = bytes;
  }

  /** The numbers of all rows; of words, which one. @returns {Numbers} */
  get numbers() {
    this.#numbers ??= this.type === "empty" ? new Float32Array(this.#length).fill(NaN) : this.#unpack();
    return this.#numbers;
  }

  /** @param {number} row @returns {string | null} */
  text(row) {
    if (this.type === "empty") return null;
    const number = this.numbers[row];
    if (this.type === "words") return number < 0 ? null : this.words[number];
    return Number.isNaN(number) ? null : String(number);
  }

  /** @returns {Numbers} */
  #unpack() {
    const numbers = new TYPES[/** @type {keyof typeof TYPES} */ (this.type)](this.#length);
    const size = numbers.BYTES_PER_ELEMENT;
    const target = new Uint8Array(numbers.buffer);
    for (let plane = 0; plane < size; plane++) {
      const begin = this.#begin + plane * this.#length;
      for (let row = 0; row < this.#length; row++) target[row * size + plane] = this.#bytes[begin + row];
    }
    return numbers;
  }
}

/**
 * Unpack what Python's `pack` has made.
 * @param {string} text
 * @returns {Promise<{meta: any, tables: Record<string, Table>}>}
 */
export async function unpack(text) {
  const bytes = await inflate(text);
  const length = new DataView(bytes.buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  const columns = bytes.subarray(Math.ceil((4 + length) / ALIGNMENT) * ALIGNMENT);
  const tables = Object.entries(header.tables).map(([name, table]) => [name, new Table(table, columns)]);
  return { meta: header.meta, tables: Object.fromEntries(tables) };
}

/**
 * The bytes behind gzip'd base64 text.
 * @param {string} text
 * @returns {Promise<Uint8Array>}
 */
export async function inflate(text) {
  const packed = new Blob([/** @type {any} */ (decode(text.trim()))]);
  const stream = packed.stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** @param {string} text @returns {Uint8Array} */
function decode(text) {
  const made = /** @type {any} */ (Uint8Array);
  if ("fromBase64" in made) return made.fromBase64(text);
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let at = 0; at < raw.length; at++) bytes[at] = raw.charCodeAt(at);
  return bytes;
}
