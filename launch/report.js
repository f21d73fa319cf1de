"use strict";
// Draws the report from the JSON in #data. All text goes in through textContent.
const data = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const DASHES = ["", "7 3", "2 3", "9 3 2 3"];
const view = { along: "steps", window: 20, hidden: new Set() };

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

function draw(tag, attributes, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function short(x) {
  if (x === null || x === undefined || !isFinite(x)) return "\u2013";
  const size = Math.abs(x);
  if (size >= 1e4) {
    for (const [unit, letter] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]])
      if (size >= unit) return String(Number((x / unit).toPrecision(3))) + letter;
  }
  if (size !== 0 && size < 1e-3) return x.toExponential(1).replace(".0e", "e");
  return String(Number(x.toPrecision(4)));
}

// Round numbers that cover [low, high], about `count` of them.
function ticks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(f => f * power).find(s => s >= rough) || 10 * power;
  const out = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) out.push(i * step);
  return out;
}

// An empty plot: its svg, and functions from values to places.
function frame({ title, x, y, xLabel, yLabel, width = 400, height = 210, yTicks }) {
  const left = 60, right = 10, top = 8, bottom = 42;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
  const pad = (a, b) => (a === b ? [a - (Math.abs(a) || 1) / 2, b + (Math.abs(b) || 1) / 2] : [a, b]);
  const [x0, x1] = pad(...x), [y0, y1] = pad(...y);
  const px = v => left + ((v - x0) / (x1 - x0)) * (width - left - right);
  const py = v => height - bottom - ((v - y0) / (y1 - y0)) * (height - top - bottom);
  for (const [v, label] of yTicks || ticks(y0, y1, 4).map(t => [t, short(t)])) {
    if (!yTicks) svg.append(draw("line", { x1: left, x2: width - right, y1: py(v), y2: py(v), stroke: "#e4e7eb" }));
    svg.append(draw("text", { x: left - 6, y: py(v) + 4, "text-anchor": "end" }, label));
  }
  for (const v of ticks(x0, x1, width / 70)) {
    svg.append(draw("line", { x1: px(v), x2: px(v), y1: height - bottom, y2: height - bottom + 4, stroke: "#7b8794" }));
    svg.append(draw("text", { x: px(v), y: height - bottom + 17, "text-anchor": "middle" }, short(v)));
  }
  svg.append(draw("line", { x1: left, x2: width - right, y1: height - bottom, y2: height - bottom, stroke: "#7b8794" }));
  const middle = (width + left - right) / 2;
  svg.append(draw("text", { x: middle, y: height - 6, "text-anchor": "middle", class: "axis" }, xLabel));
  const turned = { transform: `translate(11 ${(height - bottom + top) / 2}) rotate(-90)`, "text-anchor": "middle", class: "axis" };
  svg.append(draw("text", turned, yLabel));
  const value = event => {
    const box = svg.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * width, ((event.clientY - box.top) / box.height) * height];
  };
  return { svg, px, py, value, left, right: width - right, top, bottom: height - bottom, x0, x1 };
}

function figure(title, detail, svg, ...rest) {
  const caption = make("figcaption", {}, title);
  if (detail) caption.append(make("small", {}, detail));
  return make("figure", {}, caption, svg, ...rest);
}

function path(points) {
  return "M" + points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L");
}

// Mean of each value and those up to `window` - 1 before it.
function trailing(values, window) {
  let sum = 0;
  return values.map((v, i) => {
    sum += v - (i >= window ? values[i - window] : 0);
    return sum / Math.min(i + 1, window);
  });
}

const shownRuns = () => data.runs.filter(run => !view.hidden.has(run.name));

