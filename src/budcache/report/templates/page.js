"use strict";
// What the whole page shares: theme, copying, saving, printing. Everything that needs a script is hidden without one.

const one = (selector, root = document) => root.querySelector(selector);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const say = (text) => { one("#said").textContent = text; };

function save(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  say(`${name} was saved.`);
}

// What only a script can do is said only where there is one.
all(".hint").forEach((each) => { each.hidden = false; });

// Who asks for another budget asks for it everywhere: switches with the same question follow each other.
for (const tabs of all(".tabs")) {
  const titled = (group, title) => all(":scope > label", group).find((label) => label.textContent === title)?.control;
  const others = () => all(".tabs").filter((group) => group !== tabs && group.ariaLabel === tabs.ariaLabel);
  tabs.addEventListener("change", ({ target }) => {
    if (target.parentElement !== tabs) return;
    for (const input of others().map((group) => titled(group, target.labels[0].textContent))) {
      if (!input || input.checked) continue;
      input.checked = true;
      input.dispatchEvent(new Event("change", { bubbles: true }));
    }
  });
}

// The theme: what the system says, until somebody chooses.
{
  const root = document.documentElement, button = one("#theme"), system = matchMedia("(prefers-color-scheme: dark)");
  const keep = { // a file opened from disk may have no storage, or lose it: then the tab at least remembers
    get: () => { try { return localStorage.getItem("theme") ?? history.state?.theme; } catch { return history.state?.theme; } },
    set: (theme) => {
      history.replaceState({ ...history.state, theme }, "");
      try { localStorage.setItem("theme", theme); } catch { /* then only the tab keeps it */ }
    },
  };
  let chosen = keep.get();
  const dark = () => (chosen ? chosen === "dark" : system.matches);
  const apply = () => {
    root.style.colorScheme = chosen ?? "";
    button.setAttribute("aria-pressed", dark());
  };
  button.hidden = false;
  button.addEventListener("click", () => { chosen = dark() ? "light" : "dark"; keep.set(chosen); apply(); });
  system.addEventListener("change", apply);
  apply();
}

// The line of code.
if (one("#copy")) {
  const button = one("#copy"), code = one(".code code");
  const select = () => { // where the clipboard is refused, the text is at least marked, ready to be copied
    getSelection().selectAllChildren(code);
    return document.execCommand("copy");
  };
  button.hidden = false;
  button.addEventListener("click", async () => {
    let copied = true;
    try { await navigator.clipboard.writeText(code.textContent); } catch { copied = select(); }
    button.textContent = copied ? "Copied" : "Marked";
    say(copied ? "The code was copied." : "The code is marked.");
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
}

// Exports: the numbers lie in the page, compressed.
{
  const unpacked = async () => {
    const bytes = Uint8Array.from(atob(one("#data").textContent), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  };
  const cell = (value) => (/[",\n\r]/.test(value ?? "") ? `"${String(value).replaceAll('"', '""')}"` : value ?? "");
  const csv = (rows) => [Object.keys(rows[0]), ...rows.map(Object.values)].map((row) => row.map(cell).join(",")).join("\n") + "\n";
  // Where a method lies between two settings, both stand there, each with its share of the row.
  const settings = (entry, share) => (entry.second
    ? [[entry, 1 - share], [{ ...entry.second, method: entry.method }, share]] : [[entry, 1]]);
  const both = ({ comparison, shares }) => comparison.entries.flatMap((entry, i) => settings(entry, shares[i]));
  const samples = (data) => both(data).flatMap(([entry, share]) => data.comparison.prompts.map((prompt, i) => {
    const values = Object.fromEntries(Object.keys(data.comparison.entries.at(-1).values).map((name) => [name, entry.values[name]?.[i]]));
    const { method, budget, knob } = entry;
    return { method, budget, setting: knob ?? "", share, sample: i, prompt, calls: entry.calls[i], seconds: entry.seconds[i], ...values };
  }));
  const exports = {
    csv: ["comparison.csv", "text/csv", (data) => csv(data.rows)],
    samples: ["samples.csv", "text/csv", (data) => csv(samples(data))],
    json: ["comparison.json", "application/json", (data) => JSON.stringify(data.comparison, null, 2)],
    policy: ["", "application/json", (data) => data.policy[1]], // under its own name
  };
  for (const button of all("[data-export]")) {
    const [name, type, made] = exports[button.dataset.export];
    button.parentElement.hidden = false;
    button.addEventListener("click", async () => {
      const data = await unpacked();
      save(name || data.policy[0], new Blob([made(data)], { type }));
    });
  }
}

// On paper nothing is folded.
{
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = all("details:not([open])");
    opened.forEach((details) => { details.open = true; });
  });
  addEventListener("afterprint", () => opened.forEach((details) => { details.open = false; }));
}
