// The same page at a width and in a theme: it fits, can be read by everybody, and is pictured for the documentation.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { join } from "node:path";
import { accessible, launched, phone, theme, width } from "../../report/browser/opened.mjs";
import { drawn, tab, visited } from "./studio.mjs";

const { STUDIO, STUDIO_OUT } = process.env;
let browser, page, quiet;
before(async () => {
  browser = await launched();
  ({ page, quiet } = await visited(browser, STUDIO));
  await drawn(page);
});
after(async () => {
  quiet();
  await browser?.close();
});

for (const name of ["Look", "Find", "Compare", "Take away"]) {
  test(`${name} at ${width} pixels, ${theme}`, async () => {
    await tab(page, name);
    await page.waitForTimeout(1200); // the next answer of the server
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), width, "it fits the width");
    const light = await page.evaluate(() => getComputedStyle(document.body).backgroundColor.match(/\d+/g)[0] > 128);
    assert.equal(light, theme === "light");
    await accessible(page, name); // our own markup, and Gradio's
    await page.screenshot({ path: join(STUDIO_OUT, `${name.split(" ")[0].toLowerCase()}-${phone ? "phone" : "wide"}-${theme}.png`), fullPage: true });
  });
}

test("every tab is reached by keys", async () => {
  await page.getByRole("tab", { name: "Take away", exact: true }).focus();
  for (const name of ["Look", "Find", "Compare", "Take away"]) {
    const one = page.getByRole("tab", { name, exact: true });
    await one.focus();
    await page.keyboard.press("Enter");
    await page.waitForFunction((text) => [...document.querySelectorAll("[role=tab]")].find((each) => each.textContent.trim() === text)?.getAttribute("aria-selected") === "true", name);
  }
});