function lines(name) {
  const isEval = name.startsWith("eval/");
  const series = [];
  for (const run of shownRuns()) {
    const column = run.metrics[name];
    if (!column) continue;
    const all = run.x[view.along][isEval ? "began" : "ended"];
    const at = column.flatMap((v, i) => (v === null ? [] : [i]));
    if (at.length) series.push({ run, x: at.map(i => all[i]), y: at.map(i => column[i]) });
  }
  if (!series.length) return null;
  let low = Infinity, high = -Infinity, first = Infinity, last = -Infinity;
  for (const one of series) {
    for (const v of one.y) { low = Math.min(low, v); high = Math.max(high, v); }
    first = Math.min(first, one.x[0]);
    last = Math.max(last, one.x[one.x.length - 1]);
  }
  const [unit, description] = data.described[name] || ["", ""];
  if (unit === "fraction" && low >= 0 && low < 0.9 && high <= 1) { low = 0; high = Math.max(high * 1.05, 0.05); }
  if (first > 0 && first < (last - first) / 20) first = 0;
  const margin = (high - low) * 0.05;
  const range = [low === 0 ? 0 : low - margin, high + margin];
  const plot = frame({ title: `${name} along ${data.axes[view.along]}`, x: [first, last], y: range,
    xLabel: data.axes[view.along], yLabel: unit || name.split("/").pop() });
  for (const one of series) {
    const style = { fill: "none", stroke: one.run.color, "stroke-width": 1.7, "stroke-dasharray": one.run.dash };
    const points = one.x.map((x, i) => [plot.px(x), plot.py(one.y[i])]);
    const smoothed = view.window > 1 && one.y.length > view.window && !isEval;
    plot.svg.append(draw("path", { ...style, d: path(points), ...(smoothed ? { opacity: 0.25, "stroke-width": 1 } : {}) }));
    one.shown = smoothed ? trailing(one.y, view.window) : one.y;
    if (smoothed) plot.svg.append(draw("path", { ...style, d: path(one.x.map((x, i) => [plot.px(x), plot.py(one.shown[i])])) }));
    if (isEval || points.length < 3)
      for (const [x, y] of points) plot.svg.append(draw("circle", { cx: x, cy: y, r: 3, fill: one.run.color }));
  }
  const readout = make("div", { class: "readout" });
  const cross = draw("line", { y1: plot.top, y2: plot.bottom, stroke: "#7b8794", "stroke-dasharray": "2 2", visibility: "hidden" });
  plot.svg.append(cross);
  plot.svg.addEventListener("mousemove", event => {
    const where = plot.x0 + ((plot.value(event)[0] - plot.left) / (plot.right - plot.left)) * (plot.x1 - plot.x0);
    const parts = series.map(one => {
      let best = 0;
      one.x.forEach((x, i) => { if (Math.abs(x - where) < Math.abs(one.x[best] - where)) best = i; });
      cross.setAttribute("x1", plot.px(one.x[best]));
      cross.setAttribute("x2", plot.px(one.x[best]));
      return `${series.length > 1 ? one.run.name + " " : ""}at ${short(one.x[best])}: ${short(one.shown[best])}`;
    });
    cross.setAttribute("visibility", "visible");
    readout.textContent = parts.join("   ");
  });
  plot.svg.addEventListener("mouseleave", () => {
    cross.setAttribute("visibility", "hidden");
    readout.textContent = "";
  });
  return figure(name, description, plot.svg, readout);
}

function stack(run, perStep) {
  const { steps, parts } = run.ledger;
  if (!steps.length) return make("p", {}, "The metrics hold no ledger.");
  const take = values => (perStep ? values.map((v, i) => v - (i ? values[i - 1] : 0)) : values);
  const zero = steps.map(() => 0);
  const came = take(parts.generated.map((v, i) => v + parts.reused[i]));
  const tops = [];
  let below = zero;
  for (const name of Object.keys(data.fates)) {
    const values = take(parts[name]);
    tops.push({ name, low: below, high: below.map((v, i) => v + values[i]) });
    below = tops[tops.length - 1].high;
  }
  const high = Math.max(1, ...came, ...below);
  const plot = frame({ title: "What became of the tokens", x: [steps[0], steps[steps.length - 1]], y: [0, high * 1.03],
    xLabel: "step", yLabel: perStep ? "tokens of a step" : "tokens, cumulative", width: 560, height: 330 });
  const at = (values, i) => [plot.px(steps[i]), plot.py(values[i])];
  const order = steps.map((_, i) => i);
  for (const one of tops) {
    const outline = [...order.map(i => at(one.high, i)), ...order.slice().reverse().map(i => at(one.low, i))];
    plot.svg.append(draw("path", { d: path(outline) + "Z", fill: data.fates[one.name] }));
  }
  const line = (values, dash) => plot.svg.append(draw("path",
    { d: path(order.map(i => at(values, i))), fill: "none", stroke: "#1f2933", "stroke-width": 1.4, "stroke-dasharray": dash }));
  line(take(parts.generated), "5 3");
  line(came, "");
  return figure(run.name, "generated and reused tokens, and what became of them", plot.svg);
}

