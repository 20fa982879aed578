// The list of Services: search, rows, and one of them opened.

const list = {search: "", only: false, before: [], after: "", next: "", open: "", rows: new Map(), detail: null};

const servicesPath = () => `/services.json?search=${encodeURIComponent(list.search)}`
  + `${list.only ? "&only=findings" : ""}${list.after ? `&after=${encodeURIComponent(list.after)}` : ""}`;

/** Asks for what is to be shown, and shows it. */
async function refreshServices(get) {
  const path = servicesPath(), answer = await get(path);
  // Somebody went on typing meanwhile.
  if (path !== servicesPath()) return;
  list.next = answer.next;
  say("matching", answer.matching === answer.total ? many(answer.total, "Service")
    : `${answer.matching.toLocaleString("en")} of ${many(answer.total, "Service")}`);
  byId("previous").hidden = !list.after;
  byId("next").hidden = !answer.next;
  showRows(answer.rows);
  if (list.open) await refreshDetail(get);
}

function search(words, only) {
  Object.assign(list, {search: words, only, before: [], after: ""});
}

function turn(forward) {
  if (forward) {
    list.before.push(list.after);
    list.after = list.next;
  } else {
    list.after = list.before.pop() || "";
  }
}

/** Puts rows in order and keeps those that are there, so that focus stays. */
function showRows(rows) {
  const body = byId("service-rows"), wanted = [];
  const known = list.rows;
  list.rows = new Map();
  for (const each of rows) {
    const key = `${each.namespace}/${each.name}`;
    const row = known.get(key) || newRow(key);
    list.rows.set(key, row);
    updateRow(row, each);
    wanted.push(row);
    if (key === list.open) wanted.push(list.detail);
  }
  if (list.open && !list.rows.has(list.open)) close();
  for (const each of [...body.children]) if (!wanted.includes(each)) each.remove();
  wanted.forEach((each, index) => {
    if (body.children[index] !== each) body.insertBefore(each, body.children[index] || null);
  });
}

function newRow(key) {
  const button = el("button", "open", key);
  button.type = "button";
  button.setAttribute("aria-expanded", "false");
  button.addEventListener("click", () => toggle(key));
  return el("tr", "service", el("td", "", button, el("span", "quiet type")), el("td", "mono"), el("td", "count"), el("td", ""));
}

function updateRow(row, service) {
  const [name, where, count, finding] = row.children;
  fill(name.querySelector(".type"), service.type, (type) => [el("div", "", type)]);
  const ports = service.ports.map((each) => `${each.port}/${each.protocol}${each.nodePort ? ` (node port ${each.nodePort})` : ""}`);
  const ips = [...service.clusterIps, ...service.otherIps];
  const shortly = (all) => (all.length > 4 ? [...all.slice(0, 4), `and ${all.length - 4} more`] : all);
  fill(where, [ips, ports], () => [el("div", "", shortly(ips).join(", ")), el("div", "quiet", shortly(ports).join(", "))]);
  const notReady = service.endpoints - service.ready;
  const words = service.endpoints
    ? [`${service.used} used`, `${service.ready} ready${notReady ? `, ${notReady} not` : ""}`] : ["none"];
  fill(count, [service.used, words], () => [
    el("span", service.used ? "" : "tag wait", words[0]), words[1] ? el("div", "quiet", words[1]) : ""]);
  fill(finding, [service.finding, service.findings], ([reason, all]) => (reason
    ? [el("span", `tag ${findingKind(reason)}`, reason), all > 1 ? el("div", "quiet", `and ${all - 1} more`) : ""] : []));
}

function close() {
  const row = list.rows.get(list.open);
  if (row) row.querySelector(".open").setAttribute("aria-expanded", "false");
  if (list.detail) list.detail.remove();
  Object.assign(list, {open: "", detail: null});
}

function toggle(key) {
  const again = list.open === key;
  close();
  if (again) return;
  const cell = el("td", "", el("p", "quiet", "Asking…"));
  cell.colSpan = 4;
  Object.assign(list, {open: key, detail: el("tr", "detail", cell)});
  const row = list.rows.get(key);
  row.querySelector(".open").setAttribute("aria-expanded", "true");
  row.after(list.detail);
  refreshDetail(ask).catch(trouble);
}

