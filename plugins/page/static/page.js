// What the page does beyond HTML. Without it everything can be read; nothing is then renewed by itself.
"use strict";

// A part that says data-refresh="SECONDS" is fetched again, while somebody looks at it and selects nothing.
for (const part of document.querySelectorAll("[data-refresh]")) {
  const timer = setInterval(() => {
    const selected = String(document.getSelection()) !== "";
    if (!document.getElementById(part.id).dataset.refresh) clearInterval(timer);
    if (document.hidden || selected) return;
    htmx.ajax("GET", location.href, { source: "#" + part.id, target: "#" + part.id, select: "#" + part.id, swap: "outerHTML" });
  }, 1000 * Number(part.dataset.refresh));
}

// What a reader folds or unfolds stays so when it is fetched again; on a phone some parts begin folded.
const folds = new Map();
const isPhone = matchMedia("(max-width: 40rem)").matches;
const fold = () => {
  for (const part of document.querySelectorAll("[data-fold]")) {
    const name = part.dataset.fold;
    if (!folds.has(name) && isPhone && part.dataset.phone === "folded") folds.set(name, false);
    if (folds.has(name)) part.open = folds.get(name);
  }
};
fold();
document.addEventListener("toggle", ({ target }) => {
  if (target.dataset.fold) folds.set(target.dataset.fold, target.open);
}, true);
document.addEventListener("htmx:afterSwap", fold);
if (location.hash.length > 1) document.getElementById(location.hash.slice(1))?.querySelector("details")?.setAttribute("open", "");

// A part that says data-key="K" is clicked by that key, while nobody writes; a choice then leads to the reason.
document.addEventListener("keydown", (event) => {
  const isWriting = event.target.matches("input:not([type=radio]), textarea, select");
  if (isWriting || event.ctrlKey || event.metaKey || event.altKey) return;
  const part = document.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
  if (!part) return;
  event.preventDefault();
  part.click();
  part.closest("form")?.querySelector("[name=reason]")?.focus();
});

// A word says how likely it was when it is pointed at, or reached with the arrow keys.
const tell = (word) => {
  const readout = word?.closest("[data-words]")?.nextElementSibling;
  if (readout) readout.textContent = `${JSON.stringify(word.textContent)}: ${word.title}`;
};
for (const kind of ["mouseover", "focusin"]) document.addEventListener(kind, ({ target }) => tell(target.closest?.("[data-word]")));
document.addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key], place = event.target.closest?.("[data-words]");
  if (!step || !place) return;
  const words = [...place.children], next = words[Math.max(0, Math.min(words.length - 1, words.indexOf(event.target) + step))];
  event.preventDefault();
  next.tabIndex = -1;
  next.focus();
});

// What is left empty in a form of filters is not in its address.
for (const form of document.querySelectorAll("form.filters"))
  form.addEventListener("formdata", ({ formData }) => {
    for (const [name, value] of [...formData]) if (value === "") formData.delete(name);
  });

// A table that says data-sortable="NAME" is sorted by a click on a head, the largest first; the address keeps by which.
const cellValue = (row, place) => row.cells[place]?.innerText.trim() ?? "";
const asNumber = (text) => (/^[-+−]?[\d,.]+(e[-+]?\d+)?( %)?$/.test(text) ? Number(text.replace(/[, %]/g, "").replace("−", "-")) : NaN);
const compare = (a, b) => {
  const [first, second] = [asNumber(a), asNumber(b)];
  return Number.isNaN(first) || Number.isNaN(second) ? a.localeCompare(b) : first - second;
};
const sortRows = (table, place, isDescending) => {
  const isEmpty = (text) => text === "" || text === "–";
  const rows = [...table.tBodies[0].rows].map((row) => [row, cellValue(row, place)]);
  rows.sort(([, a], [, b]) => isEmpty(a) - isEmpty(b) || (isDescending ? compare(b, a) : compare(a, b)));
  table.tBodies[0].append(...rows.map(([row]) => row));
  [...table.tHead.rows[0].cells].forEach((head, number) =>
    head.setAttribute("aria-sort", number !== place ? "none" : isDescending ? "descending" : "ascending"));
};
const makeSortable = () => {
  for (const table of document.querySelectorAll("table[data-sortable]:not([data-heads])")) {
    table.dataset.heads = "";
    const key = `by-${table.dataset.sortable}`, heads = [...table.tHead.rows[0].cells];
    for (const [place, head] of heads.entries()) {
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: head.textContent });
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const isDescending = head.getAttribute("aria-sort") !== "descending", address = new URL(location.href);
        sortRows(table, place, isDescending);
        address.searchParams.set(key, (isDescending ? "-" : "") + button.textContent);
        history.replaceState(null, "", address);
      });
    }
    const chosen = new URL(location.href).searchParams.get(key) ?? "";
    const place = heads.findIndex((head) => head.textContent === chosen.replace(/^-/, ""));
    if (place >= 0) sortRows(table, place, chosen.startsWith("-"));
  }
};
makeSortable();
document.addEventListener("htmx:afterSwap", makeSortable);

