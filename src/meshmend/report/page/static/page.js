"use strict";
// The page of a run. State comes in sections (see snapshot.py), at once or as server-sent events; every section has one
// function that draws it. Text from the run is only ever set as text, never as HTML.

const settings = JSON.parse(document.getElementById("settings").textContent);
const state = JSON.parse(document.getElementById("state").textContent || "{}");
const chosen = { job: null, incidents: new Map(), armed: null, lost: false };
const PHASES = { detect: "detect", revoke: "revoke", shrink: "shrink", "re-form": "reform", exchange: "exchange",
  "roll forward": "forward", state: "state", recompute: "recompute", "first commit": "commit" };
const LEVELS = { shrink: "shrink", new_world: "new world", checkpoint: "resume" };

// ── small helpers ──

const byId = (id) => document.getElementById(id);

function h(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (key === "class") node.className = value;
    else if (key === "style") Object.assign(node.style, value);
    else if (key.startsWith("on")) node[key] = value;
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function s(tag, props = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(props)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

const count = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en-US"));
const plural = (n, noun, nouns = `${noun}s`) => `${count(n)} ${n === 1 ? noun : nouns}`;
const percent = (share, digits = 1) => (share === null || share === undefined ? "–" : `${(100 * share).toFixed(digits)} %`);

function number(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e5 || size < 1e-3 ? value.toExponential(2).replace(/\.?0+e/, "e") : Number(value.toPrecision(4)).toString();
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  for (const [unit, scale] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1], ["ms", 1e-3]]) {
    if (seconds >= 0.9995 * scale) return `${Number((seconds / scale).toPrecision(3))} ${unit}`;
  }
  return seconds ? `${Number((seconds * 1e6).toPrecision(2))} µs` : "0 s";
}

function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const whole = Math.max(0, Math.round(seconds));
  const [d, hh, m, ss] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60, whole % 60];
  if (d) return `${d} d ${hh} h`;
  if (hh) return `${hh} h ${m} min`;
  return m ? `${m} min ${ss} s` : `${ss} s`;
}

function bytes(value) {
  for (const [unit, scale] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (value >= scale) return `${Number((value / scale).toPrecision(3))} ${unit}`;
  }
  return `${value} B`;
}

const clock = (time) => new Date(1000 * time).toLocaleTimeString("en-GB");
const day = (time) => new Date(1000 * time).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });

function fill(id, ...children) { byId(id).replaceChildren(...children); }

function setText(id, text) { const node = byId(id); if (node.textContent !== text) node.textContent = text; }

function job() {
  const jobs = state.run ? state.run.jobs : [];
  const at = chosen.job !== null && jobs.includes(chosen.job) ? chosen.job : jobs[jobs.length - 1];
  return at === undefined ? null : state[`job-${at}`];
}

function now() { return settings.live ? Date.now() / 1000 : (state.run && state.run.last) || 0; }

// ── the head ──

function drawRun() {
  const run = state.run;
  if (!run) return;
  setText("name", run.name);
  const pill = byId("phase"), one = job();
  let phase = run.phase, text = run.phase;
  const silent = run.last ? now() - run.last : 0;
  if (chosen.lost) { phase = "quiet"; text = "connection lost, trying again"; }
  else if (settings.live && phase === "running" && silent > Math.max(30, 20 * ((one && one.pace) || 0))) {
    phase = "quiet"; text = `no news for ${span(silent)}`;
  } else if (run.status) text = `${run.phase} with status ${run.status}`;
  else if (!settings.live && phase === "running") { phase = "quiet"; text = "running when this was saved"; }
  else if (phase === "unknown") text = "no word of its launcher";
  pill.className = `pill ${phase}`;
  setText("phase", text);
  const parts = [run.script, run.workers ? plural(run.workers, "worker") : "", run.spares ? plural(run.spares, "spare") : "",
    run.hosts ? plural(run.hosts, "host") : "", run.policy ? `on failure: ${run.policy}` : "",
    run.attempts > 1 ? plural(run.attempts, "attempt") : "", run.began ? `began ${day(run.began)}` : ""];
  setText("about", parts.filter(Boolean).join("  ·  "));
  const errors = [...(run.why ? [run.why] : []), ...run.errors];
  if (state.notes && state.notes.length) errors.push(`${plural(state.notes.length, "line or file", "lines or files")} of events could not be read and ${state.notes.length === 1 ? "was" : "were"} left out: see the end of this page`);
  byId("error").hidden = !errors.length;
  setText("error", errors.join("\n"));
  const nav = byId("jobs");
  nav.hidden = run.jobs.length < 2;
  if (!nav.hidden) {
    fill("jobs", ...run.jobs.map((each) => h("button", {
      "aria-pressed": String(one && one.number === each),
      onclick: () => { chosen.job = each; draw(); } }, `job ${each}`)));
  }
  document.title = `${run.name} · ${text}${one ? ` · step ${count(one.step)}` : ""}`;
}

