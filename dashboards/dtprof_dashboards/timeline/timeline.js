// The timeline in its place: pointer and keys move the window, a click asks for the event, texts stay texts.
const LEAST = 50, SETTLED_MS = 500;

function element(tag, css, text) {
  const made = document.createElement(tag);
  if (css) made.className = css;
  if (text !== undefined) made.textContent = text;
  return made;
}

class View {
  constructor(place, data, tell) {
    Object.assign(this, { place, tell, data, t0: 0, t1: 1, scroll: 0, chosen: null, hover: null, due: false, timer: 0 });
    this.canvas = place.querySelector("canvas");
    this.painter = new Painter(this.canvas, data);
    this.tiles = new Tiles(data.base, () => this.ask());
    this.stop = new AbortController();
    this.aim(data);
    this.legend();
    const on = (target, names, handler, more = {}) => {
      for (const name of names.split(" ")) target.addEventListener(name, handler, { signal: this.stop.signal, ...more });
    };
    on(this.canvas, "wheel", e => this.wheel(e), { passive: false });
    on(this.canvas, "pointerdown", e => this.press(e));
    on(this.canvas, "pointermove", e => this.move(e));
    on(this.canvas, "pointerup", e => this.release(e));
    on(this.canvas, "pointercancel", () => { this.held = null; });
    on(this.canvas, "pointerleave", () => { this.tip(null); });
    on(this.canvas, "keydown", e => this.key(e));
    on(this.canvas, "dblclick", e => this.enlarge(e));
    on(window.matchMedia("(prefers-color-scheme: dark)"), "change", () => this.ask());
    on(place.querySelector(".tl-whole"), "click", () => this.go(this.data.span[0], this.data.span[1]));
    on(place.querySelector(".tl-perfetto"), "click", () => this.perfetto());
    this.watch = new ResizeObserver(() => this.ask());
    this.watch.observe(this.canvas.parentElement);
    this.watch.observe(document.body);
    this.ask();
  }

  end() { this.stop.abort(); this.watch.disconnect(); clearTimeout(this.timer); }

  // Go where the page says, once for each time that it says something new.
  aim(data) {
    this.data = data;
    if (this.aimed === data.aim) return;
    this.aimed = data.aim;
    [this.t0, this.t1] = data.window;
    const at = this.painter.places().find(p => !p.track && p.group.rank === data.rank);
    this.scroll = at ? at.y : 0;
  }

  // The same run, read again: what was looked at stays, and what was chosen where it is still the same event.
  resume(before) {
    if (before.aimed === this.aimed) [this.t0, this.t1, this.scroll] = [before.t0, before.t1, before.scroll];
    const unfolded = new Set();
    before.eachTrack((track, key) => { if (!before.painter.folds.has(track)) unfolded.add(key); });
    this.eachTrack((track, key) => { if (unfolded.has(key)) this.painter.folds.delete(track); });
    if (before.chosen) this.choose(before.chosen, before.shown);
  }

  eachTrack(visit) {
    for (const group of this.painter.layout.groups) for (const track of group.tracks) visit(track, `${group.part}/${track.name}`);
  }

  get wide() { return this.painter.width - GUTTER; }

  ask() {
    if (this.due) return;
    this.due = true;
    requestAnimationFrame(() => { this.due = false; if (!this.stop.signal.aborted) this.draw(); });
  }

  colours() {
    const style = getComputedStyle(this.place), probe = this.place.querySelector(".tl-probe");
    const shade = name => { probe.style.color = style.getPropertyValue(`--${name}`); return getComputedStyle(probe).color; };
    const key = shade("page") + shade("ink");
    if (this.shades?.key !== key) {
      const hex = name => "#" + shade(name).match(/[\d.]+/g).slice(0, 3).map(v => Math.round(v).toString(16).padStart(2, "0")).join("");
      this.shades = theme(Object.fromEntries(this.data.colours.map(name => [name, hex(name)])));
      this.shades.key = key;
    }
    return this.shades;
  }

