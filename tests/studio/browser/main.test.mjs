// Every tab's main path, on tiny-flux. `test_studio.py` starts the studio, and this in one width and theme.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { drag, launched, press } from "../../report/browser/opened.mjs";
import { LONG, button, choose, drawn, fill, field, pill, tab, visited } from "./studio.mjs";

const { STUDIO, STUDIO_OUT } = process.env;
let browser, page, context, quiet;
before(async () => {
  browser = await launched();
  ({ page, context, quiet } = await visited(browser, STUDIO));
});
after(async () => {
  quiet();
  await browser?.close();
});
const saved = async (target) => {
  const [download] = await Promise.all([page.waitForEvent("download"), press(target)]);
  const path = join(STUDIO_OUT, download.suggestedFilename());
  await download.saveAs(path);
  return path;
};
const figure = (name) => page.locator("#stage .figures div", { hasText: name }).locator("dd").textContent();

test("look: a picture beside its full run", async () => {
  await drawn(page);
  assert.match(await figure("PSNR"), /^\d+\.\d dB$/);
  assert.match(await figure("Model calls"), /^\d+ of 28$/);
  assert.match(await figure("Seconds"), /^\d+\.\d\d of \d+\.\d\d$/);
});

test("look: the line is dragged, and moved by keys", async () => {
  const box = await page.locator("#stage .stage").boundingBox(), split = page.locator("#stage .split");
  const y = box.y + box.height / 2;
  await drag(page, context, { x: box.x + box.width / 2, y }, { x: box.x + box.width * 0.2, y });
  assert.ok(Math.abs(Number(await split.inputValue()) - 20) <= 3, await split.inputValue());
  const before = Number(await split.inputValue());
  await split.focus();
  await page.keyboard.press("ArrowRight");
  assert.equal(Number(await split.inputValue()), before + 1);
  assert.equal(await split.getAttribute("aria-valuetext"), `${before + 1} % full run`);
});

test("look: the difference is shown and hidden", async () => {
  const shown = page.locator("#stage .difference");
  assert.equal(await shown.isVisible(), false);
  await press(button(page, "Difference × 5"));
  assert.equal(await shown.isVisible(), true);
  assert.equal(await button(page, "Difference × 5").getAttribute("aria-pressed"), "true");
  await press(button(page, "Difference × 5"));
  assert.equal(await shown.isVisible(), false);
});

test("look: the slider of budgets, by keys, and what is drawn ahead", async () => {
  await page.waitForFunction(() => document.querySelectorAll("#tabs .marks .full").length === document.querySelectorAll("#tabs .marks li").length, null, { timeout: LONG });
  const rail = page.locator("#budget"), split = await page.locator("#stage .split").inputValue();
  await rail.focus();
  await page.keyboard.press("Home");
  await page.waitForFunction(() => document.querySelector("#stage .tag.right")?.textContent === "2 calls");
  const low = parseFloat(await figure("PSNR"));
  await page.keyboard.press("End");
  await page.waitForFunction(() => document.querySelector("#stage .tag.right")?.textContent === "12 calls");
  assert.ok(parseFloat(await figure("PSNR")) > low);
  assert.equal(await rail.getAttribute("aria-valuetext"), "12 of 28 calls");
  assert.equal(await page.locator("#stage .split").inputValue(), split, "the line stays where it was");
});

test("look: what cannot be drawn is refused at its field", async () => {
  await fill(page, "look-prompts", "");
  await press(button(page, "Draw"));
  await page.getByRole("alert").filter({ hasText: "Write a prompt" }).waitFor();
  await fill(page, "look-prompts", "red apple\nblue car\ngreen tree");
  await press(button(page, "Draw"));
  await page.getByRole("alert").filter({ hasText: "Write a prompt" }).waitFor({ state: "detached" });
  await fill(page, "look-seed", -1);
  await press(button(page, "Draw"));
  await page.getByRole("alert").filter({ hasText: "the seed is -1. Give 0 or more." }).waitFor();
  await fill(page, "look-seed", 0);
  await press(button(page, "Draw"));
  await page.getByRole("alert").filter({ hasText: "the seed is -1" }).waitFor({ state: "detached" });
});

test("look: several prompts, the worst first", async () => {
  await page.waitForFunction(() => document.querySelectorAll("#grid .card").length === 3 && !document.querySelector("#grid").textContent.includes("not drawn"), null, { timeout: LONG });
  const values = (await page.locator("#grid .card small").allTextContents()).map(parseFloat);
  assert.deepEqual(values, [...values].sort((one, other) => one - other));
  const last = page.locator("#grid .card").nth(2), prompt = await last.locator("> span").last().textContent();
  await press(last);
  await page.waitForFunction((text) => document.querySelector("#stage .caption").textContent === text, prompt);
  assert.equal(await last.getAttribute("aria-pressed"), "true");
});