function legend(entries) {
  return make("div", { class: "legend" }, ...entries.map(([label, color, dash]) => {
    const swatch = make("span", { class: "swatch", "aria-hidden": "true" });
    if (dash === undefined) swatch.style.background = color;
    else { swatch.style.height = "0"; swatch.style.borderTop = `2px ${dash ? "dashed" : "solid"} ${color}`; }
    return make("span", {}, swatch, label);
  }));
}

function histogram(column, title, unit) {
  const edges = data.histograms[column];
  const runs = shownRuns().filter(run => run.histograms[column]);
  if (!runs.length) return null;
  const share = counts => {
    const total = counts.reduce((a, b) => a + b, 0);
    return counts.map(c => c / Math.max(total, 1));
  };
  const outlines = [];
  for (const run of runs) {
    const counts = run.histograms[column];
    outlines.push({ run, values: share(counts[0]), late: false });
    outlines.push({ run, values: share(counts[counts.length - 1]), late: true });
  }
  const high = Math.max(...outlines.flatMap(one => one.values));
  const plot = frame({ title, x: [edges[0], edges[edges.length - 1]], y: [0, high * 1.05],
    xLabel: unit, yLabel: "share of rollouts", width: 560, height: 280 });
  for (const { run, values, late } of outlines) {
    const points = [[plot.px(edges[0]), plot.py(0)]];
    values.forEach((v, i) => points.push([plot.px(edges[i]), plot.py(v)], [plot.px(edges[i + 1]), plot.py(v)]));
    points.push([plot.px(edges[edges.length - 1]), plot.py(0)]);
    plot.svg.append(draw("path", { d: path(points), fill: late ? run.color : "none", "fill-opacity": 0.22,
      stroke: run.color, "stroke-width": 1.5, "stroke-dasharray": late ? "" : "4 3" }));
  }
  return figure(title, "first quarter of the run dashed, last quarter filled", plot.svg);
}

const RATES = [[214, 108, 38], [240, 190, 140], [225, 228, 232], [120, 168, 214], [22, 72, 140]];
const SHARES = [[250, 251, 253], [120, 168, 214], [37, 99, 168], [12, 35, 72]];
function shade(stops, v) {
  const at = Math.min(Math.max(v, 0), 1) * (stops.length - 1);
  const i = Math.min(Math.floor(at), stops.length - 2);
  return `rgb(${stops[i].map((a, k) => Math.round(a + (stops[i + 1][k] - a) * (at - i))).join(",")})`;
}

function heat(map, title, detail, yLabel, what, stops) {
  const rows = map.labels.length;
  const some = [];
  const every = Math.max(1, Math.ceil(rows / 11));
  for (let i = 0; i < rows; i += every) some.push([rows - i - 0.5, String(map.labels[i])]);
  const plot = frame({ title, x: [map.edges[0], map.edges[map.edges.length - 1]], y: [0, rows], xLabel: "step",
    yLabel, yTicks: some, width: 560, height: 360 });
  map.values.forEach((row, i) => row.forEach((v, j) => {
    if (v === null) return;
    const x = plot.px(map.edges[j]), y = plot.py(rows - i);
    plot.svg.append(draw("rect", { x: x.toFixed(1), y: y.toFixed(1), width: (plot.px(map.edges[j + 1]) - x + 0.3).toFixed(1),
      height: (plot.py(rows - i - 1) - y + 0.2).toFixed(1), fill: shade(stops, v) }));
  }));
  const readout = make("div", { class: "readout" });
  plot.svg.addEventListener("mousemove", event => {
    const [x, y] = plot.value(event);
    const i = Math.floor(((y - plot.top) / (plot.bottom - plot.top)) * rows);
    const span = map.edges[map.edges.length - 1] - map.edges[0];
    const step = map.edges[0] + ((x - plot.left) / (plot.right - plot.left)) * span;
    const j = map.edges.findIndex((edge, k) => edge <= step && step < map.edges[k + 1]);
    const value = (map.values[i] || [])[j];
    readout.textContent = value === undefined || value === null ? "" :
      `${what(i)}, steps ${map.edges[j]} to ${map.edges[j + 1] - 1}: ${short(value)}`;
  });
  const scale = make("div", { class: "legend" }, "0", ...[0, 0.2, 0.4, 0.6, 0.8, 1].map(v => {
    const swatch = make("span", { class: "swatch", "aria-hidden": "true" });
    swatch.style.background = shade(stops, v);
    return swatch;
  }), "1", make("span", {}, "(blank: none at that time)"));
  return figure(title, detail, plot.svg, scale, readout);
}