  draw() {
    const began = performance.now(), box = this.canvas.parentElement.getBoundingClientRect();
    if (!box.width) return;
    this.painter.places();
    const tall = Math.max(240, Math.min(this.painter.height + RULER, Math.max(380, window.innerHeight - 330)));
    this.canvas.style.height = `${tall}px`;
    this.painter.fit(box.width, tall, window.devicePixelRatio || 1);
    this.scroll = Math.max(0, Math.min(this.scroll, this.painter.height + RULER - tall));
    const state = { colours: this.colours(), chosen: this.chosen, rank: this.data.rank };
    const parts = this.painter.draw(this, this.tiles, state);
    const level = this.tiles.level((this.t1 - this.t0) / this.wide), width = TILE * 2 ** level;
    const first = Math.floor(this.t0 / width), last = Math.floor(this.t1 / width);
    this.tiles.want(parts, level, first, last);
    const lacks = parts.some(p => { for (let i = first; i <= last; i++) if (!this.tiles.get(p, level, i)) return true; return false; });
    if (!lacks) { this.tiles.want(parts, level, first - 1, last + 1); this.canvas.dataset.painted = String(Number(this.canvas.dataset.painted ?? 0) + 1); }
    this.place.querySelector(".tl-error").textContent = this.tiles.error;
    this.canvas.dataset.window = `${Math.round(this.t0)}:${Math.round(this.t1)}`;
    this.canvas.dataset.frame = (performance.now() - began).toFixed(2);
    this.canvas.dataset.complete = String(!lacks);
  }