function figure(name, value, note = "", tone = "") {
  return h("dl", { class: "figure", style: { margin: 0 } }, h("dt", {}, name), h("dd", { class: tone, title: value }, value, h("small", { title: note }, note)));
}

function drawFigures() {
  const run = state.run, one = job();
  if (!run) return;
  const wall = run.began ? (run.phase === "running" ? now() : run.last) - run.began : null;
  if (!one) {
    fill("figures", figure("running for", span(wall)), figure("steps", "0", "no worker has opened a job yet"));
    return;
  }
  const active = (state.workers || []).filter((worker) => ["active", "finished"].includes(worker.state)).length;
  const saved = one.checkpoints[one.checkpoints.length - 1];
  const failures = one.incidentCount - one.incidents.filter((each) => each.joins).length;
  const account = one.account;
  fill("figures",
    figure("steps", count(one.step), account.epochs ? `${Number(account.epochs.toFixed(2))} epochs` : ""),
    figure(one.metric, number(one.metrics[one.metric]), others(one)),
    figure("step time", duration(one.pace), one.pace ? `${count(Math.round(one.batch / one.pace))} samples/s` : ""),
    figure("workers", `${active} of ${(state.workers || []).length}`, `${plural(one.lanes, "lane")}, batch ${count(one.batch)}`,
      active < (run.workers || 0) && run.phase === "running" ? "warn" : ""),
    figure("goodput", percent(one.goodput.share), `of ${span(one.goodput.wall)}`),
    figure("input stall", percent(account.stall), "of the workers' time", account.stall > 0.1 ? "warn" : ""),
    figure("failures", count(failures), failures ? `${duration(one.recovery)} of recovery` : "none so far"),
    figure("last checkpoint", saved ? `step ${count(saved.step)}` : "none yet",
      saved ? (run.phase === "running" ? `${span(Math.max(0, now() - saved.time))} ago` : `at ${clock(saved.time)}`) : ""));
}

function noMetric(one) {
  const names = one ? Object.keys(one.metrics) : [];
  return names.length ? `no metric is called ${one.metric}; this run has ${names.join(", ")}` : "no metric yet: give some to job.commit";
}

function others(one) {
  const rest = Object.entries(one.metrics).filter(([name]) => name !== one.metric);
  return rest.slice(0, 3).map(([name, value]) => `${name} ${number(value)}`).join("  ");
}

// ── workers ──

function drawWorkers() {
  const workers = state.workers || [], one = job();
  const lanes = one ? one.lanes : 0, fair = workers.length ? Math.ceil(lanes / Math.max(1, workers.filter((w) => w.lanes).length)) : 0;
  const usual = one ? Math.ceil(lanes / Math.max(1, (state.run && state.run.workers) || workers.length)) : fair;
  byId("workers").className = workers.length > 24 ? "dense" : "";
  const states = {};
  for (const worker of workers) states[worker.state] = (states[worker.state] || 0) + 1;
  setText("workers-note", Object.entries(states).map(([name, n]) => `${n} ${name}`).join(", "));
  if (!workers.length) { fill("workers", h("p", { class: "empty" }, "no worker has been started yet")); return; }
  fill("workers", ...workers.map((worker) => tile(worker, usual)));
}