function table(caption, head, rows, numbers = []) {
  const cell = (tag, value, i, more) => make(tag, { ...(numbers.includes(i) ? { class: "number" } : {}), ...more }, value);
  return make("div", { class: "table" }, make("table", {}, make("caption", {}, caption),
    make("thead", {}, make("tr", {}, ...head.map((h, i) => cell("th", h, i, { scope: "col" })))),
    make("tbody", {}, ...rows.map(row => make("tr", {}, ...row.map((v, i) =>
      i ? cell("td", v, i) : cell("th", v, i, { scope: "row" })))))));
}

function choice(label, options, change) {
  const select = make("select", { onchange: () => change(select.value) },
    ...options.map(([value, text]) => make("option", { value }, text)));
  return make("label", {}, label, select);
}

const sections = [];
function section(id, title, ...children) {
  const node = make("section", { id, "aria-labelledby": `${id}-title` }, make("h2", { id: `${id}-title` }, title), ...children);
  sections.push([id, title, node]);
  return node;
}

// ---------------------------------------------------------------------------------------------------
data.runs.forEach((run, i) => {
  run.color = data.colors[i % data.colors.length];
  run.dash = DASHES[Math.floor(i / data.colors.length) % DASHES.length];
});

const summary = section("summary", "Summary", table(
  "Each run as far as it has come.", ["run", ...data.summary.map(([label]) => label)],
  data.runs.map((run, i) => [run.name, ...data.summary.map(([, values]) => short(values[i]))]),
  data.summary.map((_, i) => i + 1)));
for (const note of data.notes) summary.append(make("p", { class: "note" }, note));

const health = section("health", "Health");
for (const run of data.runs) {
  if (data.runs.length > 1) health.append(make("h3", {}, run.name));
  const rows = run.health.found.map(f => [f.name, short(f.severity) + "\u00d7", f.test, f.advice, f.modules, f.recipes]);
  health.append(rows.length ?
    table("Rules that hold in the last 20 steps, most severe first.",
      ["warning", "severity", "metric", "what to try", "parts", "recipes"], rows, [1]) :
    make("p", {}, "No rule holds in the last 20 steps."));
  if (run.health.raised.length)
    health.append(make("details", {}, make("summary", {}, `${run.health.raised.length} warnings came up on the way`),
      table("By the step at which each came up.", ["warning", "step", "metric"],
        run.health.raised.map(f => [f.name, String(f.step), f.test]), [1])));
  if (run.health.unchecked.length)
    health.append(make("p", { class: "note" }, `Not checked, for want of their metric: ${run.health.unchecked.join(", ")}.`));
}

const curves = section("curves", "Curves");
const curveArea = make("div");
const runBoxes = make("div", { class: "legend" }, ...data.runs.map(run => {
  const box = make("input", { type: "checkbox", checked: true, onchange: () => {
    if (box.checked) view.hidden.delete(run.name); else view.hidden.add(run.name);
    redraw();
  } });
  const swatch = make("span", { class: "swatch", "aria-hidden": "true" });
  swatch.style.background = run.color;
  return make("label", {}, box, swatch, run.name);
}));
curves.append(make("div", { class: "controls" },
  choice("along", Object.entries(data.axes), value => { view.along = value; redraw(); }),
  choice("points averaged", [[20, "20"], [1, "1"], [5, "5"], [50, "50"]], value => { view.window = Number(value); redraw(); }),
  data.runs.length > 1 ? runBoxes : ""), curveArea);
