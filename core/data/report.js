"use strict";
// Replaces the still pictures of the page by live plots and players; makes no request.

const dark = matchMedia("(prefers-color-scheme: dark)");
const touch = matchMedia("(hover: none)");

/** The page's colours as a Plotly template, so that plots follow dark and light. */
function template() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = {
    gridcolor: colour("--line"),
    linecolor: colour("--muted"),
    zerolinecolor: colour("--line"),
    tickcolor: colour("--muted"),
    tickfont: { color: colour("--muted") },
    title: { standoff: 10 },
    automargin: true,
  };
  return {
    layout: {
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: colour("--ink") },
      paper_bgcolor: colour("--paper"),
      plot_bgcolor: colour("--paper"),
      colorway: ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7F7F7F"],
      margin: { l: 16, r: 16, t: 32, b: 16 },
      legend: { orientation: "h", x: 0, y: 1.02, xanchor: "left", yanchor: "bottom" },
      annotationdefaults: {
        font: { color: colour("--muted") },
        bgcolor: colour("--paper"),
        borderpad: 1,
        showarrow: false,
      },
      hoverlabel: { font: { family: getComputedStyle(document.body).fontFamily } },
      modebar: {
        bgcolor: "rgba(0,0,0,0)",
        color: colour("--muted"),
        activecolor: colour("--accent"),
      },
      xaxis: axis,
      yaxis: axis,
      scene: { xaxis: axis, yaxis: axis, zaxis: axis },
    },
  };
}

function content(figure) {
  return JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
}

async function plot(figure) {
  const { data, layout } = content(figure);
  const target = figure.querySelector(".canvas");
  const options = {
    responsive: true,
    displaylogo: false,
    displayModeBar: touch.matches ? false : "hover",
    showSendToCloud: false,
    plotlyServerURL: "",
    modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
  };
  if (touch.matches && layout.dragmode === undefined) layout.dragmode = false; // a finger scrolls
  const draw = () =>
    Plotly.react(target, data, { ...layout, autosize: true, template: template() }, options);
  target.hidden = false;
  try {
    await draw();
  } catch (error) {
    target.hidden = true;
    throw error;
  }
  figure.classList.add("drawn");
  dark.addEventListener("change", draw);
}

async function player(figure) {
  const { pictures, order, fps } = content(figure);
  const canvas = figure.querySelector("canvas");
  const button = figure.querySelector("button");
  const slider = figure.querySelector("input");
  const output = figure.querySelector("output");
  const images = await Promise.all(
    pictures.map(async (uri) => {
      const image = new Image();
      await new Promise((resolve, reject) => {
        image.onload = resolve;
        image.onerror = () => reject(new Error("a frame cannot be read"));
        image.src = uri;
      });
      return image;
    }),
  );
  const last = order.length - 1;
  let frame = 0;
  let started = null; // the time at which frame 0 would have been shown; null while paused

  function show(number) {
    frame = number;
    canvas.getContext("2d").drawImage(images[order[frame]], 0, 0);
    slider.value = frame;
    output.textContent = `${frame + 1} / ${order.length}`;
  }
  function pause() {
    started = null;
    button.textContent = "Play";
  }
  function tick() {
    if (started === null) return;
    const played = ((performance.now() - started) * fps) / 1000; // frames, with a fraction
    show(Math.min(last, Math.max(frame, Math.floor(played))));
    if (frame === last) pause();
    else setTimeout(tick, ((frame + 1 - played) * 1000) / fps);
  }
  function play() {
    if (frame === last) show(0);
    started = performance.now() - (frame * 1000) / fps;
    button.textContent = "Pause";
    tick();
  }
  button.addEventListener("click", () => (started === null ? play() : pause()));
  slider.addEventListener("input", () => {
    pause();
    show(Number(slider.value));
  });
  show(0);
  figure.querySelector(".stage").hidden = false;
  figure.classList.add("drawn");
}

/** What a cell is sorted by: its number if it has one, else its text. */
function key(row, column) {
  const cell = row.cells[column];
  const number = cell.querySelector("data");
  return number ? Number(number.value) : cell.textContent.trim().toLowerCase();
}

/** Empty cells last, numbers before texts, whichever way the rest is sorted. */
function compare(a, b, sign) {
  const kinds = [a, b].map((value) => (value === "—" || value === "" ? 2 : Number(typeof value === "string")));
  if (kinds[0] !== kinds[1]) return kinds[0] - kinds[1];
  return sign * (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
}

/** Gives a long table a filter and heads that sort it. */
function catalogue(table) {
  const rows = [...table.tBodies[0].rows];
  const bar = document.createElement("div");
  const label = document.createElement("label");
  const input = document.createElement("input");
  const output = document.createElement("output");
  bar.className = "filter";
  input.type = "search";
  label.append("Filter ", input);
  bar.append(label, output);
  table.closest(".scroll").before(bar);
  function filter() {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
    output.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
  }
  input.addEventListener("input", filter);
  filter();
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      rows.sort((a, b) => compare(key(a, column), key(b, column), down ? -1 : 1));
      table.tBodies[0].append(...rows);
    });
  });
}
document.querySelectorAll("table.catalogue").forEach(catalogue);

const drawings = [
  ...[...document.querySelectorAll("figure.plot")].map(plot),
  ...[...document.querySelectorAll("figure.player")].map(player),
];
Promise.allSettled(drawings).then((results) => {
  document.documentElement.classList.remove("scripted");
  for (const { reason } of results.filter((result) => result.status === "rejected")) {
    console.error(reason); // its still picture stays
  }
});
