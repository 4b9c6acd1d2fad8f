// The studio as people use it: its tabs and fields by the names that are read out.

import assert from "node:assert/strict";
import { opened, press } from "../../report/browser/opened.mjs";

export const LONG = 400_000; // milliseconds that a job may take on a busy machine

const GRADIOS_WARNING = "Method not implemented."; // with every file that is uploaded

// A page of the studio, opened and filled. `quiet()` says that nothing has gone wrong on it.
export async function visited(browser, address, options) {
  const { page, context, troubles } = await opened(browser, address, options);
  page.setDefaultTimeout(60_000);
  await page.locator("#bar .bar").waitFor();
  await page.locator("#stage .studio").waitFor();
  const ours = () => troubles.filter((text) => text !== GRADIOS_WARNING);
  return { page, context, quiet: () => assert.deepEqual(ours(), [], "errors in the console, or requests to elsewhere") };
}

export const tab = async (page, name) => {
  await press(page.getByRole("tab", { name, exact: true }));
  await page.waitForTimeout(300);
};
export const field = (page, id) => page.locator(`#${id}`).locator("textarea, input").first();
export const fill = async (page, id, value) => {
  const one = field(page, id);
  await one.fill(String(value));
  await one.blur();
};
export const button = (page, name) => page.getByRole("button", { name, exact: true }).and(page.locator(":visible"));
export const drawn = (page) => page.locator("#stage .figures").waitFor({ timeout: LONG });
export const pill = (page, kind, state) => page.locator(`#${kind}-panel .pill.${state}`).waitFor({ timeout: LONG });

export const choose = async (page, id, name) => {
  await press(field(page, id));
  await press(page.getByRole("option", { name, exact: true }));
};
