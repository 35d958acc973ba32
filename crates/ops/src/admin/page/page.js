// Renews the page, draws the rates of the last minutes, and lists sessions. Everything it shows was escaped
// by truepeer, or is set as text here. It asks nobody but the server that the page is from.

const INTERVAL = 2000; // milliseconds
const POINTS = 150; // five minutes
const LEAST = 30; // a picture is one minute wide, and grows to five
const MOST_SESSIONS = 500;
const MOST_ROWS = 200;
const RATES = ["open", "taken", "refused", "up", "down"]; // the first is a number, the others grow

const find = (selector) => document.querySelector(selector);
const past = Object.fromEntries(RATES.map((name) => [name, []]));
let before = null;
let sessions = [];
let isWhole = true; // all sessions that match are in the list

const count = (number) => number.toLocaleString("en-US", { maximumFractionDigits: number < 10 ? 1 : 0 });

function bytes(number) {
  if (number < 1024) return `${Math.round(number)} B`;
  let unit = -1;
  for (; number >= 999.5 || unit < 0; unit++) number /= 1024;
  return `${number.toFixed(number < 99.95 ? 1 : 0)} ${["KiB", "MiB", "GiB", "TiB", "PiB"][unit]}`;
}

function age(seconds) {
  const two = (number) => String(Math.floor(number)).padStart(2, "0");
  if (seconds < 60) return `${Math.floor(seconds)}s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m${two(seconds % 60)}s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)}h${two((seconds / 60) % 60)}m`;
  return `${Math.floor(seconds / 86400)}d${two((seconds / 3600) % 24)}h`;
}

function written(name, rate) {
  if (name === "open") return count(rate);
  return `${name === "up" || name === "down" ? bytes(rate) : count(rate)}/s`;
}

// A gap stands where nobody answered.
function remember(values) {
  const now = performance.now();
  const isSame = values && before && before.values.pid === values.pid;
  for (const name of RATES) {
    const more = isSame ? Number(values[name]) - Number(before.values[name]) : 0;
    const rate = isSame ? (Math.max(0, more) * 1000) / (now - before.at) : null;
    past[name].push(name === "open" && values ? Number(values.open) : rate);
    if (past[name].length > POINTS) past[name].shift();
  }
  before = values ? { values, at: now } : null;
}

function draw(name) {
  const card = find(`[data-rate=${name}]`);
  const rates = past[name];
  const known = rates.filter((rate) => rate !== null);
  if (!card || known.length === 0) return;
  card.querySelector("b").textContent = written(name, known.at(-1));
  const most = Math.max(...known);
  const width = Math.max(LEAST, rates.length) - 1;
  const x = (at) => ((width - rates.length + 1 + at) / width) * POINTS;
  const y = (rate) => 34 - (most > 0 ? (rate / most) * 30 : 0);
  let line = "";
  let area = "";
  let start = null;
  rates.forEach((rate, at) => {
    if (rate === null) return;
    const [right, up] = [x(at), y(rate)].map((number) => number.toFixed(1));
    const isFirst = at === 0 || rates[at - 1] === null;
    line += `${isFirst ? "M" : "L"}${right} ${up}`;
    if (isFirst) start = right;
    area += isFirst ? `M${right} 36L${right} ${up}` : `L${right} ${up}`;
    if (at === rates.length - 1 || rates[at + 1] === null) area += `L${right} 36L${start} 36Z`;
  });
  const svg = card.querySelector("svg");
  svg.replaceChildren(shape("path", { class: "area", d: area }), shape("path", { class: "spark", d: line }));
  card.querySelector("small").textContent = `at most ${written(name, most)} in ${age(((width + 1) * INTERVAL) / 1000)}`;
}

function shape(name, attributes = {}) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
  return made;
}

