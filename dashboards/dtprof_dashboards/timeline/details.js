// One event in words, beside its operation on every rank.
function details(told, view) {
  const head = element("div", "tl-name"), name = element("h3", "", told.name);
  name.title = told.name;
  name.onclick = () => name.classList.toggle("tl-all");
  head.append(name, element("span", "tl-muted", told.where));
  const near = element("button", "", "Zoom to it");
  near.onclick = () => view.frame(told.start, told.end);
  head.append(near);
  const columns = element("div", "tl-columns"), left = element("div"), right = element("div");
  left.append(pairs([...told.facts, ...told.args]));
  for (const link of told.links) left.append(linked(link, told.part, view));
  for (const operation of told.operations) right.append(...across(operation, view));
  if (told.same.length) right.append(...same(told.same));
  for (const finding of told.findings) right.append(named(finding));
  columns.append(left, right);
  return [head, columns];
}

function pairs(found) {
  const list = element("dl");
  for (const [key, text, exact] of found) {
    const value = element("dd", "", text);
    if (exact) value.title = exact;
    list.append(element("dt", "", key), value);
  }
  return list;
}

function linked(link, part, view) {
  const line = element("p", "tl-link", `${link.words} `), button = element("button", "", link.name || "an event");
  button.onclick = () => { view.frame(link.start, link.end); view.choose({ part, row: link.row }); };
  line.append(button);
  return line;
}

// The ranks of an operation on one clock: waiting, then moving data; the last to arrive is marked.
function across(operation, view) {
  const found = [element("h4", "", operation.title)];
  if (operation.note) found.push(element("p", "tl-muted", operation.note));
  const low = Math.min(...operation.ranks.map(r => r.start)), high = Math.max(...operation.ranks.map(r => r.start + r.dur));
  const share = ns => `${100 * ns / Math.max(1, high - low)}%`, list = element("div", "tl-ranks");
  for (const rank of operation.ranks) {
    const name = element("button", "", `${rank.last ? "▶ " : ""}${rank.rank}`), bar = element("div", "tl-bar");
    const spans = rank.wait === null
      ? [["unsplit", rank.start, rank.dur]]
      : [["wait", rank.start, Math.max(0, Math.min(rank.wait, rank.dur))], ["transfer", rank.start + rank.wait, rank.dur - rank.wait]];
    for (const [paint, start, dur] of spans) {
      if (dur <= 0) continue;
      const piece = element("i", `tl-${paint}`);
      piece.style.left = share(start - low); piece.style.width = share(dur);
      bar.append(piece);
    }
    bar.title = `${Math.round(rank.dur).toLocaleString("en")} ns`;
    name.onclick = () => { view.frame(low, high); view.choose({ part: rank.part, row: rank.row }); };
    list.append(name, bar, element("span", "tl-muted", rank.words));
  }
  found.push(list);
  if (operation.ranks.some(r => r.last)) found.push(element("p", "tl-muted", "▶ arrives last"));
  return found;
}

function same([heads, ...rows]) {
  const table = element("table"), head = element("tr");
  for (const words of ["", heads[1], heads[2]]) head.append(element("th", "", words));
  table.append(head);
  for (const row of rows) {
    const line = element("tr");
    for (const words of row) line.append(element("td", "", words));
    table.append(line);
  }
  return [element("h4", "", `The same name ${heads[0]}`), table];
}

function named(finding) {
  const line = element("p", "tl-finding");
  line.append(element("b", `tl-${finding.severity}`, `${finding.sign} ${finding.severity}`), element("span", "", finding.title));
  line.title = finding.why;
  return line;
}