// Curves are drawn by uPlot in place of their pictures, and again at another width. They can be pointed at, all at once,
// and a click leads to the groups behind a point.
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const short = (value) => String(Number(value.toPrecision(3)));
const STEPS = [...Array(12).keys()].flatMap((power) => [1, 2, 5].map((step) => step * 10 ** power));

// Data, series and bands of a chart: for each curve its mean, and the ends of its band if it has one.
const layers = (chart) => {
  const data = [chart.x], series = [{}], bands = [], dots = chart.x.length <= 60;
  for (const curve of chart.curves) {
    const stroke = colour(`--c${curve.colour}`);
    data.push(curve.mean);
    series.push({ stroke, width: 2, spanGaps: true, points: { show: dots, size: 6, fill: stroke }, dash: curve.dashed ? [6, 4] : [] });
    if (!curve.low) continue;
    bands.push({ series: [data.length, data.length + 1], fill: `${stroke}22` });
    for (const end of [curve.high, curve.low]) {
      data.push(end);
      series.push({ stroke: "transparent", spanGaps: true, points: { show: false } });
    }
  }
  return { data, series, bands };
};

// The values at one place, in words; where nobody points, the newest value of each curve.
const valueText = (curve, at) => {
  const band = curve.low ? ` (${short(curve.low[at])} to ${short(curve.high[at])})` : "";
  return `${curve.name ? `${curve.name} ` : ""}${short(curve.mean[at])}${band}`;
};
const readout = (chart, at, over) => {
  const newest = (curve) => curve.mean.findLastIndex((value) => value !== null);
  const places = chart.curves.map((curve) => at ?? newest(curve));
  const known = chart.curves.map((curve, number) => [curve, places[number]]).filter(([curve, place]) => curve.mean[place] !== null);
  const versions = new Set(known.map(([curve, place]) => curve.versions[place]));
  if (versions.size > 1) return known.map(([curve, place]) => `${valueText(curve, place)} at version ${curve.versions[place]}`).join(" · ");
  const when = over === "time" && known.length ? [new Date(chart.x[known[0][1]] * 1000).toISOString().replace("T", " ").slice(0, 19)] : [];
  return [...[...versions].map((version) => `version ${version}`), ...when, ...known.map((pair) => valueText(...pair))].join(" · ");
};

// Where the groups behind the point are that is nearest to the cursor.
const groupsBehind = (plot, chart) => {
  const at = plot.cursor.idx, value = plot.posToVal(plot.cursor.top, "y");
  const near = chart.curves.filter((curve) => curve.groups && at !== null && curve.mean[at] !== null)
    .sort((a, b) => Math.abs(a.mean[at] - value) - Math.abs(b.mean[at] - value))[0];
  return near ? near.groups + near.versions[at] : null;
};

// The ends of the axis: as chart.py has them.
const yRange = (chart) => (plot, low, high) => {
  if (chart.share || low === null || (low === 0 && high === 0)) return [0, 1];
  const isLevel = high - low < Math.max(Math.abs(low), Math.abs(high)) / 500, room = (high - low) * 0.04;
  if (low >= 0 && (isLevel || low < 0.6 * high)) return [0, high * 1.04];
  return isLevel ? [low * 1.04, 0] : [low - room, high + room];
};

