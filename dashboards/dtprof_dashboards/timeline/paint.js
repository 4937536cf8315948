// Drawing: rulers, steps, lanes. Texts reach the canvas as text and nothing else.
const ROW = 17, BAR = 14, HEAD = 24, RULER = 30, GAP = 10, GUTTER = 176, FOLDED = 3;
const PAINTS = ["compute", "copy", "wait", "transfer", "unsplit", "operator", "call", "sync", "range", "other"];
const WORDS = {
  compute: "compute", copy: "copy", wait: "waiting", transfer: "moving data", unsplit: "communication, not split",
  operator: "host operator", call: "runtime call", sync: "host waits for device", range: "range", other: "other",
};
// Host work has no colour of the budget: it is ink, more or less.
const INK = { operator: 0.3, call: 0.18, sync: 0.44, range: 0.11, other: 0.14 };

function rgb(text) {
  const hex = text.trim().replace("#", "");
  return [0, 2, 4].map(i => parseInt(hex.slice(i, i + 2), 16));
}

function mixed(ink, page, share) { return ink.map((v, i) => Math.round(v * share + page[i] * (1 - share))); }

function theme(colours) {
  const ink = rgb(colours.ink), page = rgb(colours.page), paints = [], on = [];
  for (const name of PAINTS) {
    const share = INK[name];
    paints.push(share === undefined ? rgb(colours[name === "unsplit" ? "wait" : name]) : mixed(ink, page, share));
    on.push(share === undefined ? colours[`on-${name === "unsplit" ? "wait" : name}`] : colours.ink);
  }
  return { ...colours, paints, fills: paints.map(c => `rgb(${c.join()})`), onPaint: on };
}

const UNITS = [[1, "ns"], [1e3, "us"], [1e6, "ms"], [1e9, "s"]];

function unitOf(ns) { return UNITS.findLast(([size]) => Math.abs(ns) >= size) ?? UNITS[0]; }

function timeText(ns) {
  const [size, unit] = unitOf(ns), value = ns / size;
  return `${size === 1 ? Math.round(value) : value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)}\u00a0${unit}`;
}

function tickStep(span, most) {
  const raw = span / most, power = 10 ** Math.floor(Math.log10(raw));
  return Math.max(1, [1, 2, 5, 10].map(m => m * power).find(s => s >= raw));
}

class Painter {
  constructor(canvas, layout) {
    this.canvas = canvas; this.layout = layout; this.pen = canvas.getContext("2d"); this.folds = new Set();
    for (const group of layout.groups)
      for (const track of group.tracks) if (track.rows > FOLDED) this.folds.add(track);
    this.texts = new Map(); this.stripes = null;
  }

  // Where everything lies, from the top of the content on, in px.
  places() {
    const found = [];
    let y = 0;
    for (const group of this.layout.groups) {
      found.push({ group, y, height: HEAD });
      y += HEAD;
      let row = 0;
      for (const track of group.tracks) {
        const shown = this.folds.has(track) ? Math.min(FOLDED, track.rows) : track.rows;
        found.push({ group, track, y, height: shown * ROW + 4, row, shown });
        y += shown * ROW + 4;
        row += track.rows;
      }
      y += GAP;
    }
    this.height = y;
    return found;
  }

