// What people do with a page, done in Chromium. `test_browser.py` makes the pages and starts this, once for each width and theme.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { readFileSync } from "node:fs";
import { basename, join } from "node:path";
import { accessible, drag, launched, opened, phone, press, theme, width } from "./opened.mjs";

const { PAGE, PAGE_VIDEO, PAGE_OUT } = process.env;
let browser;
before(async () => { browser = await launched(); });
after(() => browser?.close());

const middle = async (target) => {
  const box = await target.boundingBox();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2, width: box.width, box };
};
const saved = async (page, button) => {
  const [download] = await Promise.all([page.waitForEvent("download"), press(button)]);
  const path = join(PAGE_OUT, download.suggestedFilename());
  await download.saveAs(path);
  return path;
};

describe(`at ${width} pixels, ${theme}`, () => {
  let page, context, troubles;
  before(async () => { ({ page, context, troubles } = await opened(browser, PAGE)); });
  after(() => { assert.deepEqual(troubles, [], "errors in the console, or requests"); });

  test("it fits the width and has the theme", async () => {
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), width);
    const light = await page.evaluate(() => getComputedStyle(document.body).backgroundColor.match(/\d+/g)[0] > 128);
    assert.equal(light, theme === "light");
  });

  test("every rule of accessibility holds, also with all unfolded", async () => {
    await accessible(page, "as opened");
    await page.evaluate(() => document.querySelectorAll("details").forEach((each) => { each.open = true; }));
    await accessible(page, "unfolded");
    await page.evaluate(() => document.querySelectorAll("details").forEach((each) => { each.open = false; }));
  });

  test("the line between the pictures is dragged, and moved by keys", async () => {
    const stage = page.locator(".stage"), split = page.locator(".split");
    await stage.scrollIntoViewIfNeeded();
    const from = await middle(stage);
    await drag(page, context, from, { x: from.box.x + from.width * 0.2, y: from.y });
    assert.ok(Math.abs(Number(await split.inputValue()) - 20) <= 3, await split.inputValue());
    const cut = await page.locator(".stage .before").evaluate((each) => getComputedStyle(each).clipPath);
    assert.match(cut, /80%|calc/);
    assert.equal(await page.locator("#zoomed").evaluate((each) => each.open), false, "a drag does not enlarge");
    await split.focus();
    await page.keyboard.press("ArrowRight");
    assert.match(await split.getAttribute("aria-valuetext"), /^\d+ % full run$/);
    assert.ok(Math.abs(Number(await split.inputValue()) - 21) <= 3);
  });

  test("a tap enlarges, with the same tools, and Escape ends it", async () => {
    const stage = page.locator(".stage"), small = await middle(stage);
    await press(stage);
    assert.ok(await page.locator("#zoomed").evaluate((each) => each.open));
    const large = await middle(stage);
    assert.ok(phone ? large.width >= small.width : large.width > small.width, `${large.width} from ${small.width}`);
    assert.ok(large.box.y + large.box.height <= page.viewportSize().height, "all of it is in sight");
    await accessible(page, "enlarged");
    await press(page.locator(".show-difference"));
    assert.ok(await page.locator(".stage .difference").isVisible());
    await press(page.locator(".show-difference"));
    const before = await page.locator(".caption").textContent();
    await page.keyboard.press("ArrowDown");
    assert.notEqual(await page.locator(".caption").textContent(), before, "the next prompt");
    await page.keyboard.press("Escape");
    assert.equal(await page.locator("#zoomed").evaluate((each) => each.open), false);
    await page.locator(".viewer .stage").waitFor({ state: "visible" }); // back in its place, as soon as the dialog has said so
    assert.equal((await middle(stage)).width, small.width);
  });

  test("a button that is pressed can be read, also below the pointer", async () => {
    const button = page.locator(".show-difference"), colours = () => button.evaluate((each) => [getComputedStyle(each).color, getComputedStyle(each).backgroundColor]);
    const own = await page.evaluate(() => ["--on", "--ours"].map((name) => {
      const probe = document.body.appendChild(document.createElement("i"));
      probe.style.color = `var(${name})`;
      const found = getComputedStyle(probe).color;
      probe.remove();
      return found;
    }));
    await press(button);
    if (!phone) await button.hover();
    assert.equal(await button.getAttribute("aria-pressed"), "true");
    assert.deepEqual(await colours(), own);
    await press(button);
    if (phone) assert.notEqual((await colours())[0], own[1], "nothing is left of a tap");
  });

  test("prompts, budgets and methods change what is on the stage", async () => {
    const source = (part) => page.locator(`.stage .${part} img`).getAttribute("src");
    const seen = async () => [await source("before"), await source("after"), await source("difference")];
    await press(page.locator(".prompts label").nth(0));
    const first = await seen();
    await press(page.locator(".prompts label").nth(2));
    const second = await seen();
    assert.notEqual(second[0], first[0]);
    assert.equal(await page.locator(".shots:visible").count(), 1);
    await press(page.locator(".card:visible", { hasText: "teacache" }));
    const third = await seen();
    assert.equal(third[0], second[0]);
    assert.notEqual(third[1], second[1]);
    assert.match(await page.locator(".tag.right").textContent(), /^teacache, \d+ calls$/);
    assert.equal(await page.locator(".card[aria-pressed=true]").count(), 1);
    await press(page.locator("label[for=picture0]"));
    assert.notEqual((await seen())[1], third[1], "another budget");
    assert.match(await page.locator(".caption").textContent(), /teacache/, "still the same method");
    assert.equal(await page.locator(".stage .difference").isVisible(), false);
    await press(page.locator(".show-difference"));
    await press(page.locator(".card:visible", { hasText: "uniform" }));
    assert.ok(await page.locator(".stage .difference").isVisible(), "another method's difference");
    assert.equal(await page.locator(".tag.right").textContent(), "uniform, difference × 5");
    await press(page.locator(".show-difference"));
    assert.match(await page.locator(".tag.right").textContent(), /^uniform, \d+ calls$/);
  });

  test("all switches of the budget follow the one that is used", async () => {
    const chosen = () => page.locator(".tabs[aria-label=Budget] > input:checked + label").allTextContents();
    for (const [name, other] of [["spread", 1], ["picture", 0], ["mask", 1], ["prompt-table", 0]]) {
      await press(page.locator(`label[for=${name}${other}]`));
      const titles = await chosen();
      assert.equal(titles.length, 4);
      assert.deepEqual(new Set(titles), new Set([other ? "5 calls" : "3 calls"]), name);
      assert.match(await page.locator(".tag.right").textContent(), other ? / [5-7] calls$/ : / [2-5] calls$/, "the stage, too");
    }
    assert.equal(await page.locator("input[name=metric]").first().isChecked(), true, "metrics do not");
  });

  test("a prompt of the table is brought onto the stage", async () => {
    const button = page.locator(".look:visible").first(), prompt = await button.textContent();
    await press(button);
    assert.ok((await page.locator(".caption").textContent()).startsWith(prompt));
    assert.ok(await page.locator(".prompts input:checked").evaluate((each) => document.activeElement === each));
  });

  test("tabs show one panel", async () => {
    for (const name of ["metric", "prompt-table", "spread", "mask"]) {
      const tabs = page.locator(`.tabs:has(> input[name=${name}])`), labels = tabs.locator("> label");
      for (let number = 0; number < await labels.count(); number += 1) {
        await press(labels.nth(number));
        const shown = await tabs.locator("> section").evaluateAll((all) => all.map((each) => each.checkVisibility()));
        assert.deepEqual(shown, shown.map((_, place) => place === number), name);
      }
      await tabs.locator("> input").first().focus();
      await page.keyboard.press("ArrowRight");
      assert.ok(await tabs.locator("> input").nth(1).isChecked(), `${name} by keys`);
      await press(labels.nth(0));
    }
  });

  test("a point that is tapped is read out, and names do not touch", async () => {
    const chart = page.locator(`.chart.${phone ? "narrow" : "wide"}:visible`).first();
    await chart.scrollIntoViewIfNeeded();
    await press(chart.locator(".series.strong .point").first());
    assert.match(await page.locator(".readout:visible").first().textContent(), /^budcache: \d+\.\d+ ± .* calls/);
    assert.equal(await chart.locator(".series.on").count(), 1);
    const boxes = await chart.locator("text.end").evaluateAll((all) => all.map((each) => each.getBoundingClientRect().toJSON()).sort((a, b) => a.top - b.top));
    assert.ok(boxes.length > 2);
    boxes.slice(1).forEach((box, i) => assert.ok(box.top >= boxes[i].top + 11, "names overlap"));
    boxes.forEach((box) => assert.ok(box.right <= width, "a name is cut off"));
  });

  test("points are reached by keys, and said", async () => {
    const chart = page.locator(`.chart.${phone ? "narrow" : "wide"}:visible`).first(), said = page.locator(".readout:visible").first();
    await chart.focus();
    await page.keyboard.press("Escape");
    assert.equal(await said.textContent(), "");
    await page.keyboard.press("ArrowRight");
    const first = await said.textContent();
    assert.match(first, /^budcache: .* at \d+ calls/);
    assert.equal(await said.getAttribute("role"), "status");
    await page.keyboard.press("ArrowLeft");
    const left = await said.textContent();
    assert.match(left, /^budcache: /);
    assert.notEqual(left, first, "the next point of the line");
    const met = new Set();
    for (let number = 0; number < 3; number += 1, await page.keyboard.press("ArrowDown")) met.add((await said.textContent()).split(":")[0]);
    assert.deepEqual([...met].sort(), ["budcache", "teacache", "uniform"], "every line");
    await page.keyboard.press("Escape");
    assert.equal(await chart.locator(".on").count(), 0);
  });

  test("a saved chart looks like the shown one, whatever is being read", async () => {
    const chart = page.locator(`.chart.${phone ? "narrow" : "wide"}:visible`).first();
    const looks = () => chart.evaluate((svg) => {
      // Where no style sheet of the page reaches it, as in the file that is saved.
      const host = document.body.appendChild(document.createElement("div")), copy = carried(svg);
      host.attachShadow({ mode: "open" }).append(copy);
      const names = ["fontSize", "fontFamily", "fontWeight", "fontVariantNumeric", "fill", "textAnchor"];
      const styled = (root) => [...root.querySelectorAll("text")].map((text) => names.map((name) => getComputedStyle(text)[name]));
      const found = {
        shown: styled(svg), copied: styled(copy), wide: svg.viewBox.baseVal.width,
        ends: [...copy.querySelectorAll("text.end")].map((text) => text.getBBox().x + text.getBBox().width),
        faded: [...copy.querySelectorAll(".series, .mark")].map((each) => getComputedStyle(each).opacity + getComputedStyle(each).strokeWidth),
      };
      host.remove();
      return found;
    });
    const still = await looks();
    assert.ok(still.shown.length > 5 && still.shown.every(([size]) => parseFloat(size) < 14));
    assert.deepEqual(still.copied, still.shown);
    still.ends.forEach((end) => assert.ok(end <= still.wide, `${end} of ${still.wide}`));
    await press(chart.locator(".series:not(.strong) .point").first());
    const read = await looks();
    await press(chart.locator(".series:not(.strong) .point").first());
    assert.deepEqual(read.faded, still.faded);
  });

  test("numbers and charts are saved from the page", async () => {
    const buttons = page.locator("[data-export]");
    for (let number = 0; number < 4; number += 1) await saved(page, buttons.nth(number));
    const samples = readFileSync(join(PAGE_OUT, "samples.csv"), "utf8").split("\n");
    assert.equal(samples[0], "method,budget,setting,share,sample,prompt,calls,seconds,psnr,lpips,clip-b");
    await page.locator("summary", { hasText: "search" }).click();
    const search = page.locator("article", { hasText: "How the search went" });
    await press(search.locator(".chart:visible .point").first());
    assert.match(await search.locator(".readout").textContent(), /^\d calls: best loss 0\.\d+ after \d+ sample-calls$/);
    const names = [];
    for (const button of await page.locator(".png:visible").all()) {
      const path = await saved(page, button), file = readFileSync(path);
      names.push(basename(path));
      assert.equal(file.subarray(1, 4).toString(), "PNG");
      const colours = await page.evaluate(async (data) => {
        const image = new Image();
        image.src = `data:image/png;base64,${data}`;
        await image.decode();
        const canvas = document.createElement("canvas");
        [canvas.width, canvas.height] = [image.width, image.height];
        const context = canvas.getContext("2d");
        context.drawImage(image, 0, 0);
        const { data: pixels } = context.getImageData(0, 0, image.width, image.height);
        const found = new Set();
        for (let i = 0; i < pixels.length; i += 4) found.add(pixels.slice(i, i + 3).join());
        return found.size;
      }, file.toString("base64"));
      assert.ok(colours > 20, `the picture has ${colours} colours`);
    }
    for (const kind of ["psnr", "calls-", "steps-"]) assert.ok(names.some((name) => name.startsWith(kind)), `${kind} among ${names}`);
    const seen = await page.evaluate(() => {
      const rows = all(".sheet").find(isSeen), letters = (texts) => [...texts.join("").replace(/\s/g, "")].sort().join("");
      const told = all("th, td, caption", rows).filter(isSeen).map((each) => each.innerText);
      return { page: letters(told), picture: letters(all("text", collected(rows)).map((each) => each.textContent)) };
    });
    assert.equal(seen.picture, seen.page, "all that is written there is in the picture, and nothing else");
  });

  test("the code is copied", async () => {
    await context.grantPermissions(["clipboard-read", "clipboard-write"]);
    await press(page.locator("#copy"));
    await page.locator("#copy", { hasText: "Copied" }).waitFor();
    assert.match(await page.evaluate(() => navigator.clipboard.readText()), /^# pip install budcache\nimport budcache\n\npipe = .*\nwith budcache\.applied\(/);
  });

  test("the other theme is a button away, and stays after loading again", async () => {
    const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const before = await ground();
    await press(page.locator("#theme"));
    const other = await ground();
    assert.notEqual(other, before);
    await accessible(page, "in the other theme");
    // Chromium keeps it in another process, which may begin anew on a busy machine and has then lost it: chosen again, it stays.
    for (let tries = 0; tries < 3; tries++) {
      await page.reload();
      if (await ground() === other) break;
      await press(page.locator("#theme"));
    }
    await page.reload();
    assert.equal(await ground(), other);
    await page.evaluate(() => localStorage.clear());
    await page.reload();
    assert.equal(await ground(), other, "the tab remembers by itself");
    await press(page.locator("#theme"));
    assert.equal(await ground(), before);
  });

  test("paper is light, unfolded and without tools", async () => {
    await page.emulateMedia({ media: "print" });
    assert.equal(await page.locator(".tools:visible, .exports:visible, #theme:visible, .hint:visible").count(), 0);
    assert.doesNotMatch(await page.locator("main").innerText(), /\b(tap|drag)\b/i);
    assert.ok(await page.evaluate(() => getComputedStyle(document.querySelector("h2")).color.match(/\d+/g)[0] < 128));
    await page.emulateMedia({ media: "screen" });
    const chart = page.locator(`.chart.${phone ? "narrow" : "wide"}:visible`).first();
    await press(chart.locator(".series.strong .point").last());
    assert.ok((await page.locator(".plot.reading").count()) > 0);
    await page.evaluate(() => dispatchEvent(new Event("beforeprint")));
    assert.equal(await page.locator("details:not([open])").count(), 0);
    assert.equal(await page.locator(".plot.reading").count(), 0, "on paper no line fades for one that was read");
    await page.evaluate(() => dispatchEvent(new Event("afterprint")));
    assert.ok((await page.locator(".plot.reading").count()) > 0);
    assert.ok((await page.pdf()).length > 20000);
  });
});

