// Makes the pages live and gives them keys. Without it every page works the same.
"use strict";

const every = 2000;
const main = document.getElementById("main");
const live = document.getElementById("live");
const read = document.getElementById("read");
let readAt = read && read.textContent; // of what is shown
let tag = null;
let here = -1;

const marked = () => document.querySelectorAll("main :is(input[name=of], input[name=all]):checked");
const rows = () => [...document.querySelectorAll("main tbody tr")];

// A page is left alone while its reader looks at another tab, marks rows, writes, or
// has come into it by the keyboard: new rows would move what is under the hand.
function isIdle() {
  const at = document.activeElement;
  const typing = at && (at.matches("input, select, textarea") || main.contains(at));
  return !document.hidden && marked().length === 0 && !typing && !document.querySelector("dialog[open]");
}

async function refresh() {
  if (!isIdle()) return;
  try {
    const headers = tag ? { "If-None-Match": tag } : {};
    const answer = await fetch(location.href, { headers, redirect: "manual", cache: "no-store" });
    if (answer.status === 304) {
      const at = new Date(answer.headers.get("Date")).toISOString().slice(11, 19);
      read.textContent = `${readAt}, unchanged at ${at} UTC`;
      live.textContent = "";
      return;
    }
    if (answer.status === 401 || answer.type === "opaqueredirect") {
      live.textContent = "· Your session has ended: reload to log in.";
      return;
    }
    if (!answer.ok) throw new Error(String(answer.status));
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (!isIdle()) return;
    tag = answer.headers.get("ETag"); // of what is shown: what was not taken is asked for again
    page.querySelectorAll("noscript").forEach((instead) => instead.remove()); // the parser has no scripts
    main.replaceChildren(...page.getElementById("main").childNodes);
    readAt = read.textContent = page.getElementById("read").textContent;
    live.textContent = "";
    show(here);
  } catch (problem) {
    live.textContent = "· Not up to date: the console does not answer.";
  }
}

// show marks the row that the keys are at.
function show(index) {
  const all = rows();
  all.forEach((row) => row.classList.remove("here"));
  here = Math.max(-1, Math.min(index, all.length - 1));
  if (here >= 0) {
    all[here].classList.add("here");
    all[here].scrollIntoView({ block: "nearest" });
  }
}

const places = { n: "/", r: "/runs", i: "/intents", c: "/incidents", s: "/sagas", p: "/providers", d: "/doctor", w: "/workers", t: "/tenants", o: "/operations", f: "/config" };
let going = false;

function help() {
  let box = document.querySelector("dialog");
  if (!box) {
    box = document.createElement("dialog");
    const lines = [["/", "search"], ["j  k", "next, previous row"], ["x", "mark the row"], ["Enter", "open the row"],
      ["g n", "what is wrong now"], ["g r", "runs"], ["g i", "intents"], ["g c", "incidents"], ["g s", "rollbacks"], ["g p", "providers"], ["g d", "doctor"], ["g w", "workers"], ["g t", "tenants"], ["g o", "operations"], ["g f", "configuration"], ["?", "this help"]];
    for (const [keys, what] of lines) {
      const line = document.createElement("p");
      const key = document.createElement("kbd");
      key.textContent = keys;
      line.append(key, " " + what);
      box.append(line);
    }
    document.body.append(box);
  }
  box.showModal();
}

// A key opens something or marks it. None changes anything in the outbox.
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input:not([type=checkbox]), select, textarea")) return;
  const row = rows()[here];
  if (going) {
    going = false;
    if (places[event.key]) location.href = places[event.key];
    return;
  }
  switch (event.key) {
    case "/": document.getElementById("q").focus(); break;
    case "j": show(here + 1); break;
    case "k": show(Math.max(0, here - 1)); break;
    case "g": going = true; break;
    case "?": help(); break;
    case "x": {
      const box = row && row.querySelector("input[type=checkbox]");
      if (box) { box.checked = !box.checked; row.classList.toggle("marked", box.checked); }
      break;
    }
    case "Enter": {
      const link = row && document.activeElement === document.body && (row.querySelector("[data-open] a") || row.querySelector("a"));
      if (!link) return;
      link.click();
      break;
    }
    default: return;
  }
  event.preventDefault();
});

document.addEventListener("change", (event) => {
  if (event.target.matches("input[name=of]")) event.target.closest("tr").classList.toggle("marked", event.target.checked);
});

if (main && live && "renews" in main.dataset) setInterval(refresh, every);