test("look: another size and guidance, which a reload leaves as they are", async () => {
  await press(page.locator("#look-more button").first());
  assert.equal(await field(page, "look-width").getAttribute("placeholder"), "64", "what an empty field stands for");
  await fill(page, "look-width", 63);
  await press(button(page, "Draw"));
  await page.locator("#look-more").getByRole("alert").filter({ hasText: "draws multiples of 16. Try 64." }).waitFor();
  await fill(page, "look-width", 96);
  await fill(page, "look-guidance", 2);
  await press(button(page, "Draw"));
  await page.locator("#stage .caption", { hasText: "width 96, guidance 2" }).waitFor();
  await drawn(page);
  assert.deepEqual(await page.locator("#stage .after img").evaluate((each) => [each.naturalWidth, each.naturalHeight]), [96, 64]);
  await page.reload();
  await page.locator("#stage .caption", { hasText: "width 96, guidance 2" }).waitFor();
  assert.equal(await field(page, "look-width").inputValue(), "96");
  for (const id of ["look-width", "look-guidance"]) await fill(page, id, "");
  await press(button(page, "Draw"));
  await page.waitForFunction(() => !document.querySelector("#stage .caption").textContent.includes("width"));
});

test("find: a bad prompt file says why at its field", async () => {
  await tab(page, "Find");
  await choose(page, "find-source", "a file");
  await page.locator("#find-file input[type=file]").setInputFiles(join(STUDIO_OUT, "bad.jsonl"));
  await page.getByRole("alert").filter({ hasText: "line 2 of bad.jsonl is not JSON" }).waitFor();
  await press(button(page, "Search"));
  assert.equal(await page.locator("#search-panel .pill").count(), 0, "nothing has begun");
  await choose(page, "find-source", "the model's own");
  await page.getByRole("alert").filter({ hasText: "bad.jsonl" }).waitFor({ state: "detached" });
});

test("find: bad budgets are refused, good ones are priced", async () => {
  await fill(page, "find-budgets", "five");
  await page.getByRole("alert").filter({ hasText: "cannot be read" }).waitFor();
  await fill(page, "find-budgets", "5-8");
  await fill(page, "find-count", 12);
  await page.locator("#find-cost", { hasText: /12 prompts, about [\d,]+ sample-calls/ }).waitFor();
});

test("find: a search, seen live; reloaded and paused in the middle; and from a second tab", async () => {
  await press(button(page, "Search"));
  await pill(page, "search", "running");
  await page.locator("#search-panel .strips > div").first().waitFor({ timeout: LONG });
  await press(button(page, "Pause"));
  await pill(page, "search", "paused");
  await page.reload();
  await tab(page, "Find");
  await pill(page, "search", "paused");
  assert.equal(await field(page, "find-budgets").inputValue(), "5-8", "the fields are as they were left");

  const second = await visited(browser, STUDIO);
  await second.page.locator("#bar", { hasText: "search-1 paused" }).waitFor();
  await fill(second.page, "look-prompts", "a picture that is not drawn yet");
  await press(button(second.page, "Draw"));
  await second.page.locator("#stage", { hasText: "Waiting: a search is paused and keeps the model" }).waitFor();
  await tab(second.page, "Find");
  await press(button(second.page, "Continue"));
  await pill(second.page, "search", "running");
  await pill(page, "search", "running");
  second.quiet();
  await second.context.close(); // which does not end the job

  await pill(page, "search", "done");
  assert.equal(await page.locator("#search-panel .strips > div").count(), 4);
  assert.equal(await page.locator("#search-panel .chart.wide .point").count(), 4);
  assert.match(await page.locator("#search-panel .chart.wide").getAttribute("aria-label"), /^5 calls: \d+\.\d ± \d+\.\d dB \(3 samples\)/);
});

test("look: what was found is looked at", async () => {
  await tab(page, "Look");
  await page.waitForFunction(() => document.querySelectorAll("#tabs .marks li").length === 4);
  await drawn(page);
});

test("compare: the report grows", async () => {
  await tab(page, "Compare");
  await fill(page, "compare-count", 2);
  await fill(page, "compare-budgets", "6");
  await page.getByRole("checkbox", { name: "budcache", exact: true }).uncheck();
  await page.getByRole("checkbox", { name: "search-1", exact: true }).check();
  await page.locator("#compare-cost", { hasText: "2 prompts" }).waitFor();
  await press(button(page, "Compare"));
  const report = page.frameLocator("#report iframe");
  await report.locator("h1").waitFor({ timeout: LONG });
  await page.locator("#compare-panel", { hasText: "Finished: full run at 28, fewer steps at 6" }).waitFor({ timeout: LONG });
  await pill(page, "compare", "done");
  await report.locator(".bar", { hasText: "3 ways" }).waitFor();
});

test("take away: the ladder, a line of Python, an export, the hub", async () => {
  await tab(page, "Take away");
  const ladder = JSON.parse(readFileSync(await saved(page.getByRole("link", { name: "Download the ladder" }).or(button(page, "Download the ladder")).first())));
  assert.deepEqual(ladder.rungs.map((rung) => rung.mask.split("1").length - 1), [5, 6, 7, 8]);
  assert.match(await page.locator("#python code").textContent(), /budcache\.applied\(pipe, "search-1\.json", budget=8\)/);
  await press(button(page, "Copy"));
  await button(page, "Copied").waitFor();
  await press(button(page, "Export"));
  await page.locator("#exported", { hasText: "is written" }).waitFor();
  assert.equal(readFileSync(await saved(page.getByRole("link", { name: "Download the export" }).or(button(page, "Download the export")).first())).subarray(0, 2).toString(), "PK");
  await fill(page, "hub-name", "nonsense");
  await press(button(page, "Push to the hub"));
  await page.getByRole("alert").filter({ hasText: "is no name on the hub" }).waitFor();
  await fill(page, "hub-name", "me/mine");
  await press(button(page, "Push to the hub"));
  await page.locator("#pushed", { hasText: "Published: " }).waitFor();
});
