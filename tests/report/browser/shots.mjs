// Pictures of a page for the documentation: `docs/make_images.py` starts this and puts them together.

import { join } from "node:path";
import { launched, opened } from "./opened.mjs";

const [file, out] = process.argv.slice(2);
const browser = await launched();

const desktop = await opened(browser, file, { viewport: { width: 1280, height: 1300 }, colorScheme: "light", hasTouch: false, isMobile: false });
await desktop.page.screenshot({ path: join(out, "desktop.png") });
const curves = desktop.page.locator("article", { has: desktop.page.locator(".series") }).first(); // how the search went is another
await curves.screenshot({ path: join(out, "curves.png") });

const phone = await opened(browser, file, { viewport: { width: 390, height: 844 }, colorScheme: "dark", hasTouch: true, isMobile: true, deviceScaleFactor: 2 });
await phone.page.locator("article", { has: phone.page.locator(".series") }).first().evaluate((each) => each.scrollIntoView());
await phone.page.evaluate(() => scrollBy(0, -12));
await phone.page.screenshot({ path: join(out, "phone.png") });
await browser.close();