  fit(width, height, ratio) {
    this.width = width; this.tall = height;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio); this.canvas.height = Math.round(height * ratio);
    }
    this.pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  x(ns, view) { return GUTTER + (ns - view.t0) / (view.t1 - view.t0) * (this.width - GUTTER); }

  draw(view, tiles, state) {
    const { pen, width, tall } = this, colours = state.colours;
    pen.fillStyle = colours.page;
    pen.fillRect(0, 0, width, tall);
    pen.save();
    pen.beginPath(); pen.rect(0, RULER, width, tall - RULER); pen.clip();
    const seen = this.places().filter(p => p.y + p.height > view.scroll && p.y < view.scroll + tall - RULER);
    for (const place of seen) {
      const y = place.y - view.scroll + RULER;
      if (!place.track) this.group(place, y, view, state);
      else this.track(place, y, view, tiles, state);
    }
    pen.restore();
    this.ruler(view, colours);
    if (this.height > tall - RULER) {
      const share = (tall - RULER) / this.height;
      pen.fillStyle = colours.line;
      pen.fillRect(width - 4, RULER + view.scroll * share, 4, (tall - RULER) * share);
    }
    return [...new Set(seen.map(p => p.group.part))];
  }

  ruler(view, colours) {
    const { pen, width } = this, span = view.t1 - view.t0, step = tickStep(span, Math.max(2, (width - GUTTER) / 130));
    const [size, unit] = unitOf(Math.max(Math.abs(view.t0), Math.abs(view.t1)));
    const decimals = Math.max(0, Math.ceil(Math.log10(size / step) - 1e-9));
    pen.fillStyle = colours.page; pen.fillRect(0, 0, width, RULER);
    pen.fillStyle = colours.line; pen.fillRect(GUTTER, RULER - 1, width - GUTTER, 1);
    pen.font = "12px 'Source Sans', Inter, system-ui, sans-serif"; pen.textBaseline = "middle";
    pen.fillStyle = colours.muted;
    for (let t = Math.ceil(view.t0 / step) * step; t <= view.t1; t += step) {
      const x = this.x(t, view), text = `${(t / size).toFixed(decimals)} ${unit}`, room = pen.measureText(text).width;
      pen.fillRect(x, RULER - 6, 1, 5);
      if (x + room + 6 < width) pen.fillText(text, x + 4, RULER - 13);
    }
    pen.textAlign = "right"; pen.fillText(`${timeText(span)} shown`, GUTTER - 12, RULER - 13); pen.textAlign = "left";
  }

  group({ group }, y, view, { colours, rank }) {
    const { pen, width } = this;
    pen.fillStyle = colours.hair; pen.fillRect(0, y + HEAD - 1, width, 1);
    pen.textBaseline = "middle"; pen.fillStyle = colours.ink;
    pen.font = `${group.rank === rank ? 700 : 600} 13px 'Source Sans', Inter, system-ui, sans-serif`;
    this.text(`${group.rank === rank ? "▸ " : ""}${group.name}`, 2, y + HEAD / 2, GUTTER - 14);
    pen.font = "12px 'Source Sans', Inter, system-ui, sans-serif"; pen.fillStyle = colours.muted;
    let last = 0, named = -Infinity;
    for (const [number, begins] of group.steps) {
      const x = this.x(begins, view);
      if (x < GUTTER || x > width || (x - last < 4 && x - named < 40)) continue;
      const words = `step ${number}`, room = this.measure(words) + 16, names = x - named >= room && (x + room <= width || !last);
      if (!names && x - last < 4) continue;
      pen.fillStyle = names ? colours.muted : colours.line;
      pen.fillRect(Math.round(x), y + (names ? 3 : HEAD - 6), 1, names ? HEAD - 4 : 5);
      pen.fillStyle = colours.muted;
      if (names) { this.text(words, x + 5, y + HEAD / 2, width - x - 8); named = x; }
      last = x;
    }
  }

  track(place, y, view, tiles, state) {
    const { pen, width } = this, { colours } = state, { track, group, shown } = place;
    pen.save();
    pen.beginPath(); pen.rect(GUTTER, y, width - GUTTER, place.height); pen.clip();
    let last = -Infinity;
    for (const [, begins] of group.steps) {
      const x = Math.round(this.x(begins, view));
      if (x >= GUTTER && x <= width && x - last >= 4) { last = x; pen.fillStyle = colours.line; pen.fillRect(x, y, 1, place.height); }
    }
    for (const { tile, index, level } of tilesFor(this, view, tiles, group.part)) {
      const rows = tile.parts.get(group.part);
      for (let deep = 0; deep < shown; deep++)
        this.row(tile, index, level, rows[place.row + deep], place.row + deep, y + 2 + deep * ROW, group.part, view, state);
    }
    pen.restore();
    pen.font = "12px 'Source Sans', Inter, system-ui, sans-serif"; pen.textBaseline = "middle"; pen.fillStyle = colours.muted;
    const more = track.rows > FOLDED ? (this.folds.has(track) ? `+${track.rows - FOLDED} ▾` : "▴") : "";
    const room = more ? pen.measureText(more).width + 8 : 0;
    this.text(track.name, 12, y + ROW / 2 + 1, GUTTER - 26 - room);
    if (more) { pen.textAlign = "right"; pen.fillText(more, GUTTER - 12, y + ROW / 2 + 1); pen.textAlign = "left"; }
  }

  // One row of one tile: short slices as a stretched line of pixels, long ones as boxes with their names.
  row(tile, index, level, row, number, y, part, view, state) {
    if (!row) return;
    const { pen } = this, { colours } = state, width = 2 ** level, begins = index * TILE * width;
    const scale = (this.width - GUTTER) / (view.t1 - view.t0);
    if (row.high > row.low) {
      const line = lineOf(tile, index, row, number, part, colours);
      pen.imageSmoothingEnabled = scale * width < 1;
      pen.drawImage(line, this.x(begins, view), y, TILE * width * scale, BAR);
    }
    pen.font = "11.5px 'Source Sans', Inter, system-ui, sans-serif"; pen.textBaseline = "middle";
    const names = tile.names[part];
    for (let i = row.from; i < row.to; i++) {
      const start = tile.start[i], dur = tile.dur[i], paint = tile.paint[i];
      if (start + dur < view.t0 || start > view.t1) continue;
      const left = Math.max(GUTTER - 2, this.x(start, view));
      const right = Math.min(this.width + 2, this.x(start + dur, view)), room = right - left;
      const box = Math.max(0.8, room > 3 ? room - 0.6 : room);
      pen.fillStyle = colours.fills[paint];
      pen.fillRect(left, y, box, BAR);
      if (PAINTS[paint] === "unsplit" && room > 4) { pen.fillStyle = this.hatch(colours); pen.fillRect(left, y, box, BAR); }
      if (state.chosen && state.chosen.part === part && state.chosen.row === tile.row[i]) {
        pen.strokeStyle = colours.ink; pen.lineWidth = 2; pen.strokeRect(left + 1, y + 1, Math.max(1, room - 2), BAR - 2);
      }
      if (room < 34) continue;
      if (PAINTS[paint] === "unsplit") { pen.fillStyle = colours.page; pen.fillRect(left + 3, y + 1, Math.min(room - 6, 90), BAR - 2); }
      pen.fillStyle = PAINTS[paint] === "unsplit" ? colours.ink : colours.onPaint[paint];
      const shown = Math.max(left, GUTTER);
      this.text(names[tile.name[i]] ?? "", shown + 5, y + BAR / 2 + 0.5, Math.min(right - shown - 10, PAINTS[paint] === "unsplit" ? 84 : 1e9));
    }
  }

  hatch(colours) {
    if (this.stripes && this.stripes.of === colours) return this.stripes.pattern;
    const tile = document.createElement("canvas"), pen = tile.getContext("2d");
    tile.width = tile.height = 8;
    pen.strokeStyle = colours.fills[PAINTS.indexOf("transfer")]; pen.lineWidth = 2.2;
    for (const d of [-8, 0, 8]) { pen.beginPath(); pen.moveTo(d - 1, 9); pen.lineTo(d + 9, -1); pen.stroke(); }
    this.stripes = { of: colours, pattern: this.pen.createPattern(tile, "repeat") };
    return this.stripes.pattern;
  }

  // The width of a text, remembered.
  measure(words) {
    const key = `${this.pen.font}${words}`;
    let width = this.texts.get(key);
    if (width === undefined) {
      if (this.texts.size > 20_000) this.texts.clear();
      width = this.pen.measureText(words).width;
      this.texts.set(key, width);
    }
    return width;
  }

  // A text cut to its room.
  text(words, x, y, room) {
    if (room < 10 || !words) return;
    let width = this.measure(words), shown = words;
    for (let fits = words.length; width > room;) {
      fits = Math.min(fits - 1, Math.floor(fits * room / width));
      if (fits < 2) return;
      shown = `${words.slice(0, fits)}…`;
      width = this.measure(shown);
    }
    this.pen.fillText(shown, x, y);
  }
}