// Marks of a time axis: days, minutes or seconds, whichever are apart; in UTC.
const times = (plot, seconds) => {
  const step = seconds.length > 1 ? seconds[1] - seconds[0] : 60, [start, end] = step >= 86400 ? [5, 10] : step >= 60 ? [11, 16] : [11, 19];
  return seconds.map((second) => new Date(second * 1000).toISOString().slice(start, end));
};
const ACROSS = {
  version: { incrs: STEPS },
  time: { space: 70, values: times },
  hours: { space: 80, values: (plot, hours) => hours.map((hour) => `${hour} h`) },
};

const drawChart = (place, chart, over) => {
  const about = place.firstElementChild.getAttribute("aria-label"), text = document.createElement("p");
  text.className = "readout";
  const size = () => ({ width: place.clientWidth || 360, height: Math.round(Math.min(240, Math.max(170, place.clientWidth * 0.5))) });
  const draw = () => {
    const axis = { stroke: colour("--muted"), font: "12px system-ui, sans-serif", grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    const up = { ...axis, size: 54, values: (plot, all) => all.map((value) => String(Number(value.toPrecision(6)))) };
    const across = { ...axis, size: 30, ...ACROSS[over] };
    const { data, series, bands } = layers(chart);
    const plot = new uPlot({
      ...size(), series, bands, axes: [across, up], legend: { show: false },
      scales: { x: { time: over === "time" }, y: { range: yRange(chart) } },
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "UTC"),
      cursor: { y: false, sync: { key: "curves" } },
      hooks: { setCursor: [(drawing) => { text.textContent = readout(chart, drawing.cursor.idx, over); }] },
    }, data);
    plot.root.setAttribute("role", "img");
    plot.root.setAttribute("aria-label", about);
    plot.over.addEventListener("click", () => {
      const link = groupsBehind(plot, chart);
      if (link) location.href = link;
    });
    if (chart.curves.some((curve) => curve.groups)) plot.over.style.cursor = "pointer";
    text.textContent = readout(chart, null, over);
    place.replaceChildren(plot.root, text);
    return plot;
  };
  let plot = draw();
  new ResizeObserver(() => {
    if (place.clientWidth && Math.abs(plot.width - place.clientWidth) > 4) plot.setSize(size());
  }).observe(place);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { plot.destroy(); plot = draw(); });
};

const drawCurves = () => [...document.querySelectorAll("[data-curves]:not([data-fetched])")].map((part) => {
  part.dataset.fetched = "";
  return fetch(part.dataset.curves).then((answer) => (answer.ok ? answer.json() : {})).then((charts) => {
    for (const place of typeof uPlot === "undefined" ? [] : part.querySelectorAll("[data-chart]")) {
      const chart = charts[place.dataset.chart];
      if (chart && chart.x.length > 1) drawChart(place, chart, part.dataset.over);
    }
  });
});
document.addEventListener("htmx:afterSwap", drawCurves);
// Whoever looks at the page by program waits for this.
Promise.allSettled(drawCurves()).then((all) => {
  document.documentElement.dataset.drawn = all.filter((one) => one.status === "fulfilled").length + " of " + all.length;
});

// Records as they are written, the newest first. What others wrote is set as text.
const rows = document.querySelector("[data-live]");
if (rows) {
  const says = document.getElementById("follows");
  const source = new EventSource(rows.dataset.live);
  source.onopen = () => { says.textContent = "Follows the log."; };
  source.onerror = () => { says.textContent = "Not connected; trying again."; };
  source.onmessage = (message) => {
    const one = JSON.parse(message.data), row = document.createElement("tr");
    const cell = (text) => {
      const made = row.appendChild(Object.assign(document.createElement("td"), { textContent: text }));
      made.dataset.label = ["time", "record", "key", "content"][row.childElementCount - 1];
      return made;
    };
    cell(one.time.replace("T", " ").slice(0, 19));
    const link = document.createElement("a");
    link.href = `${rows.dataset.base}/records/${encodeURIComponent(one.topic)}/${one.partition}/${one.offset}`;
    link.className = "at";
    link.textContent = `${one.topic}[${one.partition}]@${one.offset}`;
    cell("").append(link);
    cell(one.key).className = "key";
    cell(one.summary);
    row.className = "new";
    rows.prepend(row);
    while (rows.childElementCount > 300) rows.lastElementChild.remove();
  };
}

// Ctrl-Enter runs the statement.
const statement = document.querySelector("form.sql textarea");
if (statement) {
  statement.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) statement.form.requestSubmit();
  });
}
