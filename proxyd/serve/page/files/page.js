// Asks again and again while somebody can see the page, and hands the answers out.

const EVERY = 5000, PATIENCE = 10000;
const page = {paused: false, timer: 0, running: false, failedSince: 0, node: "", ticks: 0};

/** Gives the JSON at a path. An error with ``answered`` is what proxyd said instead. */
async function ask(path) {
  const response = await fetch(path, {cache: "no-store", signal: AbortSignal.timeout(PATIENCE)});
  if (response.ok) return response.json();
  const error = new Error((await response.text()).slice(0, 500) || `status ${response.status}`);
  error.answered = true;
  throw error;
}

async function refresh() {
  clearTimeout(page.timer);
  if (page.running) return;
  page.running = true;
  try {
    const state = await ask("/status.json");
    page.node = state.report.identity.node;
    showNode(state);
    await refreshServices(ask);
    if (!takeHistory(await ask(historyPath()))) takeHistory(await ask(historyPath()));
    showHistory();
    page.failedSince = 0;
    page.ticks += 1;
    say("updated", `updated ${clock(state.now)}`);
  } catch (error) {
    trouble(error);
  }
  page.running = false;
  schedule();
}

/** What is shown gets old: says so where everybody looks. */
function trouble(error) {
  page.failedSince ||= Date.now() / 1000;
  const why = error.answered ? error.message : "it does not answer";
  const since = `asking proxyd fails since ${clock(page.failedSince)} (${why}); what follows is older`;
  showBanner("unknown", "No news", page.node, [since]);
}

function schedule() {
  clearTimeout(page.timer);
  if (!page.paused && document.visibilityState === "visible") page.timer = setTimeout(refresh, EVERY);
}

function searchAgain() {
  search(byId("search").value, byId("only").checked);
  refreshServices(ask).catch(trouble);
}

/** The arrow keys go from the search through the rows; Escape goes back. */
function onKey(event) {
  const input = byId("search"), buttons = [...document.querySelectorAll("#service-rows .open")];
  const at = buttons.indexOf(document.activeElement), inSearch = document.activeElement === input;
  const step = {ArrowDown: 1, ArrowUp: -1}[event.key];
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (step && (at >= 0 || (inSearch && step === 1))) {
    event.preventDefault();
    if (at + step < 0) input.focus();
    else if (buttons[at + step]) buttons[at + step].focus();
  } else if (event.key === "Escape" && !inSearch && byId("services").contains(document.activeElement)) {
    if (list.open) close();
    input.focus();
  } else if (event.key === "/" && document.activeElement.tagName !== "INPUT") {
    event.preventDefault();
    input.focus();
  }
}

let typing = 0;
byId("search").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(searchAgain, 200);
});
byId("only").addEventListener("change", searchAgain);
byId("search-form").addEventListener("submit", (event) => {
  event.preventDefault();
  searchAgain();
});
for (const id of ["previous", "next"]) {
  byId(id).addEventListener("click", () => {
    turn(id === "next");
    refreshServices(ask).catch(trouble);
  });
}
byId("pause").addEventListener("click", () => {
  page.paused = !page.paused;
  byId("pause").setAttribute("aria-pressed", String(page.paused));
  say("pause", page.paused ? "Go on" : "Pause");
  if (page.paused) schedule();
  else refresh();
});
document.addEventListener("keydown", onKey);
document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "visible" && !page.paused) refresh();
  else schedule();
});
refresh();