function tile(worker, usual) {
  const shown = Math.min(worker.lanes, 48);
  const boxes = Array.from({ length: ["dead", "due", "starting"].includes(worker.state) ? 0 : shown },
    (_, at) => h("i", { class: at >= usual ? "extra" : "" }));
  const more = [];
  if (worker.deaths) more.push(`died ${worker.deaths === 1 ? "once" : `${worker.deaths} times`} (${worker.death})`);
  if (worker.stall !== null && worker.stall !== undefined && worker.stall >= 0.005) more.push(`stall ${percent(worker.stall, 0)}`);
  const label = `${worker.state}${["starting", "dead", "standby"].includes(worker.state) ? ` ${span(now() - worker.since)}` : ""}`;
  const node = h("div", { class: `tile ${worker.state}`, "data-rank": worker.rank,
    title: `worker ${worker.rank}: ${worker.state} since ${clock(worker.since)}, process ${worker.process}, ${plural(worker.lanes, "lane")}, last step ${worker.step}` },
    h("div", { class: "top" }, h("span", { class: "rank" }, String(worker.rank)), h("span", { class: "state" }, label)),
    h("div", { class: "where" }, worker.host ? `${worker.host} · ${worker.process}` : "–"),
    h("div", { class: "lanes" }, ...boxes),
    h("div", { class: "more" }, more.join(" · ") || (worker.lanes ? plural(worker.lanes, "lane") : "\u00a0")));
  if (settings.live && settings.chaos && worker.state === "active") {
    const armed = chosen.armed === worker.rank;
    node.append(h("button", { class: `kill${armed ? " armed" : ""}`, "aria-label": `kill worker ${worker.rank}`,
      onclick: () => strike(worker.rank) }, armed ? "really kill?" : "kill"));
  }
  return node;
}

async function strike(rank) {
  if (chosen.armed !== rank) {
    chosen.armed = rank;
    drawWorkers();
    setTimeout(() => { if (chosen.armed === rank) { chosen.armed = null; drawWorkers(); } }, 3000);
    return;
  }
  chosen.armed = null;
  drawWorkers();
  try {
    const answer = await fetch("kill", { method: "POST", body: JSON.stringify({ rank }),
      headers: { "Content-Type": "application/json", "X-Meshmend-Key": settings.key } });
    const found = await answer.json();
    toast(found.done || found.why);
  } catch (error) { toast(`the page's server does not answer: ${error.message}`); }
}

function toast(text) {
  const node = byId("toast");
  node.textContent = text;
  node.hidden = false;
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => { node.hidden = true; }, 5000);
}

// ── charts ──

function ticks(low, high, most) {
  if (!(high > low)) return [low];
  const rough = (high - low) / most, base = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * base).find((each) => each >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  return found;
}

function logTicks(low, high) {
  const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
  const every = Math.max(1, Math.ceil((last - first + 1) / 5));
  const found = [];
  for (let at = first; at <= last; at += every) found.push(10 ** at);
  return found.length > 1 ? found : [low, high];
}

