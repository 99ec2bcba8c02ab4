// Lists each text whose contrast is below 4.5, or below 3 where it is large (WCAG 2.2, 1.4.3).
(() => {
  const dot = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
  const onto = (below, colour) => {
    dot.fillStyle = `rgb(${below.join()})`;
    dot.fillRect(0, 0, 1, 1);
    dot.fillStyle = colour;
    dot.fillRect(0, 0, 1, 1);
    return [...dot.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const luminance = (colour) => {
    const [r, g, b] = colour.map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    const below = element.parentElement ? behind(element.parentElement) : [255, 255, 255];
    return onto(below, getComputedStyle(element).backgroundColor);
  };
  const faint = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const seen = new Set();
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || seen.has(element) || !element.checkVisibility() || element.closest(".hidden, .skip, title")) continue;
    seen.add(element);
    const style = getComputedStyle(element), ground = behind(element);
    const ink = onto(ground, element instanceof SVGElement ? style.fill : style.color);
    const [light, dark] = [luminance(ink), luminance(ground)].sort((a, b) => b - a);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    const ratio = (light + 0.05) / (dark + 0.05);
    if (ratio < (large ? 3 : 4.5)) faint.push(`${ratio.toFixed(2)} ${element.tagName} ${texts.currentNode.data.trim().slice(0, 40)}`);
  }
  return faint;
})()
