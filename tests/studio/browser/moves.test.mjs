// Two hundred moves of the slider leave nothing behind in the page. What they leave in the server is looked at from outside.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launched } from "../../report/browser/opened.mjs";
import { LONG, drawn, visited } from "./studio.mjs";

const MOVES = 200, MOST = 20_000_000; // bytes that a page's own memory may grow by
let browser, page, context, quiet;
before(async () => {
  browser = await launched();
  ({ page, context, quiet } = await visited(browser, process.env.STUDIO));
  await drawn(page);
});
after(async () => {
  quiet();
  await browser?.close();
});

test("the page's memory is bounded", async () => {
  await page.waitForFunction(() => document.querySelectorAll("#tabs .marks .full").length === document.querySelectorAll("#tabs .marks li").length, null, { timeout: LONG });
  const session = await context.newCDPSession(page);
  const used = async () => {
    await session.send("HeapProfiler.collectGarbage");
    const { metrics } = await session.send("Performance.getMetrics");
    const of = (name) => metrics.find((each) => each.name === name).value;
    return { heap: of("JSHeapUsedSize"), nodes: of("Nodes"), listeners: of("JSEventListeners") };
  };
  await session.send("Performance.enable");
  const rail = page.locator("#budget"), count = await page.locator("#tabs .marks li").count();
  const move = async (number) => {
    const to = number % count;
    await rail.evaluate((each, value) => { each.value = value; each.dispatchEvent(new Event("input", { bubbles: true })); }, to);
    const budget = await page.locator("#tabs .marks li").nth(to).evaluate((each) => parseInt(each.textContent, 10));
    await page.waitForFunction((text) => document.querySelector("#stage .tag.right")?.textContent === text, `${budget} calls`);
  };
  for (let number = 0; number < 20; number += 1) await move(number);
  const before = await used();
  for (let number = 0; number < MOVES; number += 1) await move(number);
  const now = await used();
  assert.ok(now.heap - before.heap < MOST, `${before.heap} to ${now.heap} bytes`);
  assert.ok(now.nodes < 2 * before.nodes + 500, `${before.nodes} to ${now.nodes} nodes`);
  assert.ok(now.listeners < 2 * before.listeners + 200, `${before.listeners} to ${now.listeners} listeners`);
});
