// Shows what `kubectl bulkhead` reads. Names and messages in it are other people's: they become text, never markup.
"use strict";

const INTERVAL = 15000;
// Who waits for longer is told that what is shown is old.
const PATIENCE = 60000;
let state = null;

function element(name, classes, ...content) {
  const made = document.createElement(name);
  if (classes) made.className = classes;
  made.append(...content.filter((part) => part !== null && part !== undefined));
  return made;
}

function fill(id, parts, none) {
  document.getElementById(id).replaceChildren(...(parts.length ? parts : [none]));
}

function bytes(count) {
  if (count === null || count === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) { count /= 1024; unit += 1; }
  return `${count >= 100 || unit === 0 ? Math.round(count) : count.toFixed(1)} ${units[unit]}`;
}

function counted(count, word) {
  return `${count} ${word}${count === 1 ? "" : "s"}`;
}

// Parts of a whole, each beginning where the one before ends.
function bar(whole, parts, label) {
  const made = element("div", "bar");
  made.setAttribute("role", "img");
  made.setAttribute("aria-label", label);
  made.title = label;
  for (const [kind, size] of parts) {
    const part = element("div", kind);
    part.style.width = `${whole > 0 ? Math.min(100, Math.max(0, (100 * size) / whole)) : 0}%`;
    made.append(part);
  }
  return made;
}

// A part of the state that the user may not read, or that failed.
function unread(part) {
  const why = state[part].error;
  return why ? element("p", "failed", why) : null;
}

function rows(part) {
  return state[part].value ?? [];
}

function showChecks() {
  const checks = state.doctor.value?.checks ?? [];
  const order = { failed: 0, note: 1 };
  const wanted = checks.filter((check) => check.outcome in order);
  wanted.sort((one, other) => order[one.outcome] - order[other.outcome]);
  const item = (check) => element("li", check.outcome, element("strong", "", `${check.name}: `), check.message);
  const none = unread("doctor") ?? element("li", "quiet", `Nothing: none of ${counted(checks.length, "check")} fails.`);
  fill("checks", wanted.map(item), none);
  const failed = wanted.filter((check) => check.outcome === "failed").length;
  const size = `${counted(rows("nodes").length, "node")}, ${counted(rows("volumes").length, "volume")}`;
  const verdict = state.doctor.error ? "not checked" : failed ? counted(failed, "failure") : "nothing fails";
  const summary = document.getElementById("summary");
  summary.className = failed || state.doctor.error ? "failed" : "";
  summary.textContent = `${state.driver}: ${size}, ${verdict}. Read at ${new Date().toLocaleTimeString()}.`;
}

function pool(found) {
  if (found.unknown) {
    const known = `${bytes(found.availableBytes)} free as published: ${found.unknown}`;
    return element("div", "pool", element("span", "", "unknown"), element("span", "note", known));
  }
  const rest = Math.max(0, found.promisedBytes - found.usedBytes);
  const label = `${bytes(found.usedBytes)} used, ${bytes(found.promisedBytes)} promised, ` +
    `${bytes(found.availableBytes)} free of ${bytes(found.totalBytes)}`;
  const check = state.doctor.value?.checks.find((check) => check.name === `pool ${found.pool} on ${found.node}`);
  const conditions = [...found.conditions, ...(found.cordoned ? ["cordoned"] : [])].join(", ");
  return element("div", "pool",
    element("span", "", element("strong", "", found.pool), ` ${counted(found.volumes ?? "?", "volume")} `,
      conditions ? element("span", check?.outcome === "failed" ? "failed" : "note", conditions) : null),
    bar(found.totalBytes, [["used", found.usedBytes], ["promised", rest]], label),
    element("span", "quiet", label));
}

// What stands still while a node is away, and is lost if it does not come back.
function impact(node) {
  const volumes = rows("volumes").filter((volume) => volume.node === node);
  const pods = new Set(volumes.flatMap((volume) => (volume.pods ?? []).map((pod) => `${volume.claim}/${pod}`)));
  const kept = bytes(rows("snapshots").filter((kept) => kept.node === node).reduce((sum, kept) => sum + (kept.bytes ?? 0), 0));
  return `Without this node: ${counted(volumes.length, "volume")} out of reach, ${counted(pods.size, "pod")} without them, ` +
    `snapshots of ${kept}.`;
}

function showNodes() {
  const made = rows("nodes").map((node) => {
    const pools = rows("pools").filter((found) => found.node === node.name).map(pool);
    const ready = node.state === "ready";
    return element("article", "",
      element("h3", "", node.name, " ", element("span", ready ? "quiet" : "failed", node.state),
        ready || !node.notReady ? null : ` ${node.notReady}`),
      ...pools, element("p", "quiet", impact(node.name)));
  });
  const refused = unread("pools");
  fill("nodes", refused ? [refused, ...made] : made, unread("nodes") ?? element("p", "quiet", "No node has the driver."));
}

function volume(found) {
  const condition = found.condition;
  const used = found.usedBytes === null ? [element("span", "quiet", "not measured")] :
    [bar(found.bytes, [["used", found.usedBytes]], `${bytes(found.usedBytes)} of ${bytes(found.bytes)}`), bytes(found.usedBytes)];
  return element("tr", "",
    element("td", "", found.claim ?? "–"), element("td", "", found.node), element("td", "", bytes(found.bytes)),
    element("td", "", ...used),
    element("td", condition && condition.state !== "ok" ? "failed" : "",
      condition ? [condition.state, condition.message].filter(Boolean).join(": ") : "unknown"),
    element("td", "", (found.pods ?? []).join(", ") || "–"), element("td", "quiet", found.name));
}

function snapshot(found) {
  return element("tr", "",
    element("td", "", found.volumeSnapshot ?? "–"), element("td", "", found.node ?? "–"), element("td", "", bytes(found.bytes)),
    element("td", found.state === "Ready" ? "" : "note", found.state), element("td", "quiet", found.snapshot ?? "–"));
}

function line(columns, content) {
  const cell = element("td", "", content);
  cell.colSpan = columns;
  return element("tr", "", cell);
}

function showVolumes() {
  const wanted = document.getElementById("filter").value.toLowerCase();
  const admits = (found) => JSON.stringify(found).toLowerCase().includes(wanted);
  const none = unread("volumes") ?? (wanted ? "None of these words." : "There are none.");
  fill("volumes", rows("volumes").filter(admits).map(volume), line(7, none));
}

function show() {
  showChecks();
  showNodes();
  showVolumes();
  fill("snapshots", rows("snapshots").map(snapshot), line(5, unread("snapshots") ?? "There are none."));
}

async function read() {
  try {
    const answer = await fetch("state.json", { cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
    if (!answer.ok) throw new Error(`it answered ${answer.status}`);
    state = await answer.json();
    show();
  } catch (error) {
    const summary = document.getElementById("summary");
    summary.className = "failed";
    summary.textContent = `What is shown is old: kubectl bulkhead ui does not answer (${error.message}).`;
  }
  setTimeout(read, INTERVAL);
}

document.getElementById("filter").addEventListener("input", () => state && showVolumes());
read();
