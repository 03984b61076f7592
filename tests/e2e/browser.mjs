// Debian's Chromium, driven by Playwright: skipped (exit code 77) where one of them is absent.
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { client, root } from './server_process.mjs';

const program = process.env.DEEPINFER_CHROMIUM ?? '/usr/bin/chromium';

function skip(reason) {
  console.log(`skipped: ${reason}`);
  process.exit(77);
}

/// A browser, after the check that the server at `url` carries the app.
export async function openBrowser(url) {
  if (!fs.existsSync(program)) skip(`${program} is not there (apt-get install chromium)`);
  const { chromium } = client('playwright-core');
  const page = await (await fetch(`${url}/`)).text();
  if (!page.includes('assets/')) skip('the program was built without the web app (npm ci in web, then build)');
  return chromium.launch({ executablePath: program, headless: true, args: process.getuid?.() === 0 ? ['--no-sandbox'] : [] });
}

/// A page whose console is watched: `complaints` has every error and warning, `hosts` every host that it asked.
export async function openPage(browser, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1024, height: 800 }, reducedMotion: 'reduce', ...options });
  const page = await context.newPage();
  const complaints = [];
  const hosts = new Set();
  page.on('console', (message) => ['error', 'warning'].includes(message.type()) && complaints.push(`${message.text()} ${new URL(message.location().url || 'file:').pathname}`));
  page.on('pageerror', (error) => complaints.push(String(error)));
  page.on('request', (request) => hosts.add(new URL(request.url()).host));
  page.setDefaultTimeout(90_000); // a machine may be busy
  return { page, complaints, hosts, close: () => context.close() };
}

/// Controls and pictures without a name, and names that are used twice as ids.
export const unlabelled = (page) =>
  page.evaluate(() => {
    const bad = [];
    const text = (e) => (e?.textContent ?? '').trim();
    const name = (e) =>
      e.getAttribute('aria-label')?.trim() || text(e.labels?.[0]) || (/^(BUTTON|A|SUMMARY)$/.test(e.tagName) ? text(e) : '');
    for (const e of document.querySelectorAll('button, a, input, select, textarea, summary, [role=img], [role=region], [role=group], [role=log], section, aside, nav'))
      if (!name(e)) bad.push(e.outerHTML.slice(0, 120));
    const ids = [...document.querySelectorAll('[id]')].map((e) => e.id);
    bad.push(...ids.filter((id, i) => ids.indexOf(id) !== i).map((id) => `id ${id} is used twice`));
    if (document.querySelectorAll('main').length !== 1 || document.querySelectorAll('h1').length !== 1) bad.push('not one main and one h1');
    return bad;
  });

/// What every page has: a language, a title, a description, a width that follows the device and may be zoomed, headings in order,
/// pictures with a text, targets that a finger finds (words that explain themselves are as high as their line).
export const basics = (page) =>
  page.evaluate(() => {
    const bad = [];
    const meta = (name) => document.querySelector(`meta[name="${name}"]`)?.content ?? '';
    if (!document.documentElement.lang) bad.push('no language');
    if (document.title.trim() === '') bad.push('no title');
    if (meta('description') === '') bad.push('no description');
    if (!/width=device-width/.test(meta('viewport')) || /user-scalable=no|maximum-scale=1(?![\d.])/.test(meta('viewport'))) bad.push(`viewport: ${meta('viewport')}`);
    const shown = (e) => e.getClientRects().length > 0;
    const levels = [...document.querySelectorAll('h1, h2, h3, h4, h5, h6')].filter(shown).map((e) => Number(e.tagName[1]));
    levels.forEach((level, i) => level > (levels[i - 1] ?? 0) + 1 && bad.push(`h${level} behind h${levels[i - 1] ?? 0}`));
    for (const e of document.querySelectorAll('img:not([alt])')) bad.push(e.outerHTML.slice(0, 100));
    for (const e of document.querySelectorAll('button, select, input, textarea, summary')) {
      const { width, height } = e.getBoundingClientRect();
      if (shown(e) && !e.closest('.unseen, .term') && Math.min(width, height) < 20) bad.push(`${Math.round(width)} x ${Math.round(height)}: ${e.outerHTML.slice(0, 100)}`);
    }
    return bad;
  });

