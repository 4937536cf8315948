// Tiles: fetched by level and number, decoded into columns, kept while they are likely to be seen again.
const TILE = 1024, KEPT = 160, FAR = 2 ** 59, AT_ONCE = 4, AGAIN_MS = 2000;
const UNIT = { f8: 8, f4: 4, i4: 4, u1: 1 };

function decode(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  let slices = 0, buckets = 0;
  for (const [, s, b] of head.rows) { slices += s; buckets += b; }
  let at = 8 + length;
  const column = (Kind, unit, count) => {
    const found = at % unit ? new Kind(buffer.slice(at, at + unit * count)) : new Kind(buffer, at, count);
    at += unit * count;
    return found;
  };
  const tile = {
    start: column(Float64Array, UNIT.f8, slices), dur: column(Float64Array, UNIT.f8, slices),
    bucket: column(Float64Array, UNIT.f8, buckets), busy: column(Float32Array, UNIT.f4, buckets),
    row: column(Int32Array, UNIT.i4, slices), name: column(Int32Array, UNIT.i4, slices),
    bucketName: column(Int32Array, UNIT.i4, buckets), count: column(Int32Array, UNIT.i4, buckets),
    paint: column(Uint8Array, UNIT.u1, slices), bucketPaint: column(Uint8Array, UNIT.u1, buckets),
    names: head.names, parts: new Map(), image: new Map(),
  };
  let slice = 0, bucket = 0;
  for (const [part, s, b] of head.rows) {
    if (!tile.parts.has(part)) tile.parts.set(part, []);
    tile.parts.get(part).push({ from: slice, to: slice += s, low: bucket, high: bucket += b });
  }
  return tile;
}

class Tiles {
  constructor(base, changed) {
    this.base = base; this.changed = changed; this.kept = new Map(); this.asked = new Set(); this.error = "";
    this.flying = 0; this.refused = false;
  }

  // The level whose buckets are at most one pixel wide.
  level(nsPerPixel) { return Math.max(0, Math.floor(Math.log2(Math.max(nsPerPixel, 1)))); }

  get(part, level, index) {
    const key = `${part}/${level}/${index}`, found = this.kept.get(key);
    if (found) { this.kept.delete(key); this.kept.set(key, found); }
    return found;
  }

  // Ask for what is missing of these parts, a few at once: what is wanted then is asked for when they have come.
  want(parts, level, first, last) {
    for (let index = first; index <= last; index++) {
      if (this.refused || this.flying >= AT_ONCE) return;
      if (Math.abs(index) * TILE * 2 ** level > FAR) continue;
      const missing = parts.filter(p => !this.kept.has(`${p}/${level}/${index}`) && !this.asked.has(`${p}/${level}/${index}`));
      if (missing.length) this.fetch(missing, level, index);
    }
  }

  async fetch(parts, level, index) {
    for (const part of parts) this.asked.add(`${part}/${level}/${index}`);
    this.flying++;
    try {
      const answer = await fetch(`${this.base}/tile?level=${level}&index=${index}&parts=${parts.join(",")}`);
      if (!answer.ok) throw new Error((await answer.json()).error);
      const tile = decode(await answer.arrayBuffer());
      for (const part of parts) this.kept.set(`${part}/${level}/${index}`, tile);
      for (const key of this.kept.keys()) { if (this.kept.size <= KEPT * Math.max(1, parts.length)) break; this.kept.delete(key); }
      this.error = "";
    } catch (error) {
      this.error = `Slices did not come: ${error.message}`;
      this.refused = true;
      setTimeout(() => { this.refused = false; this.changed(); }, AGAIN_MS);
    }
    this.flying--;
    for (const part of parts) this.asked.delete(`${part}/${level}/${index}`);
    this.changed();
  }
}