const groups = data.groups.map(([title, names, open]) => {
  const grid = make("div", { class: "grid" });
  const details = make("details", { open, ontoggle: () => fill(grid, names, details.open) },
    make("summary", {}, `${title} (${names.length})`), grid);
  curveArea.append(details);
  return { details, grid, names };
});
function fill(grid, names, open) {
  grid.replaceChildren(...(open ? names.map(lines).filter(Boolean) : []));
}

const ledger = section("ledger", "Tokens");
const ledgerArea = make("div", { class: "wide grid" });
let perStep = false;
ledger.append(make("p", { class: "note" }, "Every response token that is generated (dashed) or brought back from an earlier " +
  "step (solid: both together) ends up in exactly one of these."),
  make("div", { class: "controls" }, choice("show", [["", "cumulative"], ["1", "of each step"]], v => { perStep = Boolean(v); redraw(); })),
  legend([...Object.entries(data.fates), ["generated", "#1f2933", "5 3"], ["generated and reused", "#1f2933", ""]]), ledgerArea);
const totals = table("Tokens of the whole run.", ["entry", ...data.runs.map(run => run.name), "meaning"],
  data.entries.map(([name, values, meaning]) => [name, ...values.map(short), meaning]), data.runs.map((_, i) => i + 1));

const spread = section("rollouts", "Rollouts");
const spreadArea = make("div", { class: "wide grid" });
const heatArea = make("div", { class: "wide grid" });
spread.append(spreadArea, heatArea);
for (const run of data.runs) {
  if (!run.rates) continue;
  const prefix = data.runs.length > 1 ? `${run.name}: ` : "";
  heatArea.append(heat(run.rates, `${prefix}solve rate of prompts`, `${run.rates.labels.length} of ${run.rates.total} prompts, those seen most`,
    "prompt", i => `prompt ${run.rates.labels[i]}`, RATES));
  heatArea.append(heat(run.shares, `${prefix}prompts by solve rate`, "share of the prompts rolled out at a time",
    "solve rate", i => `solve rate near ${run.shares.labels[i]}`, SHARES));
}
if (!data.runs.some(run => run.rates)) spread.append(make("p", {}, "The run kept no record of its rollouts."));

function redraw() {
  for (const { details, grid, names } of groups) fill(grid, names, details.open);
  ledgerArea.replaceChildren(...shownRuns().map(run => stack(run, perStep)), totals);
  spreadArea.replaceChildren(...[["length", "length of responses", "tokens"], ["reward", "reward", "reward"]]
    .map(([column, title, unit]) => histogram(column, title, unit)).filter(Boolean));
}

// ---------------------------------------------------------------------------------------------------
const PAGE = 20;
const browser = section("completions", "Completions");
const results = make("div");
const count = make("span", { role: "status" });
const filter = { page: 0 };
const input = (label, type, more = {}) => {
  const node = make("input", { type, ...more, oninput: () => { filter.page = 0; browse(); } });
  return [make("label", {}, label, node), node];
};
const [textLabel, text] = input("text", "search", { placeholder: "in prompt, completion, reason", size: 28 });
const [promptLabel, prompt] = input("prompt number", "number", { min: 0, step: 1 });
const [lowLabel, low] = input("reward from", "number", { step: "any" });
const [highLabel, high] = input("to", "number", { step: "any" });
const [fromLabel, from] = input("step from", "number", { min: 0, step: 1 });
const [toLabel, to] = input("to", "number", { min: 0, step: 1 });
const selects = {};
const pick = (label, key, values) => choice(label, [["", "all"], ...values.map(v => [v, v])],
  value => { selects[key] = value; filter.page = 0; browse(); });
const distinct = key => [...new Set(data.completions.map(c => c[key]).filter(Boolean))].sort();
const previous = make("button", { type: "button", onclick: () => { filter.page--; browse(); } }, "Previous");
const next = make("button", { type: "button", onclick: () => { filter.page++; browse(); } }, "Next");
browser.append(make("form", { class: "controls", onsubmit: event => event.preventDefault() },
  textLabel, promptLabel, lowLabel, highLabel, fromLabel, toLabel,
  ...(data.runs.length > 1 ? [pick("run", "run", data.runs.map(run => run.name))] : []),
  pick("source", "source", distinct("source")), pick("ended by", "status", distinct("status"))),
  make("div", { class: "controls" }, previous, next, count), results);

