// A model of videos: the full run and the budget play together.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launched, press } from "../../report/browser/opened.mjs";
import { button, drawn, visited } from "./studio.mjs";

let browser, page, quiet;
before(async () => {
  browser = await launched();
  ({ page, quiet } = await visited(browser, process.env.STUDIO));
});
after(async () => {
  quiet();
  await browser?.close();
});
// Where each strip of frames stands, in frames.
const places = () => page.locator("#stage .frame:visible img").evaluateAll((all) => all.map((each) => Math.round(
  -new DOMMatrix(getComputedStyle(each).transform).m41 / each.parentElement.clientWidth) + 0));

test("both players show the same frame, wherever it is moved to, and play", async () => {
  await drawn(page);
  const at = page.locator("#stage .at"), last = Number(await at.getAttribute("max"));
  assert.equal(last, 16, "17 frames");
  assert.deepEqual(await places(), [0, 0]);
  await at.focus();
  await page.keyboard.press("End");
  assert.deepEqual(await places(), [last, last]);
  assert.equal(await at.getAttribute("aria-valuetext"), "frame 17 of 17");
  await page.keyboard.press("Home");
  await press(button(page, "Play"));
  await page.waitForFunction(() => Number(document.querySelector("#stage .at").value) > 2);
  await press(button(page, "Pause"));
  const [one, other] = await places();
  assert.equal(one, other);
  assert.equal(String(one), await at.inputValue());
});
