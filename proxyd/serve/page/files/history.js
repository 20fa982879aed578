// The last changes: a chart of how long each took, and what they were.

const KEPT = 60, LISTED = 8;
const history_ = {run: "", last: 0, entries: []};

const historyPath = () => `/history.json?after=${history_.last}&limit=${KEPT}`;

/** Takes an answer of /history.json. Another run counts from 1 again. False: ask again from the beginning. */
function takeHistory(answer) {
  if (history_.run && answer.run !== history_.run) {
    Object.assign(history_, {run: "", last: 0, entries: []});
    return false;
  }
  history_.run = answer.run;
  history_.last = answer.last;
  history_.entries = [...history_.entries, ...answer.entries].slice(-KEPT);
  return true;
}

const took = (entry) => Math.max(0, ...entry.families.map((each) =>
  each.waitedSeconds + each.workSeconds + each.kernelSeconds));
const failed = (entry) => entry.families.some((each) => each.error);
const full = (entry) => entry.families.some((each) => each.full);

function showHistory() {
  const entries = history_.entries.filter((each) => each.families.length);
  const times = entries.map(took).sort((a, b) => a - b);
  const failures = entries.filter(failed).length;
  say("history-summary", times.length
    ? `Last ${many(times.length, "pass", "passes")}, from the event to the kernel: half within `
      + `${duration(times[Math.floor((times.length - 1) / 2)])}, slowest ${duration(times[times.length - 1])}; `
      + `${failures || "none"} failed`
    : "Nothing has been written yet.");
  fill(byId("chart"), entries.map((each) => each.sequence), () => (entries.length ? [chart(entries)] : []));
  fill(byId("entries"), history_.entries.slice(-LISTED), (all) => all.toReversed().map(entryItem));
}

/** Bars on a logarithmic scale: 0.1 ms to the slowest, at least to 1 s. */
function chart(entries) {
  const width = 460, height = 130, left = 52, bottom = 6, top = 8;
  const most = Math.max(1, ...entries.map(took)), least = 0.0001;
  const y = (seconds) => {
    const part = Math.log(Math.max(seconds, least) / least) / Math.log(most / least);
    return height - bottom - part * (height - bottom - top);
  };
  const summary = byId("history-summary").textContent;
  const words = `Time from event to kernel of the last ${entries.length} passes, oldest first. ${summary}`;
  const svg = drawn("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": words});
  for (let mark = 0.001; mark <= most; mark *= 10) {
    svg.append(drawn("line", {class: "grid", x1: left, x2: width, y1: y(mark), y2: y(mark)}),
      drawn("text", {x: left - 6, y: y(mark) + 4, "text-anchor": "end"},
        mark < 0.9 ? `${Math.round(mark * 1000)} ms` : `${Math.round(mark)} s`));
  }
  const step = Math.min(24, (width - left) / KEPT * Math.max(1, KEPT / Math.max(entries.length, 20)));
  entries.forEach((each, index) => {
    const at = y(took(each)), kind = failed(each) ? "failed" : full(each) ? "full" : "change";
    const title = drawn("title", {}, `${clock(each.at)}: ${duration(took(each))}, ${cause(each)}`);
    const box = {x: left + index * step + 1, width: step - 2, y: at, height: Math.max(2, height - bottom - at)};
    svg.append(drawn("rect", {class: kind, ...box}, title));
  });
  return svg;
}

function cause(entry) {
  const first = entry.events[0];
  if (!first) return "retry";
  const more = entry.events.length - 1 + entry.eventsMore;
  const words = [first.origin, first.object, first.action, more ? `and ${more} more` : ""];
  return words.filter(Boolean).join(" ");
}

function about(entry) {
  const named = entry.services.slice(0, 3), more = entry.services.length - named.length + entry.servicesMore;
  return named.length ? `${named.join(", ")}${more ? ` and ${many(more, "Service")} more` : ""}` : "no Service";
}

function entryItem(entry) {
  const errors = entry.families.filter((each) => each.error);
  const written = entry.families.map((each) => `${each.family}: ${each.full ? "everything, " : ""}${many(each.operations, "operation")}`);
  return el("li", "",
    el("p", "first", el("span", "", cause(entry)), el("span", errors.length ? "bad" : "", errors.length ? "failed" : duration(took(entry)))),
    el("p", "quiet", `${clock(entry.at)}, ${about(entry)}; ${written.join("; ") || "nothing to write"}`),
    ...errors.map((each) => el("p", "bad", `${each.family}: ${each.error}`)));
}
