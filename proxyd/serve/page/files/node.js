// The banner, the families, Findings, and what is around the node.

const MARKS = {good: "✓", wait: "…", bad: "✗", unknown: "?"};
const COLOURS = {good: "1c8a4b", wait: "c77d00", bad: "c8242b", unknown: "7d8b99"};

/** What the node report comes to: a class, a word and a sentence for who does not see it. */
function verdict(report) {
  if (report.ready) return ["good", "Ready"];
  const writing = report.families.filter((each) => each.writing);
  const failing = report.families.filter((each) => each.lastError);
  if (failing.length) return ["bad", "Not ready"];
  const first = report.families.every((each) => !each.lastSuccess) || writing.length;
  return first ? ["wait", "Coming up"] : ["bad", "Not ready"];
}

function showBanner(kind, word, name, problems) {
  byId("banner").className = kind;
  say("mark", MARKS[kind]);
  say("state", word);
  say("node", name);
  fill(byId("problems"), problems, (all) => all.map((each) => el("li", "", each)));
  document.title = `${MARKS[kind]} ${word}: ${name || "proxyd"}`;
  const circle = `<circle cx="4" cy="4" r="4" fill="#${COLOURS[kind]}"/>`;
  const dot = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 8 8">${circle}</svg>`;
  const icon = `data:image/svg+xml,${encodeURIComponent(dot)}`;
  if (byId("icon").getAttribute("href") !== icon) byId("icon").setAttribute("href", icon);
  say("announced", `${word}${problems.length ? `: ${problems.length} reasons` : ""}`);
}

function showNode(state) {
  const report = state.report, me = report.identity;
  const [kind, word] = verdict(report);
  showBanner(kind, word, me.node, report.problems);
  const nft = me.nftables ? `, nftables ${me.nftables}` : "";
  say("about", `proxyd ${me.version}, ${me.mode} mode, kernel ${me.kernel}${nft}; since ${me.started}`);
  fill(byId("family-cards"), report.families.map((each) => [each, ago(each.lastSuccess, state.now)]), (all) =>
    all.map(([each, when]) => familyCard(each, when)));
  showFindings(state);
  showAround(report);
}

/** How long ago an RFC 3339 time was, coarsely: the cards are not to change at each refresh. */
function ago(text, now) {
  if (!text) return "never";
  const seconds = Math.max(0, now - Date.parse(text) / 1000);
  return seconds < 10 ? "just now" : `${duration(seconds < 60 ? Math.floor(seconds / 10) * 10 : seconds)} ago`;
}

function familyState(family) {
  if (family.lastError) return ["bad", "failing"];
  if (family.writing) return ["wait", family.lastSuccess ? "being rewritten" : "first sync"];
  if (!family.lastSuccess) return ["wait", "not written yet"];
  if (family.waitingSeconds !== null) return ["wait", "changes wait"];
  return ["good", "up to date"];
}

function familyCard(family, when) {
  const [kind, word] = familyState(family);
  const card = el("article", `card ${kind}`,
    el("h3", "", family.family, el("span", "state", `${MARKS[kind]} ${word}`)),
    el("p", "numbers", `${many(family.services, "Service")}, ${many(family.endpoints, "endpoint")}`));
  if (family.writing) card.append(...progress(family));
  if (family.lastError) card.append(el("p", "error", family.lastError));
  if (family.waitingSeconds !== null && !family.writing) {
    card.append(el("p", "", `a change has waited for ${duration(family.waitingSeconds)}`));
  }
  card.append(el("p", "quiet", `complete write: ${when}`));
  if (family.lastPassSeconds !== null) {
    card.append(el("p", "quiet", `last pass: ${duration(family.lastPassSeconds)}, ${many(family.lastPassOperations, "operation")}`));
  }
  if (family.lastFailure && !family.lastError) {
    card.append(el("p", "quiet", `last failure ${family.lastFailureAt}: ${family.lastFailure}`));
  }
  const ports = family.nodePortAddresses;
  const on = ports === null ? "all addresses" : ports.join(", ") || "no address";
  card.append(el("p", "quiet",
    `node ports on ${on}; local pods: ${family.localPods}; zone ${family.zone || "unknown"}`));
  return card;
}

function progress(family) {
  const {written, of, seconds} = family.writing;
  const bar = el("progress", "");
  bar.max = Math.max(of, 1);
  bar.value = written;
  bar.setAttribute("aria-label", `${family.family}: Services written`);
  return [bar, el("p", "", `${written.toLocaleString("en")} of ${many(of, "Service")} written, for ${duration(seconds)}`)];
}

const GRAVE = new Set(["kernel-refused", "internal-error", "unreadable-object", "node-not-found", "configuration-refused"]);
const findingKind = (reason) => (GRAVE.has(reason) ? "bad" : "wait");

function showFindings(state) {
  const counts = Object.entries(state.reasons).sort().map(([reason, count]) => `${count} × ${reason}`);
  say("finding-summary", state.findings ? counts.join(", ") : "Nothing is refused or in conflict.");
  byId("found").hidden = !state.findings;
  say("found", many(state.findings, "finding"));
  fill(byId("finding-list"), [state.report.findings, state.findings], ([findings, all]) => {
    const items = findings.map((each) => el("li", "",
      el("span", `tag ${findingKind(each.reason)}`, each.reason), ` ${each.kind} `, el("strong", "", each.object),
      el("p", "quiet", each.message)));
    const more = all - findings.length;
    return more ? [...items, el("li", "quiet", `and ${more} more: proxyd status -o json has all`)] : items;
  });
}

function showAround(report) {
  fill(byId("advice"), report.advice, (all) => all.map((each) => el("li", "", each)));
  const watches = report.watches.map((each) =>
    [each.resource, each.connected, each.lastEventSecondsAgo === null, each.errors]);
  fill(byId("watches"), watches, (all) =>
    (all.length ? all.map(watchItem) : [el("li", "quiet", "none: Services come from files")]));
  const facts = report.identity.detected.map((each) => [each.name, each.value, each.why]);
  for (const each of report.limits) facts.push([each.name, `${each.used} of ${each.most}`, "up to half a minute old"]);
  const held = `${report.foreignChains} chains, ${report.foreignSets} sets`;
  facts.push(["tables of others", report.foreignTables.join(", ") || "none", held]);
  fill(byId("detected"), facts, (all) => all.flatMap(([name, value, why]) =>
    [el("dt", "", name), el("dd", "", value || "–", el("span", "quiet", ` (${why})`))]));
}

function watchItem([resource, connected, silent, errors]) {
  const troubles = Object.entries(errors).map(([kind, count]) => `${count} × ${kind}`).join(", ");
  const word = connected ? "up" : silent ? "nothing heard yet" : "down";
  return el("li", "", el("strong", "", resource), " ", el("span", `tag ${connected ? "good" : "bad"}`, word),
    troubles && el("span", "quiet", ` errors: ${troubles}`));
}