test("a video plays everywhere at once, and stops at any frame", async () => {
  const { page, troubles } = await opened(browser, PAGE_VIDEO, { reducedMotion: "no-preference" });
  const places = () => page.locator(".frame:visible img").evaluateAll((all) => all.map((each) => Math.round(100 * new DOMMatrix(getComputedStyle(each).transform).e / each.getBoundingClientRect().width)));
  await page.waitForFunction(() => document.querySelector(".at").value !== "0");
  assert.equal(await page.locator(".play").textContent(), "Pause");
  await press(page.locator(".play"));
  const at = Number(await page.locator(".at").inputValue());
  await page.waitForTimeout(300);
  assert.equal(Number(await page.locator(".at").inputValue()), at, "it stands still");
  await page.locator(".at").fill("2");
  const seen = await places();
  assert.ok(seen.length >= 5);
  assert.deepEqual(seen, seen.map(() => -50), "the third of four frames, everywhere");
  await accessible(page, "a video");
  assert.deepEqual(troubles, []);
});

test("without a script there are still pictures and tabs", async () => {
  const { page } = await opened(browser, PAGE, { javaScriptEnabled: false });
  assert.equal(await page.locator(".show:visible, .exports:visible, .png:visible, #copy:visible, #theme:visible, .hint:visible").count(), 0);
  assert.equal(await page.locator(".shots:visible").count(), 3);
  await press(page.locator("label[for=picture0]"));
  assert.equal(await page.locator(".shots:visible").count(), 3);
  assert.ok(await page.locator(".tabs > section").first().isVisible());
});
