// What the page does beyond HTML. Without it everything can be read; nothing is then renewed by itself.
"use strict";

// A part that says data-refresh="SECONDS" is fetched again, while somebody looks at it and selects nothing.
for (const part of document.querySelectorAll("[data-refresh]")) {
  setInterval(() => {
    const selected = String(document.getSelection()) !== "";
    if (document.hidden || selected) return;
    htmx.ajax("GET", location.href, { source: "#" + part.id, target: "#" + part.id, select: "#" + part.id, swap: "outerHTML" });
  }, 1000 * Number(part.dataset.refresh));
}

// What a reader folds or unfolds stays so when it is fetched again; on a phone some parts begin folded.
const folds = new Map();
const fold = () => {
  for (const part of document.querySelectorAll("[data-fold]"))
    if (folds.has(part.dataset.fold)) part.open = folds.get(part.dataset.fold);
};
if (matchMedia("(max-width: 40rem)").matches)
  for (const part of document.querySelectorAll('[data-phone="folded"]')) folds.set(part.dataset.fold, false);
fold();
document.addEventListener("toggle", ({ target }) => {
  if (target.dataset.fold) folds.set(target.dataset.fold, target.open);
}, true);
document.addEventListener("htmx:afterSwap", fold);

// What is left empty in a form of filters is not in its address.
for (const form of document.querySelectorAll("form.filters"))
  form.addEventListener("formdata", ({ formData }) => {
    for (const [name, value] of [...formData]) if (value === "") formData.delete(name);
  });

// A curve that says where its points are is drawn by uPlot in place of the picture, and again at another width.
const drawn = [...document.querySelectorAll("[data-curve]")].map((place) =>
  fetch(place.dataset.curve).then((answer) => (answer.ok ? answer.json() : null)).then((found) => {
    if (!found || found.x.length < 2 || typeof uPlot === "undefined") return;
    const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const draw = () => {
      const data = [found.x], series = [{ label: "version" }], bands = [];
      found.curves.forEach((curve, number) => {
        const stroke = colour(`--c${number % 6}`), at = data.length;
        data.push(curve.mean, curve.high, curve.low);
        series.push(
          { label: curve.name, stroke, width: 2, points: { show: found.x.length <= 60 }, dash: number >= 6 ? [6, 4] : [] },
          { label: `${curve.name}, at most`, stroke: "transparent", points: { show: false } },
          { label: `${curve.name}, at least`, stroke: "transparent", points: { show: false } });
        bands.push({ series: [at + 1, at + 2], fill: `${stroke}22` });
      });
      const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
      const plot = new uPlot({
        width: place.clientWidth, height: Math.round(Math.min(340, Math.max(200, place.clientWidth * 0.4))),
        scales: { x: { time: false }, y: { range: (u, low, high) => [Math.min(0, low), Math.max(1, high) * 1.02] } },
        axes: [axis, axis], series, bands, cursor: { y: false },
        legend: { show: false },
      }, data);
      place.replaceChildren(plot.root);
      plot.root.setAttribute("role", "img");
      plot.root.setAttribute("aria-label", place.dataset.about || "curves by version");
      return plot;
    };
    let plot = draw();
    new ResizeObserver(() => {
      if (Math.abs(plot.width - place.clientWidth) > 4) plot.setSize({ width: place.clientWidth, height: plot.height });
    }).observe(place);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { plot.destroy(); plot = draw(); });
  }));
// Whoever looks at the page by program waits for this.
Promise.allSettled(drawn).then((all) => {
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