async function refreshDetail(get) {
  const key = list.open, detail = list.detail;
  let answer;
  try {
    answer = await get(`/service.json?name=${encodeURIComponent(key)}`);
  } catch (error) {
    if (!error.answered) throw error;
    fill(detail.firstChild, error.message, (text) => [el("p", "", text)]);
    return;
  }
  if (list.detail === detail) fill(detail.firstChild, answer, detailOf);
}

const VERDICTS = {delivered: "good", partly: "wait", rejected: "bad", dropped: "bad", unserved: "bad", untouched: "wait"};

function detailOf(details) {
  const parts = details.answer.notes.map((each) => el("p", "wait", each));
  for (const each of details.answer.services) {
    parts.push(el("h3", "", `${each.family}: `, el("span", `tag ${VERDICTS[each.verdict]}`, each.verdict)));
    if (each.reason) parts.push(el("p", "", each.reason));
    parts.push(...each.notes.map((note) => el("p", "wait", note)));
    for (const port of each.ports) parts.push(...portOf(details, each, port));
  }
  return parts;
}

function portOf(details, service, port) {
  const named = `${port.port}/${port.protocol}`;
  const counted = details.connections.find((each) =>
    each.family === service.family && each.port === (port.name || "") && each.protocol === port.protocol);
  const connections = counted ? `${many(counted.connections, "new connection")} since the start`
    : details.counts ? "connections not counted (not among the busiest Services)" : "connections are not counted";
  const affinity = port.affinitySeconds ? `; clients stay with their endpoint for ${port.affinitySeconds} s` : "";
  const parts = [el("h4", "", `Port ${port.name ? `${port.name} ` : ""}${named}`), el("p", "quiet", `${connections}${affinity}`)];
  parts.push(el("ul", "", ...port.places.map((each) => el("li", "",
    el("code", "", each.frontend), ` ${each.kind}: `, el("span", `tag ${VERDICTS[each.verdict]}`, each.verdict), ` ${each.how}`))));
  const lists = [["cluster", "Endpoints used", port.cluster],
    ["local", "Endpoints used for traffic that stays on this node", port.local]];
  for (const [name, title, endpoints] of lists) {
    const leftOut = port[`${name}LeftOut`];
    if (!endpoints.length && !leftOut.length) continue;
    parts.push(el("h4", "", `${title} (${number(details, service, named, name, endpoints)})`));
    parts.push(el("ul", "used", ...endpoints.map((each) => usedItem(each, endpoints.length, counted))));
    if (!leftOut.length) continue;
    parts.push(el("h4", "", `Left out (${number(details, service, named, `${name}LeftOut`, leftOut)})`));
    parts.push(el("ul", "left-out", ...leftOut.map(leftOutItem)));
  }
  return parts;
}

/** How many there are: the list that was sent may be cut. */
function number(details, service, port, name, sent) {
  const cut = details.cut.find((each) => each.family === service.family && each.port === port && each.list === name);
  return cut ? `${sent.length} shown of ${cut.all}` : String(sent.length);
}

function usedItem(endpoint, of, counted) {
  const at = `${host(endpoint.address)}:${endpoint.port}`;
  const seen = counted && at in counted.endpoints ? `, ${many(counted.endpoints[at], "connection")}` : "";
  return el("li", "", el("span", "good", "✓ "), el("code", "", at), ` on ${endpoint.node || "an unknown node"}${seen}`);
}

function leftOutItem(endpoint) {
  const at = endpoint.port ? `${host(endpoint.address)}:${endpoint.port}` : endpoint.address;
  const where = endpoint.node ? ` on ${endpoint.node}` : "";
  return el("li", "", el("span", "bad", "✗ "), el("code", "", at), where, ": ", el("strong", "", endpoint.why),
    endpoint.detail && ` (${endpoint.detail})`);
}