/// What Tab does not reach of what can be used, and what shows no sign of having the focus.
export async function unreachable(page) {
  const count = await page.evaluate(() => {
    const all = [...document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex="0"]')].filter((e) => !e.disabled && e.getClientRects().length > 0);
    all.forEach((e, i) => (e.dataset.tab = String(i)));
    document.activeElement?.blur();
    return all.length;
  });
  const seen = new Set();
  const plain = [];
  // The walk may begin in the middle, and figures that arrive meanwhile add to it.
  for (let i = 0; i < 2 * count + 20 && seen.size < count; ++i) {
    await page.keyboard.press('Tab');
    const [at, outline] = await page.evaluate(() => {
      const e = document.activeElement;
      return [e?.dataset.tab ?? '', getComputedStyle(e).outlineStyle === 'none' && e !== document.body ? e.outerHTML.slice(0, 100) : ''];
    });
    if (at !== '') seen.add(at);
    if (outline !== '') plain.push(`no focus ring: ${outline}`);
  }
  const missed = await page.evaluate((reached) => [...document.querySelectorAll('[data-tab]')].filter((e) => !reached.includes(e.dataset.tab)).map((e) => `not reached: ${e.outerHTML.slice(0, 100)}`), [...seen]);
  return [...missed, ...plain];
}

/// Texts whose contrast with what is behind them is below 4.5.
export const faint = (page) =>
  page.evaluate(() => {
    const parse = (c) => (c.match(/[\d.]+/g) ?? []).map(Number);
    const light = (c) => c.slice(0, 3).map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4)).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const behind = (e) => {
      for (; e !== null; e = e.parentElement) {
        const c = parse(getComputedStyle(e).backgroundColor);
        if (c.length === 3 || c[3] === 1) return c;
      }
      return [255, 255, 255];
    };
    const bad = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const e = walker.currentNode.parentElement;
      if (walker.currentNode.textContent.trim() === '' || e.getClientRects().length === 0 || e.closest('.unseen, noscript, :disabled')) continue;
      const style = getComputedStyle(e);
      const [a, b] = [light(parse(e instanceof SVGElement ? style.fill : style.color)), light(behind(e))];
      const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      if (contrast < 4.5) bad.push(`${contrast.toFixed(2)}: ${e.outerHTML.slice(0, 80)}`);
    }
    return bad;
  });

/// How far the page is wider than the window.
export const overflow = (page) => page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);

export const sizes = [390, 1024, 1680];

/// Pictures for the eye, in build/screenshots: three widths, light and dark; nothing may stick out or be hard to read.
export async function portray(page, name, { full = true } = {}) {
  const folder = path.join(root, 'build', 'screenshots');
  fs.mkdirSync(folder, { recursive: true });
  for (const width of sizes) {
    await page.setViewportSize({ width, height: width < 500 ? 844 : 960 });
    for (const colorScheme of ['light', 'dark']) {
      await page.emulateMedia({ colorScheme });
      await page.evaluate(() => window.scrollTo(0, 0));
      await page.waitForTimeout(120); // charts take the new width with the next frame
      await page.screenshot({ path: path.join(folder, `${name}-${width}-${colorScheme}.png`), fullPage: full });
      assert.equal(await overflow(page), 0, `${name} at ${width}: wider than the window`);
      assert.deepEqual(await faint(page), [], `${name} at ${width}, ${colorScheme}`);
    }
  }
  await page.emulateMedia({ colorScheme: 'light' });
  await page.setViewportSize({ width: 1024, height: 800 });
}
