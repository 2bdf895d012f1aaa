// Reads the page's colours for the canvas.

const TONES = 6;

/** Read through a probe element, so that the browser resolves variables, mixes and system colours. */
export function readTheme(element) {
  const probe = document.createElement("span");
  probe.hidden = true;
  element.append(probe);
  const read = (name) => {
    probe.style.color = `var(--seat-${name})`;
    return getComputedStyle(probe).color;
  };
  const free = Array.from({ length: TONES }, (_, tone) => read(`free-${tone + 1}`));
  const [selected, mine, held, sold] = ["selected", "mine", "held", "sold"].map(read);
  const [text, background] = ["text", "background"].map(read);
  const font = getComputedStyle(element).fontFamily;
  probe.remove();
  return { free, selected, mine, held, sold, text, background, font, on: inkFor(text, background) };
}

/** Choose text or background, whichever has more contrast on a colour. */
function inkFor(text, background) {
  const [dark, light] = [luminance(text), luminance(background)];
  const known = new Map();
  return (colour) => {
    if (!known.has(colour)) {
      const under = luminance(colour);
      known.set(colour, contrast(under, dark) > contrast(under, light) ? text : background);
    }
    return known.get(colour);
  };
}

function contrast(one, other) {
  return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
}

const pixel = document.createElement("canvas").getContext("2d", { willReadFrequently: true });

function luminance(colour) {
  pixel.fillStyle = colour;
  pixel.fillRect(0, 0, 1, 1);
  const [red, green, blue] = [...pixel.getImageData(0, 0, 1, 1).data].map(linear);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function linear(part) {
  const share = part / 255;
  return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
}
