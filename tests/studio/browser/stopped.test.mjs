// A search that is interrupted: by a kill of the studio, and by its own button. STUDIO_PART says which part of it this is.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launched, press } from "../../report/browser/opened.mjs";
import { LONG, button, fill, pill, tab, visited } from "./studio.mjs";

const { STUDIO, STUDIO_PART } = process.env;
let browser, page, quiet;
before(async () => {
  browser = await launched();
  ({ page, quiet } = await visited(browser, STUDIO));
  await tab(page, "Find");
});
after(async () => {
  quiet();
  await browser?.close();
});
const tried = async () => Number((await page.locator("#search-panel h3 small", { hasText: "masks tried" }).textContent()).match(/(\d+) masks? tried/)[1]);

if (STUDIO_PART === "begin") {
  test("a search begins, and has found something", async () => {
    // Long enough that the second part can stop it on any machine before it ends.
    await fill(page, "find-count", 16);
    await fill(page, "find-budgets", "4-9");
    await page.locator("#find-cost", { hasText: "16 prompts" }).waitFor();
    await press(button(page, "Search"));
    await page.locator("#search-panel .strips > div").nth(1).waitFor({ timeout: LONG });
  });
} else {
  test("after the kill it is there, and resumed; stopped, and resumed again to its end", async () => {
    await pill(page, "search", "interrupted");
    const known = await tried();
    assert.ok(known >= 2, "what the ledger knows is shown");
    await press(button(page, "Resume"));
    await press(button(page, "Stop")); // as soon as it can be: its full runs alone take longer than that
    await pill(page, "search", "stopped");
    await page.locator("#search-panel", { hasText: "resume it to go on from there" }).waitFor();
    await press(button(page, "Resume"));
    await pill(page, "search", "done");
    assert.ok((await tried()) > known, "it has gone on, beyond what the ledger knew");
    assert.equal(await page.locator("#search-panel .strips > div").count(), 6);
  });
}