function chart(id, curve, options) {
  const box = byId(id);
  if (!curve || !curve.steps.length) { box.replaceChildren(h("p", { class: "empty" }, options.empty)); return; }
  const width = Math.max(260, box.clientWidth), height = box.clientHeight || 230;
  const left = 58, right = 10, top = 10, bottom = 24;
  const values = curve.values.filter((value) => value !== null);
  let low = Math.min(...values), high = Math.max(...values);
  const log = low > 0 && high > 50 * low;
  if (!log) { if (low > 0 && low < 0.5 * high) low = 0; if (high === low) { high += Math.abs(high) * 0.1 || 1; low -= Math.abs(low) * 0.1; } }
  const last = Math.max(curve.steps[curve.steps.length - 1], options.until || 0, 1), first = Math.min(curve.steps[0], 0);
  const x = (step) => left + (width - left - right) * (step - first) / (last - first);
  const scale = (value) => (log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low));
  const y = (value) => height - bottom - (height - top - bottom) * scale(Math.max(value, log ? low : value));
  const svg = s("svg", { width, height, role: "img", "aria-label": options.label(curve) });
  for (const value of log ? logTicks(low, high) : ticks(low, high, 5)) {
    svg.append(s("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
      s("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, options.format(value)));
  }
  for (const step of ticks(first, last, Math.max(2, Math.floor(width / 110)))) {
    svg.append(s("text", { x: x(step), y: height - 6, "text-anchor": step === first ? "start" : "middle" }, count(step)));
  }
  svg.append(s("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }));
  for (const each of options.marks) {
    if (each.step >= first && each.step <= last) svg.append(s("line", { class: `mark ${each.joins ? "joins" : each.level}`, x1: x(each.step), x2: x(each.step), y1: top, y2: height - bottom }));
  }
  const path = (line) => {
    let data = "", open = false;
    line.steps.forEach((step, at) => {
      const value = line.values[at];
      if (value === null) { open = false; return; }
      data += `${open ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`;
      open = true;
    });
    return data;
  };
  if (options.behind && options.behind.steps.length) svg.append(s("path", { class: "void", d: path(options.behind) }));
  svg.append(s("path", { class: "line", d: path(curve) }));
  if (curve.steps.length === 1) svg.append(s("circle", { cx: x(curve.steps[0]), cy: y(curve.values[0]), r: 2.5, fill: "var(--blue)" }));
  const cross = s("line", { class: "cross", y1: top, y2: height - bottom, visibility: "hidden" });
  svg.append(cross);
  svg.onpointermove = (event) => {
    const at = event.clientX - svg.getBoundingClientRect().left;
    const step = first + (last - first) * (at - left) / (width - left - right);
    let best = 0;
    curve.steps.forEach((each, place) => { if (Math.abs(each - step) < Math.abs(curve.steps[best] - step)) best = place; });
    cross.setAttribute("x1", x(curve.steps[best]));
    cross.setAttribute("x2", x(curve.steps[best]));
    cross.setAttribute("visibility", "visible");
    const near = options.marks.filter((each) => Math.abs(x(each.step) - at) < 6);
    const lines = [`step ${count(curve.steps[best])}: ${options.format(curve.values[best])}`];
    for (const each of near.slice(0, 4)) lines.push(`#${each.number} in step ${count(each.step)}: ${each.what.join(", ")}${each.total === null ? "" : `, ${duration(each.total)}`}`);
    tip(event, lines.join("\n"));
  };
  svg.onpointerleave = () => { cross.setAttribute("visibility", "hidden"); byId("tip").hidden = true; };
  const kinds = { ...LEVELS, joins: "workers join" };
  const used = Object.keys(kinds).filter((kind) => options.marks.some((each) => (each.joins ? "joins" : each.level) === kind));
  const colours = { shrink: "var(--green)", new_world: "var(--orange)", checkpoint: "var(--pink)", joins: "var(--muted)" };
  const key = used.length ? h("div", { class: "key" }, ...used.map((kind) => h("span", {}, h("i", { style: { background: colours[kind] } }), kinds[kind])),
    ...(options.behind && options.behind.steps.length ? [h("span", {}, h("i", { style: { background: "var(--frame)" } }), "rolled back")] : [])) : null;
  box.replaceChildren(svg, ...(key ? [key] : []));
  box.style.marginBottom = key ? "26px" : "";
}

function tip(event, text) {
  const node = byId("tip");
  node.textContent = text;
  node.hidden = false;
  const wide = node.offsetWidth, far = event.clientX + 16 + wide > window.innerWidth;
  node.style.left = `${far ? event.clientX - wide - 12 : event.clientX + 14}px`;
  node.style.top = `${event.clientY + 14}px`;
}

function drawCharts() {
  const one = job();
  setText("loss-title", one ? one.metric[0].toUpperCase() + one.metric.slice(1) : "Loss");
  const marks = one ? one.incidents : [];
  const until = one ? one.step - 1 : 0;
  chart("loss", one && one.curve, { marks, until, behind: one && one.rolledBack, format: number,
    empty: noMetric(one),
    label: (curve) => `${one.metric} over ${plural(one.step, "step")}, last ${number(curve.values[curve.values.length - 1])}, ${plural(marks.length, "incident")}` });
  chart("pace", one && one.paces, { marks, until, format: duration, empty: "no two steps have followed each other yet",
    label: () => `time between commits, now ${duration(one.pace)}` });
}

// ── incidents ──

function rest(each) {
  const known = each.phases.reduce((sum, [, seconds]) => sum + seconds, 0);
  return each.total === null ? 0 : Math.max(0, each.total - known);
}

function colour(phase) { return `var(--${PHASES[phase] || "rest"})`; }

function drawIncidents() {
  const one = job(), list = one ? [...one.incidents].reverse() : [];
  setText("incidents-note", one && one.incidentCount ? `${count(one.incidentCount)}, newest first${one.incidentCount > list.length ? `; the last ${list.length} are shown` : ""}` : "");
  if (!list.length) { fill("incidents", h("p", { class: "empty" }, "nothing has failed")); return; }
  const newest = list[0].number;
  const used = Object.keys(PHASES).filter((phase) => list.some((each) => each.phases.some(([name]) => name === phase)));
  fill("incidents", ...list.map((each) => {
    const open = chosen.incidents.has(each.number) ? chosen.incidents.get(each.number) : each.number === newest;
    const whole = Math.max(each.total || 0, each.phases.reduce((sum, [, seconds]) => sum + seconds, 0)) || 1;
    const bars = each.phases.map(([name, seconds]) => h("i", { style: { width: `${100 * seconds / whole}%`, background: colour(name) }, title: `${name} ${duration(seconds)}` }));
    const left = rest(each);
    if (left / whole > 0.005) bars.push(h("i", { style: { width: `${100 * left / whole}%`, background: "var(--rest)" }, title: `not in any phase ${duration(left)}` }));
    return h("div", { class: "incident" },
      h("button", { "aria-expanded": String(open), onclick: () => { chosen.incidents.set(each.number, !open); drawIncidents(); } },
        h("span", { class: "number" }, `#${each.number}`), h("span", { class: "at" }, `step ${count(each.step)}`),
        h("span", { class: "what" }, each.what.join(", ")),
        h("span", { class: `badge ${each.joins ? "joins" : each.level}` }, each.joins ? "join" : LEVELS[each.level]),
        h("span", { class: "bar" }, ...bars),
        h("span", { class: "total" }, each.total === null ? "open" : duration(each.total))),
      open ? detail(each, whole) : null);
  }), h("div", { class: "key" }, ...used.map((phase) => h("span", {}, h("i", { style: { background: colour(phase) } }), phase)),
    h("span", {}, h("i", { style: { background: "var(--rest)" } }), "waiting and other work")));
}

function detail(each, whole) {
  const rows = [];
  let at = 0;
  const row = (name, seconds, shade) => {
    rows.push(h("span", { class: "of" }, name),
      h("span", { class: "lane" }, h("i", { style: { left: `${Math.min(99, 100 * at / whole)}%`, width: `${Math.min(100 - Math.min(99, 100 * at / whole), 100 * seconds / whole)}%`, background: shade } })),
      h("span", { class: "ms" }, duration(seconds)));
    at += seconds;
  };
  const left = rest(each);
  each.phases.forEach(([name, seconds], place) => {
    if (name === "recompute" && left / whole > 0.005) { row("other", left, "var(--rest)"); }
    row(name, seconds, colour(name));
    if (place === each.phases.length - 1 && left / whole > 0.005 && !each.phases.some(([other]) => other === "recompute")) row("other", left, "var(--rest)");
  });
  const words = [`${clock(each.begin)}, step ${count(each.step)}${each.ordinary ? `; an ordinary step took ${duration(each.ordinary)}` : ""}${each.total && each.ordinary ? `, this one ${Number((each.total / each.ordinary).toPrecision(2))} times that` : ""}.`];
  const lost = Object.entries(each.lost), taken = Object.entries(each.taken);
  if (each.repeated) words.push(`${plural(each.repeated, "step")} (${count(each.samples)} samples) done again from a checkpoint.`);
  else if (lost.length) {
    words.push(`${lost.map(([rank, n], at) => `${at ? "the" : "The"} ${plural(n, "lane")} of worker ${rank}`).join(" and ")} went to ${taken.map(([rank, n]) => `worker ${rank} (${n})`).join(", ")}: ${plural(each.samples, "sample")}.`);
  } else if (!each.joins) words.push("No lane had to be computed by another worker.");
  return h("div", { class: "detail" }, rows.length ? h("div", { class: "fall" }, ...rows) : null, h("p", {}, words.join(" ")));
}

// ── proof, goodput, checkpoints, mesh ──

function drawProof() {
  const one = job(), account = one && one.account;
  if (!account) { fill("proof", h("p", { class: "empty" }, "no worker has opened a job yet")); return; }
  const [mark, kind, text] = account.clean === null ? ["…", "", account.why || "nothing to prove yet: no step has been committed"]
    : account.clean ? ["✓", "clean", "Clean: every lane of every step counted once, every sample of every finished epoch counted once, all workers' states equal after every step."]
      : ["✗", "dirty", `NOT clean: ${plural(account.findingCount, "finding")}.`];
  const facts = account.clean === null ? [] : [["steps", count(account.steps)], ["samples", count(account.samples)], ["lanes counted", count(account.lanes)],
    ["epochs", `${Number(account.epochs.toFixed(2))} of ${plural(account.size, "sample")}`],
    ...(account.repeated ? [["steps done again", count(account.repeated)]] : []), ...(account.skipped ? [["steps skipped", count(account.skipped)]] : []),
    ...(account.evaluations ? [["evaluations", count(account.evaluations)]] : []),
    ...(account.slices && account.slices[0] ? [["slices with one copy", `${duration(account.single)}, at most ${account.slices[0]} of ${account.slices[1]}`]] : []),
    ["digest of the last state", account.digest || "–"]];
  fill("proof", h("div", { class: `verdict ${kind}` }, h("b", {}, mark), h("span", {}, text)),
    h("dl", { class: "facts" }, ...facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", { class: name.startsWith("digest") ? "mono" : "" }, value)])),
    account.findings && account.findings.length ? h("ul", { class: "findings" }, ...account.findings.slice(0, 20).map((each) => h("li", {}, each))) : "");
}

function drawGoodput() {
  const one = job();
  if (!one) { fill("goodput", h("p", { class: "empty" }, "nothing yet")); setText("goodput-note", ""); return; }
  const good = one.goodput, box = byId("goodput");
  setText("goodput-note", `${percent(good.share)} of ${span(good.wall)}`);
  const width = Math.max(200, box.clientWidth), height = 46, wide = width / Math.max(1, good.windows.length);
  const svg = s("svg", { width, height, role: "img", "aria-label": `goodput ${percent(good.share)}` });
  good.windows.forEach((share, at) => svg.append(s("rect", { x: (at * wide).toFixed(2), width: (wide + 0.3).toFixed(2), y: (height * (1 - share)).toFixed(2), height: (height * share).toFixed(2), fill: "var(--recompute)" })));
  svg.append(s("line", { class: "axis", x1: 0, x2: width, y1: height, y2: height }));
  const names = { start: "starting", recovery: "recovering", repeated: "steps done again", down: "nothing running" };
  const lost = Object.entries(good.seconds).filter(([, seconds]) => seconds > 0);
  box.replaceChildren(svg, h("dl", { class: "facts", style: { marginTop: "8px" } }, h("dt", {}, "progress"), h("dd", {}, span(good.share * good.wall)),
    ...lost.flatMap(([name, seconds]) => [h("dt", {}, names[name]), h("dd", {}, duration(seconds))])));
}

function drawCheckpoints() {
  const one = job(), list = one ? [...one.checkpoints].reverse().slice(0, 6) : [];
  setText("checkpoints-note", one && one.checkpointCount ? count(one.checkpointCount) : "");
  if (!list.length) { fill("checkpoints", h("p", { class: "empty" }, "none yet")); return; }
  fill("checkpoints", h("table", {}, h("thead", {}, h("tr", {}, ...["step", "at", "size", "took"].map((name) => h("th", {}, name)))),
    h("tbody", {}, ...list.map((each) => h("tr", { title: each.path }, h("td", {}, count(each.step)), h("td", {}, clock(each.time)), h("td", {}, bytes(each.bytes)), h("td", {}, duration(each.seconds)))))));
}

function drawMesh() {
  const mesh = state.mesh;
  byId("mesh-card").hidden = !mesh;
  if (!mesh) return;
  setText("mesh-note", mesh.why || `${mesh.notation} · ${mesh.algorithm}${mesh.algbw === null ? "" : ` · ${mesh.algbw} B of at most ${mesh.bound} B`}`);
  const box = byId("mesh"), width = Math.max(200, box.clientWidth);
  const stub = 0.45, cell = Math.min(64, width / (mesh.cols + 2 * stub * mesh.wrap[1])), high = cell * (mesh.rows + 2 * stub * mesh.wrap[0]);
  const svg = s("svg", { width, height: high, role: "img", "aria-label": `mesh ${mesh.notation}` });
  const x0 = (width - cell * mesh.cols) / 2, y0 = (high - cell * mesh.rows) / 2;
  const at = (chip) => [x0 + cell * ((chip % mesh.cols) + 0.5), y0 + cell * (Math.floor(chip / mesh.cols) + 0.5)];
  const shade = (load) => (load > 0 ? `color-mix(in srgb, var(--blue) ${Math.round(20 + 80 * load)}%, var(--faint))` : "var(--faint)");
  const links = [];
  for (const [a, b, there, back] of mesh.links) {
    const [ax, ay] = at(a), [bx, by] = at(b), across = Math.abs(ax - bx) > Math.abs(ay - by), sx = across ? 1 : 0;
    const far = Math.abs(ax - bx) + Math.abs(ay - by) > 1.5 * cell;
    for (const [load, side] of [[there, -1], [back, 1]]) {
      const dx = across ? 0 : side * cell * 0.07, dy = across ? side * cell * 0.07 : 0;
      const pieces = far ? [[ax, ay, ax + sx * cell * (0.5 + stub * 0.5), ay + (1 - sx) * cell * (0.5 + stub * 0.5)], [bx, by, bx - sx * cell * (0.5 + stub * 0.5), by - (1 - sx) * cell * (0.5 + stub * 0.5)]] : [[ax, ay, bx, by]];
      for (const [x1, y1, x2, y2] of pieces) links.push(s("line", { x1: x1 + dx, y1: y1 + dy, x2: x2 + dx, y2: y2 + dy, stroke: shade(load), "stroke-width": Math.max(1.5, cell * 0.08) }));
    }
  }
  svg.append(...links);
  mesh.chips.forEach((chip, place) => {
    const [x, y] = at(place), side = cell * 0.56;
    svg.append(s("rect", { x: x - side / 2, y: y - side / 2, width: side, height: side, rx: 4, fill: chip.dead ? "var(--card)" : "var(--blue-soft)", stroke: chip.dead ? "var(--red)" : "var(--blue)", "stroke-dasharray": chip.dead ? "3 3" : "none" }));
    if (chip.rank !== null && cell >= 22) svg.append(s("text", { x, y: y + 4, "text-anchor": "middle", style: `fill: var(${chip.dead ? "--red" : "--ink"})` }, String(chip.rank)));
  });
  box.replaceChildren(svg, h("div", { class: "key" }, h("span", {}, h("i", { style: { background: shade(1) } }), "link with the largest load"), h("span", {}, h("i", { style: { background: shade(0.2) } }), "with little"), h("span", {}, h("i", { style: { border: "1px dashed var(--red)" } }), "dead chip")));
}

function drawNotes() {
  fill("notes", ...(state.notes || []).map((text) => h("p", {}, `Left out: ${text}`)));
  setText("saved", settings.saved ? `Saved ${day(settings.saved)} by meshmend watch --export${state.run && state.run.version ? ` · meshmend ${state.run.version}` : ""}` : "");
}

// ── all of it ──

const DRAWN = { run: [drawRun], workers: [drawWorkers], mesh: [drawMesh], notes: [drawNotes] };
const OF_JOB = [drawRun, drawFigures, drawWorkers, drawCharts, drawIncidents, drawProof, drawGoodput, drawCheckpoints];

function draw(names = Object.keys(state)) {
  const wanted = new Set([drawRun, drawFigures]);
  for (const name of names) for (const one of DRAWN[name] || OF_JOB) wanted.add(one);
  if (!job()) for (const one of OF_JOB) wanted.add(one);
  for (const one of wanted) one();
}

function start() {
  draw();
  drawNotes();
  new ResizeObserver(() => { drawCharts(); drawGoodput(); drawMesh(); }).observe(document.querySelector("main"));
  if (!settings.live) return;
  const stream = new EventSource("stream");
  stream.onmessage = (event) => {
    const sections = JSON.parse(event.data);
    chosen.lost = false;
    Object.assign(state, sections);
    draw(Object.keys(sections));
  };
  stream.onerror = () => { chosen.lost = true; drawRun(); };
  stream.onopen = () => { chosen.lost = false; drawRun(); };
  setInterval(() => { drawRun(); drawFigures(); }, 1000);
}

start();
