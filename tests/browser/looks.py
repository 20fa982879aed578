"""What can be asked of a page about its looks, in JavaScript."""

from __future__ import annotations

# The page has asked proxyd, and shows the answers.
SHOWN = "document.getElementById('updated')?.textContent.startsWith('updated')"

# Pairs of visible elements with text of their own that cover each other; none is meant to.
OVERLAPS = """(() => {
  const boxes = [...document.querySelectorAll('body *')]
    .filter((each) => !each.closest('.unseen, .skip, svg, noscript, thead')
    && [...each.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()) && each.getClientRects().length)
    .map((each) => [each, each.getBoundingClientRect()]).filter(([, box]) => box.width && box.height);
  const found = [];
  boxes.forEach(([a, x], index) => boxes.slice(index + 1).forEach(([b, y]) => {
    if (a.contains(b) || b.contains(a)) return;
    if (getComputedStyle(a).display === 'inline' || getComputedStyle(b).display === 'inline') return;
    const wide = Math.min(x.right, y.right) - Math.max(x.left, y.left);
    const high = Math.min(x.bottom, y.bottom) - Math.max(x.top, y.top);
    if (wide > 1 && high > 1) found.push(`${a.textContent} / ${b.textContent}`);
  }));
  return found;
})()"""

# Texts whose contrast with what is behind them is below 4.5 (WCAG 2.2, 1.4.3), with that ratio.
TOO_FAINT = """(() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (rgb) => {
    const linear = (each) => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4;
    const [r, g, b] = rgb.slice(0, 3).map((each) => linear(each / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const texts = [...document.querySelectorAll('body *')].filter((each) => !each.closest('.unseen, .skip, noscript, svg')
    && each.getClientRects().length && [...each.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()));
  const found = texts.map((each) => {
    const [a, b] = [light(parse(getComputedStyle(each).color)), light(behind(each))].sort((x, y) => y - x);
    return [each.textContent, (a + 0.05) / (b + 0.05)];
  });
  return {looked: found.length, faint: found.filter(([, ratio]) => ratio < 4.5)};
})()"""

# What somebody who does not see the page would miss.
UNNAMED = """(() => {
  const found = [];
  const name = (each) => each.getAttribute('aria-label')
    || (each.labels && each.labels.length && each.labels[0].textContent)
    || (each.getAttribute('aria-labelledby') && document.getElementById(each.getAttribute('aria-labelledby'))?.textContent)
    || each.textContent;
  for (const each of document.querySelectorAll('button, input, a, section, [role=img], progress')) {
    if (!(name(each) || '').trim() && !each.hidden) found.push(`no name: ${each.outerHTML.slice(0, 80)}`);
  }
  const levels = [...document.querySelectorAll('h1, h2, h3, h4')].map((each) => Number(each.tagName[1]));
  levels.forEach((level, index) => {
    if (level > (levels[index - 1] || 0) + 1) found.push(`heading ${level} after ${levels[index - 1]}`);
  });
  if (levels.filter((each) => each === 1).length !== 1) found.push('not one h1');
  for (const one of ['main', 'header', 'head > title', 'html[lang]', '[role=search]', '[aria-live=polite]']) {
    if (document.querySelectorAll(one).length !== 1) found.push(`not one ${one}`);
  }
  const ids = [...document.querySelectorAll('[id]')].map((each) => each.id);
  if (new Set(ids).size !== ids.length) found.push('an id twice');
  for (const each of document.querySelectorAll('th')) if (!each.scope) found.push('a th without scope');
  return found;
})()"""