// The tiles to draw of a part: those of the level wanted, and where one is not there, what is known of it at others.
function tilesFor(painter, view, tiles, part) {
  const wanted = tiles.level((view.t1 - view.t0) / (painter.width - GUTTER)), found = [];
  const width = TILE * 2 ** wanted;
  for (let index = Math.floor(view.t0 / width); index <= Math.floor(view.t1 / width); index++) {
    const tile = tiles.get(part, wanted, index);
    if (tile) { found.push({ tile, index, level: wanted }); continue; }
    for (let up = 1; up < 12; up++) {
      const above = Math.floor(index / 2 ** up), coarse = tiles.get(part, wanted + up, above);
      if (coarse) {
        if (!found.some(f => f.tile === coarse)) found.unshift({ tile: coarse, index: above, level: wanted + up });
        break;
      }
      const finer = up < 3 && wanted >= up
        ? Array.from({ length: 2 ** up }, (_, i) => index * 2 ** up + i).map(i => ({ tile: tiles.get(part, wanted - up, i), index: i, level: wanted - up })).filter(f => f.tile)
        : [];
      if (finer.length) { found.push(...finer); break; }
    }
  }
  return found;
}

// The short slices of a row as one line of pixels: the colour says of what, its strength how much of the pixel.
function lineOf(tile, index, row, number, part, colours) {
  if (tile.colours !== colours) { tile.colours = colours; tile.image.clear(); }
  const key = `${part}/${number}`;
  if (!tile.image.has(key)) {
    const line = document.createElement("canvas");
    line.width = TILE; line.height = 1;
    const pen = line.getContext("2d"), image = pen.createImageData(TILE, 1);
    for (let i = row.low; i < row.high; i++) {
      const at = (tile.bucket[i] - index * TILE) * 4;
      image.data.set(colours.paints[tile.bucketPaint[i]], at);
      image.data[at + 3] = Math.round(255 * Math.min(1, 0.45 + 0.55 * tile.busy[i]));
    }
    pen.putImageData(image, 0, 0);
    tile.image.set(key, line);
  }
  return tile.image.get(key);
}
