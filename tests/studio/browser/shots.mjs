// The pictures of the studio in the documentation: node shots.mjs ADDRESS FOLDER

import { join } from "node:path";
import { launched } from "../../report/browser/opened.mjs";
import { drawn, tab, visited } from "./studio.mjs";

const [address, out] = process.argv.slice(2);
const browser = await launched();
const wide = await visited(browser, address, { viewport: { width: 1180, height: 860 }, colorScheme: "light", hasTouch: false, isMobile: false });
await drawn(wide.page);
await wide.page.screenshot({ path: join(out, "look.png") });
for (const name of ["Find", "Compare", "Take away"]) {
  await tab(wide.page, name);
  await wide.page.waitForTimeout(1500);
  if (name === "Compare") await wide.page.locator("#report").scrollIntoViewIfNeeded();
  await wide.page.screenshot({ path: join(out, `${name.split(" ")[0].toLowerCase()}.png`) });
}
const phone = await visited(browser, address, { viewport: { width: 390, height: 844 }, colorScheme: "dark", hasTouch: true, isMobile: true, deviceScaleFactor: 2 });
await drawn(phone.page);
await phone.page.locator("#stage").scrollIntoViewIfNeeded();
await phone.page.screenshot({ path: join(out, "phone.png") });
await browser.close();
