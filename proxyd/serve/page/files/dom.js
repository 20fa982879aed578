"use strict";
// Text goes into elements as text only: nothing here makes markup out of strings.

const byId = (id) => document.getElementById(id);

/** An element with a class and children; strings become text. */
function el(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children.filter((each) => each !== null && each !== undefined && each !== ""));
  return made;
}

/** An element of a drawing. */
function drawn(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  made.append(...children);
  return made;
}

/** Sets a text where it differs, so that nothing is read aloud twice. */
function say(id, text) {
  const place = byId(id);
  if (place.textContent !== text) place.textContent = text;
}

const shown = new WeakMap();

/** Fills a place anew where what it shows has changed; focus and selection stay where nothing has. */
function fill(place, value, make) {
  const text = JSON.stringify(value);
  if (shown.get(place) === text) return;
  shown.set(place, text);
  place.replaceChildren(...make(value));
}

const many = (count, one, more) => `${count.toLocaleString("en")} ${count === 1 ? one : more || `${one}s`}`;

function duration(seconds) {
  if (seconds < 0.0995) return `${(seconds * 1000).toFixed(1)} ms`;
  if (seconds < 0.9995) return `${(seconds * 1000).toFixed(0)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 99.5) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

const clock = (unixSeconds) => new Date(unixSeconds * 1000).toLocaleTimeString("en-GB");
const host = (address) => (address.includes(":") ? `[${address}]` : address);
