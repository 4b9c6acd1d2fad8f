// A page of as many methods as there are, on a screen, a phone and paper. `test_browser.py` makes it and starts this.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launched, opened, phone } from "./opened.mjs";

const { PAGE } = process.env;
let browser;
before(async () => { browser = await launched(); });
after(() => browser?.close());

test("a page of many methods fits a screen, a thumb and a sheet of paper", async () => {
  const { page, troubles } = await opened(browser, PAGE);
  const table = page.locator(".scroll.tall:visible"), room = () => table.evaluate((each) => each.clientWidth - each.scrollWidth);
  if (phone) {
    const heights = await page.locator(".look:visible, summary:visible, .tabs > label:visible").evaluateAll((all) => all.map((each) => each.getBoundingClientRect().height));
    assert.ok(heights.length > 5 && heights.every((height) => height >= 40), heights.join());
    assert.ok(await page.locator("pre:visible").evaluateAll((all) => all.every((each) => each.scrollWidth <= each.clientWidth)), "code wraps");
  } else {
    assert.ok(await room() >= 0, "no column is out of sight");
  }
  assert.equal(await page.locator("thead .further:visible").count(), 9);
  const held = await table.locator("tbody th").first().evaluate((each) => [getComputedStyle(each).borderBottomWidth, getComputedStyle(each.closest("table")).borderCollapse]);
  assert.deepEqual(held, ["1px", "separate"], "lines stay below names that stay");
  await page.emulateMedia({ media: "print" });
  await page.setViewportSize({ width: 688, height: 900 }); // A4 less its margins
  assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), 688, "printed as large as it is");
  assert.ok(await room() >= 0);
  assert.equal(await table.locator("thead th:visible").count(), 2 + 6, "ours and the strongest");
  const names = await page.locator(".card:visible > span:not(.frame)").evaluateAll((all) => all.map((each) => each.scrollWidth - each.clientWidth));
  assert.ok(names.length === 15 && names.every((over) => over <= 0), "names of cards are whole");
  const [stage, ...cards] = await page.locator(".show:visible, .card:visible").evaluateAll((all) => all.map((each) => each.getBoundingClientRect().toJSON()));
  assert.ok(cards.some((card) => card.left > stage.right && card.top < stage.bottom), "cards stand beside the stage");
  assert.ok(cards.some((card) => card.left < stage.right && card.top >= stage.bottom), "and below it");
  assert.deepEqual(troubles, []);
});

test("where points lie close together, the one that is tapped is read", async () => {
  const { page, troubles } = await opened(browser, PAGE), chart = page.locator(".chart:visible").first();
  await chart.evaluate((each) => each.scrollIntoView({ block: "center" }));
  const points = await chart.locator(".point").evaluateAll((all) => all.map((each) => {
    const { x, y, width: across } = each.querySelector(".touch").getBoundingClientRect();
    return { x: x + across / 2, y: y + across / 2, note: each.dataset.note };
  }));
  const alone = points.filter((one) => points.every((other) => other === one || Math.hypot(one.x - other.x, one.y - other.y) > 2));
  assert.ok(alone.length > 5, `${alone.length} of ${points.length}`);
  for (const { x, y, note } of alone) {
    await page.mouse.click(x, y);
    assert.equal(await page.locator(".readout:visible").first().textContent(), note);
  }
  assert.deepEqual(troubles, []);
});
