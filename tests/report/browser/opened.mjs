// Chromium with a page in it, at the width and in the theme that the environment names.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { chromium } from "playwright-core";

const { CHROMIUM, PAGE_WIDTH, PAGE_THEME } = process.env;
const FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"];
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

export const width = Number(PAGE_WIDTH), theme = PAGE_THEME, phone = width < 700;

export async function launched() {
  return chromium.launch({ executablePath: CHROMIUM, args: FLAGS });
}

// A tab with a page in it, from a file or a server. Whatever goes wrong on it, and whatever else it asks the network for, is kept.
export async function opened(browser, where, options = {}) {
  const context = await browser.newContext({
    viewport: { width, height: phone ? 844 : 900 }, colorScheme: theme, hasTouch: phone, isMobile: phone, reducedMotion: "reduce", ...options,
  });
  const page = await context.newPage(), troubles = [];
  page.on("console", (message) => { if (["error", "warning"].includes(message.type())) troubles.push(message.text()); });
  page.on("pageerror", (error) => troubles.push(error.message));
  const address = /^http/.test(where) ? where : `file://${where}`, own = address.replace(/^file:.*/, "file://");
  page.on("request", (request) => { if (/^(https?|wss?|ftp):/.test(request.url()) && !request.url().startsWith(own)) troubles.push(`asked for ${request.url()}`); });
  await page.goto(address);
  return { page, context, troubles };
}

export const press = (target) => (phone ? target.tap() : target.click());

// A drag from one point to another: a finger on the phone, the mouse elsewhere.
export async function drag(page, context, from, to) {
  const steps = [0.2, 0.4, 0.6, 0.8, 1].map((part) => ({ x: from.x + part * (to.x - from.x), y: from.y + part * (to.y - from.y) }));
  if (phone) {
    const session = await context.newCDPSession(page);
    const touch = (type, touchPoints) => session.send("Input.dispatchTouchEvent", { type, touchPoints });
    await touch("touchStart", [from]);
    for (const point of steps) await touch("touchMove", [point]);
    await touch("touchEnd", []);
  } else {
    await page.mouse.move(from.x, from.y);
    await page.mouse.down();
    for (const point of steps) await page.mouse.move(point.x, point.y);
    await page.mouse.up();
  }
}

// Axe's rules, contrast AA among them, on what is seen now.
export async function accessible(page, where) {
  await page.evaluate(AXE);
  const { violations, passes } = await page.evaluate(() => globalThis.axe.run(document, {
    runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
  }));
  assert.ok(passes.some((rule) => rule.id === "color-contrast"), `${where}: contrast was looked at`);
  const found = violations.map((rule) => `${rule.id}: ${rule.nodes.map((node) => `${node.target} ${node.failureSummary}`).join("; ")}`);
  assert.deepEqual(found, [], where);
}
