// The content of the page: facts as JSON, arrays as deflated bytes in base64, both written by Python (`arrays.py`).

const KINDS = { f4: Float32Array, u1: Uint8Array, i1: Int8Array, u2: Uint16Array };

/** The number that 16 bits represent (IEEE 754 binary16). */
export function floatOfHalf(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

/** Converts float16 numbers, stored as all low bytes and then all high bytes, to float32. */
export function floatsOfHalves(bytes) {
  const table = Float32Array.from({ length: 0x10000 }, (_, bits) => floatOfHalf(bits));
  const count = bytes.length / 2;
  const floats = new Float32Array(count);
  for (let k = 0; k < count; k++) floats[k] = table[bytes[k] | (bytes[count + k] << 8)];
  return floats;
}

function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64); // in browsers from 2025 on
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let k = 0; k < text.length; k++) bytes[k] = text.charCodeAt(k);
  return bytes;
}

async function inflated(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

/** An array with a shape; `row(...index)` is a view of the values at these first indices, `at(k)` the subarray at k. */
class Grid {
  constructor(values, shape) {
    this.values = values;
    this.shape = shape;
  }

  row(...index) {
    const size = this.shape.slice(index.length).reduce((a, b) => a * b, 1);
    const place = index.reduce((at, k, axis) => at * this.shape[axis] + k, 0);
    return this.values.subarray(place * size, (place + 1) * size);
  }

  at(k) {
    return new Grid(this.row(k), this.shape.slice(1));
  }
}

/** Values as an array of a shape. */
export const gridOf = (values, shape) => new Grid(values, shape);

/** What `Arrays.packed` wrote, as a buffer. */
export async function unpacked(base64) {
  return inflated(bytesOf(base64));
}

/** The arrays of a table whose names begin with `prefix`, by the rest of their names. `buffer`: the bytes of all arrays. */
export function readArrays(table, buffer, prefix = "") {
  const grids = {};
  for (const [name, [kind, shape, start]] of Object.entries(table)) {
    const count = shape.reduce((a, b) => a * b, 1);
    const values =
      kind === "f2"
        ? floatsOfHalves(new Uint8Array(buffer, start, 2 * count))
        : new KINDS[kind](buffer, start, count);
    if (name.startsWith(prefix)) grids[name.slice(prefix.length)] = new Grid(values, shape);
  }
  return grids;
}

/** A run's images and arrays: `its(image, name)` or undefined. `add` adds an image, `learn` more arrays of an image. */
function imagesOf(run, grid) {
  const images = [...run.images];
  const later = images.map(() => ({}));
  const single = (grids) => Object.fromEntries(Object.entries(grids).map(([name, one]) => [name, one.at(0)]));
  return {
    images,
    its: (image, name) => later[image][name] ?? (image < run.images.length ? grid(name)?.at(image) : undefined),
    learn: (image, grids) => Object.assign(later[image], single(grids)),
    add(facts, grids) {
      later.push(single(grids));
      return images.push(facts) - 1;
    },
  };
}

/** The runs of a page: their facts, arrays by `grid(name)`, images, and parts of the network: the decoder's `layers`, the `encoder`, and the `engine` that runs it; null for parts that the page lacks. */
export function readContent(facts, buffer) {
  const grids = readArrays(facts.arrays, buffer);
  const engine = facts.engine ? Object.fromEntries(["library", "worker", "wasm"].map((name) => [name, grids[`engine/${name}`].values])) : null;
  return facts.runs.map((run, number) => {
    const grid = (name) => grids[`${number}/${name}`];
    const layers = run.decoder?.after?.map((after, k) => ({
      weight: grid(`weight${k}`).values,
      bias: grid(`bias${k}`).values,
      after,
    }));
    return { ...run, number, grid, layers: layers ?? null, encoder: grid("encoder")?.values ?? null, engine, ...imagesOf(run, grid) };
  });
}