// What has not changed stays, so that text can be selected.
function renew(fresh) {
  document.title = fresh.title;
  for (const part of fresh.querySelectorAll("[data-live]")) {
    const old = document.getElementById(part.id);
    if (old && old.outerHTML !== part.outerHTML) old.replaceWith(document.adoptNode(part));
  }
  const cards = fresh.querySelector("#numbers");
  return cards ? { ...cards.dataset } : null;
}

function cell(name, text, kind) {
  const made = document.createElement("td");
  made.dataset.name = name;
  if (kind) made.className = kind;
  made.textContent = text;
  return made;
}

function row(session) {
  const made = document.createElement("tr");
  const client = cell("client", "", "client");
  const shown = document.createElement("span");
  shown.textContent = session.client ?? "not known yet";
  client.append(shown);
  for (const [name, value] of Object.entries(session.tags ?? {})) {
    const tag = document.createElement("span");
    tag.className = "tag";
    tag.textContent = `${name} ${value}`;
    shown.append(tag);
  }
  made.append(
    client,
    cell("sender", session.sender),
    cell("listener", session.listener),
    cell("backend", session.backend ?? "–"),
    cell("stage", session.stage),
    cell("up", `${bytes(session.rate_up)}/s`, "n"),
    cell("down", `${bytes(session.rate_down)}/s`, "n"),
    cell("age", age(session.age_seconds), "n"),
  );
  return made;
}

// What is searched in: addresses, stage and tags, as `truepeer top` does.
function text(session) {
  const { client, sender, backend, listener, stage, kind, tags } = session;
  const named = Object.entries(tags ?? {}).map(([name, value]) => `${name}=${value} ${value}`);
  return [client, sender, backend, listener, stage, kind, ...named].join(" ").toLowerCase();
}

const wanted = () => find("#search").value.trim().toLowerCase();

function show() {
  const search = wanted();
  const isIt = (session) => search === "" || isAddress(search) || text(session).includes(search);
  const rate = (session) => session.rate_up + session.rate_down;
  const found = sessions.filter(isIt).sort((one, other) => rate(other) - rate(one));
  find("#sessions tbody").replaceChildren(...found.slice(0, MOST_ROWS).map(row));
  const more = found.length > MOST_ROWS ? `, the first ${MOST_ROWS} are shown` : "";
  const of = isWhole ? "" : ` of the first ${count(sessions.length)}; a whole address finds it among all`;
  find("#found").textContent = `${count(found.length)} ${search ? "found" : "open"}${of}${more}`;
  for (const line of document.querySelectorAll("tr[data-about]")) {
    line.hidden = search !== "" && !line.dataset.about.toLowerCase().includes(search);
  }
}

// The server looks for these among all sessions.
const isAddress = (search) => /^(\d+\.\d+\.\d+\.\d+|[0-9a-f]*:[0-9a-f:.]*:[0-9a-f.]*)(\/\d+)?$/.test(search);

async function list() {
  const search = wanted();
  const client = isAddress(search) ? `client=${encodeURIComponent(search)}&` : "";
  const answer = await fetch(`/sessions?${client}limit=${MOST_SESSIONS}`);
  if (wanted() !== search) return; // another search has begun meanwhile
  sessions = answer.ok ? await answer.json() : [];
  isWhole = sessions.length < MOST_SESSIONS;
  show();
}

async function poll() {
  const news = find("#news");
  try {
    const answer = await fetch("/");
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    remember(renew(new DOMParser().parseFromString(await answer.text(), "text/html")));
    await list();
    news.textContent = "";
    news.dataset.polls = Number(news.dataset.polls ?? 0) + 1;
  } catch (error) {
    remember(null);
    news.textContent = `no answer, asking again (${error.message})`;
  }
  RATES.forEach(draw);
  setTimeout(poll, INTERVAL);
}

find("#search").addEventListener("input", () => {
  show();
  list().catch(() => {}); // the next poll says that nobody answers
});
find("#sessions").hidden = false;
remember({ ...find("#numbers").dataset });
list().catch(() => {});
setTimeout(poll, INTERVAL);