function within(value, lowest, highest) {
  const a = lowest.value === "" ? -Infinity : Number(lowest.value), b = highest.value === "" ? Infinity : Number(highest.value);
  if (value === null) return a === -Infinity && b === Infinity;
  return a <= value && value <= b;
}

function matches(c) {
  const wanted = text.value.toLowerCase();
  return within(c.reward, low, high) && within(c.step, from, to) &&
    (prompt.value === "" || c.prompt_id === Number(prompt.value)) &&
    Object.entries(selects).every(([key, value]) => !value || c[key] === value) &&
    (!wanted || [data.prompts[c.prompt], c.completion, c.rule, c.answer, c.parsed || ""]
      .some(part => part.toLowerCase().includes(wanted)));
}

function card(c) {
  const grade = c.correct === null ? "" : c.correct >= 1 ? " good" : c.correct <= 0 ? " bad" : "";
  const facts = [make("span", { class: "reward" + grade }, `reward ${short(c.reward)}`)];
  const say = (label, value) => {
    if (value !== "" && value !== null && value !== undefined) facts.push(make("span", {}, `${label} `, make("b", {}, make("bdi", {}, String(value)))));
  };
  if (data.runs.length > 1) say("run", c.run);
  say("step", c.step);
  say("prompt", c.prompt_id);
  say("source", c.source);
  say("verdict", c.correct === null ? "" : short(c.correct));
  say("because", c.rule);
  say("read as", c.parsed);
  say("reference", c.answer);
  say("tokens", c.length);
  say("ended by", c.status);
  for (const [name, value] of Object.entries(c.rewards)) say(`function ${name}`, short(value));
  const whole = data.prompts[c.prompt];
  const line = whole.replace(/\s+/g, " ").trim();
  const opening = line.length > 160 ? "\u2026" + line.slice(-160) : line;
  return make("article", {}, make("header", {}, ...facts),
    make("details", {}, make("summary", {}, make("bdi", {}, opening || "(empty prompt)")), make("pre", { dir: "auto" }, whole)),
    make("pre", { dir: "auto" }, c.completion || "(empty completion)"));
}

function browse() {
  const found = data.completions.filter(matches);
  const pages = Math.max(1, Math.ceil(found.length / PAGE));
  filter.page = Math.min(Math.max(filter.page, 0), pages - 1);
  previous.disabled = filter.page === 0;
  next.disabled = filter.page === pages - 1;
  count.textContent = `${found.length.toLocaleString("en")} of ${data.completions.length.toLocaleString("en")} completions, page ${filter.page + 1} of ${pages}`;
  results.replaceChildren(...found.slice(filter.page * PAGE, (filter.page + 1) * PAGE).map(card));
}

// ---------------------------------------------------------------------------------------------------
const config = section("config", "Config");
const configArea = make("div");
function settings(onlyDifferent) {
  const rows = data.config.filter(([, values]) => !onlyDifferent || new Set(values).size > 1).map(([key, values]) =>
    make("tr", { class: new Set(values).size > 1 ? "differs" : "" }, make("th", { scope: "row" }, key),
      ...values.map(v => make("td", { class: "value" }, v))));
  configArea.replaceChildren(make("div", { class: "table" }, make("table", {},
    make("caption", {}, data.runs.length > 1 ? "As resolved; rows that differ between the runs are tinted." : "As resolved."),
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "key"),
      ...data.runs.map(run => make("th", { scope: "col" }, run.name)))), make("tbody", {}, ...rows))));
}
if (data.runs.length > 1)
  config.append(make("div", { class: "controls" }, choice("show", [["", "all keys"], ["1", "keys that differ"]], v => settings(Boolean(v)))));
config.append(configArea);
settings(false);

const main = document.querySelector("main");
document.querySelector("nav").append(...sections.map(([id, title]) => make("a", { href: `#${id}` }, title)));
main.append(...sections.map(([, , node]) => node));
redraw();
browse();
document.documentElement.dataset.ready = "yes";