  go(t0, t1) {
    const [low, high] = this.data.span, whole = high - low, span = Math.max(LEAST, Math.min(t1 - t0, whole * 1.2));
    const middle = Math.max(low, Math.min(high, (t0 + t1) / 2));
    this.t0 = middle - span / 2; this.t1 = middle + span / 2;
    this.ask();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.tell(`${Math.round(this.t0)}:${Math.round(this.t1)}`), SETTLED_MS);
  }

  zoom(factor, at) {
    const t = this.t0 + (this.t1 - this.t0) * at;
    const span = Math.max(LEAST, Math.min((this.t1 - this.t0) * factor, (this.data.span[1] - this.data.span[0]) * 1.2));
    this.go(t - span * at, t - span * at + span);
  }

  pan(share) { const d = (this.t1 - this.t0) * share; this.go(this.t0 + d, this.t1 + d); }

  wheel(e) {
    e.preventDefault();
    const lines = e.deltaMode === 1 ? 16 : 1;
    if (e.shiftKey) { this.scroll += (e.deltaY || e.deltaX) * lines; this.ask(); return; }
    if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) { this.pan(e.deltaX * lines / this.wide); return; }
    this.zoom(Math.exp(Math.max(-1, Math.min(1, e.deltaY * lines / 400))), Math.max(0, Math.min(1, (e.offsetX - GUTTER) / this.wide)));
  }

  press(e) {
    if (e.button !== 0) return;
    this.canvas.setPointerCapture(e.pointerId);
    this.held = { x: e.offsetX, y: e.offsetY, t0: this.t0, t1: this.t1, scroll: this.scroll, moved: false };
  }

  move(e) {
    const held = this.held;
    if (!held) { this.tip(e); return; }
    const dx = e.offsetX - held.x, dy = e.offsetY - held.y;
    if (!held.moved && Math.hypot(dx, dy) < 4) return;
    held.moved = true;
    this.tip(null);
    this.scroll = held.scroll - dy;
    const d = dx / this.wide * (held.t1 - held.t0);
    this.go(held.t0 - d, held.t1 - d);
  }

  release(e) {
    const held = this.held;
    this.held = null;
    if (held && !held.moved) this.click(e);
  }

  key(e) {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const moves = {
      w: () => this.zoom(0.75, 0.5), s: () => this.zoom(1 / 0.75, 0.5), a: () => this.pan(-0.15), d: () => this.pan(0.15),
      arrowleft: () => this.pan(-0.15), arrowright: () => this.pan(0.15), arrowup: () => { this.scroll -= 48; this.ask(); },
      arrowdown: () => { this.scroll += 48; this.ask(); }, escape: () => this.choose(null), "+": () => this.zoom(0.75, 0.5),
      "-": () => this.zoom(1 / 0.75, 0.5), home: () => this.go(this.data.span[0], this.data.span[1]),
    };
    const found = moves[e.key.toLowerCase()];
    if (found) { e.preventDefault(); e.stopPropagation(); found(); }
  }

  // What lies under the pointer: a slice, a bucket of short ones, or a lane alone.
  under(e) {
    const y = e.offsetY - RULER + this.scroll;
    if (e.offsetY < RULER) return null;
    const place = this.painter.places().find(p => p.track && y >= p.y && y < p.y + p.height);
    if (!place) return null;
    const deep = Math.floor((y - place.y - 2) / ROW), part = place.group.part;
    if (e.offsetX < GUTTER || deep < 0 || deep >= place.shown) return { place };
    const perPixel = (this.t1 - this.t0) / this.wide, t = this.t0 + (e.offsetX - GUTTER) * perPixel;
    for (const { tile, level } of tilesFor(this.painter, this, this.tiles, part).reverse()) {
      const row = tile.parts.get(part)[place.row + deep], names = tile.names[part];
      for (let i = row.from; i < row.to; i++)
        if (tile.start[i] - perPixel * 1.5 <= t && t <= tile.start[i] + Math.max(tile.dur[i], perPixel * 1.5))
          return { place, slice: { part, row: tile.row[i], name: names[tile.name[i]] ?? "", dur: tile.dur[i], paint: PAINTS[tile.paint[i]] } };
      const bucket = Math.floor(t / 2 ** level);
      for (let i = row.low; i < row.high; i++)
        if (Math.abs(tile.bucket[i] - bucket) <= 1)
          return { place, bucket: { name: names[tile.bucketName[i]] ?? "", paint: PAINTS[tile.bucketPaint[i]], count: tile.count[i], busy: tile.busy[i] * 2 ** level, width: 2 ** level, t0: tile.bucket[i] * 2 ** level } };
    }
    return { place };
  }

  tip(e) {
    const box = this.place.querySelector(".tl-tip"), found = e && this.under(e);
    const slice = found?.slice, bucket = found?.bucket;
    this.canvas.style.cursor = slice || (found && e.offsetX < GUTTER && found.place.track.rows > FOLDED) ? "pointer" : "default";
    box.hidden = !slice && !bucket && !(found && e.offsetX < GUTTER);
    if (box.hidden) return;
    const words = slice
      ? [slice.name, `${WORDS[slice.paint]} · ${timeText(slice.dur)}`]
      : bucket
        ? [`${bucket.count} short slices begin here, most time in ${bucket.name}`, `${WORDS[bucket.paint]} · ${timeText(bucket.busy)} of ${timeText(bucket.width)} · click to enlarge`]
        : [found.place.track.name, found.place.track.about];
    box.replaceChildren(...words.map((w, i) => element("div", i ? "tl-muted" : "", w)));
    box.style.left = `${Math.max(0, Math.min(e.offsetX + 14, this.painter.width - box.offsetWidth - 4))}px`;
    box.style.top = `${e.offsetY + 16}px`;
  }

  click(e) {
    const found = this.under(e);
    if (!found) return;
    if (e.offsetX < GUTTER) {
      const { track } = found.place, folds = this.painter.folds;
      if (track.rows > FOLDED) { folds.has(track) ? folds.delete(track) : folds.add(track); this.ask(); }
    } else if (found.slice) this.choose(found.slice);
    else if (found.bucket) { const { t0, width } = found.bucket; this.go(t0 - width * 30, t0 + width * 31); }
    else this.choose(null);
  }

  enlarge(e) { const found = this.under(e); if (found?.slice && this.shown) this.frame(this.shown.start, this.shown.end); }

  frame(t0, t1) { const room = Math.max(LEAST, (t1 - t0) * 0.6); this.go(t0 - room, t1 + room); }

  // Tell of a slice; of none where it is no longer the same event.
  async choose(slice, same = null) {
    this.chosen = slice;
    this.shown = null;
    this.ask();
    const panel = this.place.querySelector(".tl-detail");
    if (!slice) { panel.replaceChildren(); return; }
    try {
      const answer = await fetch(`${this.data.base}/event?part=${slice.part}&row=${slice.row}`), told = await answer.json();
      if (this.chosen !== slice) return;
      if (!answer.ok) throw new Error(told.error);
      if (same && (told.name !== same.name || told.start !== same.start)) { this.choose(null); return; }
      this.shown = told;
      panel.replaceChildren(...details(told, this));
    } catch (error) {
      panel.replaceChildren(element("p", "tl-muted", `This event did not come: ${error.message}`));
    }
  }

  perfetto() {
    const trace = new URL(`${this.data.base}/trace.pftrace.gz?from=${Math.round(this.t0)}&to=${Math.round(this.t1)}`, location.href);
    window.open(`${this.data.perfetto}/#!/?url=${encodeURIComponent(trace.href)}`, "_blank", "noopener");
  }

  legend() {
    const legend = this.place.querySelector(".tl-legend");
    legend.replaceChildren(...this.data.paints.map(name => {
      const entry = element("span", "", WORDS[name]);
      entry.prepend(element("i", `tl-${name}`));
      return entry;
    }));
    this.place.querySelector(".tl-perfetto").hidden = !this.data.perfetto;
    this.place.querySelector(".tl-get").textContent = this.data.get;
  }
}

export default function ({ parentElement, data, setStateValue }) {
  const place = parentElement.querySelector(".tl");
  const before = place.view;
  if (before && before.data.base === data.base) { before.aim(data); before.ask(); return; }
  before?.end();
  place.view = new View(place, data, text => setStateValue("window", text));
  if (before) place.view.resume(before);
  return () => { place.view?.end(); place.view = null; };
}
