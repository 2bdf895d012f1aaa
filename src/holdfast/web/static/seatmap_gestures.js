// Turns mouse, touch and wheel input into taps, pans and zooms. The page scrolls as usual unless the map is zoomed in,
// has the focus, or Ctrl is pressed.

const SLOP = 6;
const SLOP_TOUCH = 10;
const WHEEL_LINE = 16;
const DOUBLE_MS = 320;

export class Gestures {
  constructor(frame, view, on) {
    this.frame = frame;
    this.view = view;
    this.on = on;
    const listen = (name, handle, options) => frame.addEventListener(name, handle.bind(this), options);
    listen("pointerdown", this.#down);
    listen("pointermove", this.#move);
    listen("pointerup", this.#up);
    listen("pointercancel", this.#cancel);
    listen("pointerleave", () => on.hover(null));
    listen("wheel", this.#wheel, { passive: false });
    listen("touchmove", this.#touch, { passive: false });
  }

  #points = new Map();
  #start = null;
  #last = { time: 0, x: 0, y: 0 };

  #down(event) {
    if (event.button !== 0) return;
    const point = this.#point(event);
    this.#points.set(event.pointerId, point);
    this.#start = this.#points.size === 1 ? { ...point, isDrag: false } : null;
  }

  #move(event) {
    const before = this.#points.get(event.pointerId);
    const point = this.#point(event);
    if (!before) {
      if (event.pointerType !== "touch") this.on.hover(point);
      return;
    }
    if (this.#points.size === 2) this.#pinch(event.pointerId, before, point);
    else if (this.#isDrag(event, point)) this.#pan(before, point);
    else return;
    this.#points.set(event.pointerId, point);
  }

  /** Fingers need more tolerance than mice. A drag stays a drag, even if the pointer leaves the frame. */
  #isDrag(event, point) {
    if (!this.#start) return false;
    const slop = event.pointerType === "touch" ? SLOP_TOUCH : SLOP;
    const away = Math.hypot(point.x - this.#start.x, point.y - this.#start.y);
    if (!this.#start.isDrag && away > slop) {
      this.#start.isDrag = true;
      this.frame.setPointerCapture(event.pointerId);
      this.on.hover(null);
    }
    return this.#start.isDrag;
  }

  #pan(before, point) {
    this.view.camera.moveBy(point.x - before.x, point.y - before.y);
    this.view.refresh();
  }

  #pinch(id, before, point) {
    const [, other] = [...this.#points].find(([each]) => each !== id);
    const { camera } = this.view;
    const factor = spread(point, other) / Math.max(1, spread(before, other));
    camera.moveBy((point.x - before.x) / 2, (point.y - before.y) / 2);
    camera.zoomAt((point.x + other.x) / 2, (point.y + other.y) / 2, factor);
    this.view.refresh();
  }

  #up(event) {
    const start = this.#start;
    const isTap = this.#points.has(event.pointerId) && start && !start.isDrag;
    this.#cancel(event);
    if (isTap) this.#tap(event);
  }

  #cancel(event) {
    this.#points.delete(event.pointerId);
    this.#start = null;
  }

  #tap(event) {
    const point = this.#point(event);
    const isSecond = event.timeStamp - this.#last.time < DOUBLE_MS && spread(point, this.#last) < 30;
    this.#last = { ...point, time: event.timeStamp };
    this.on.tap(point, event.pointerType === "touch", isSecond);
  }

  /** Two fingers on the map must not scroll or zoom the page. */
  #touch(event) {
    if (event.touches.length > 1 && event.cancelable) event.preventDefault();
  }

  #wheel(event) {
    const isWanted = event.ctrlKey || event.metaKey || this.frame.contains(document.activeElement);
    const { camera } = this.view;
    const isOutward = event.deltaY > 0;
    if (!isWanted || (!event.ctrlKey && (isOutward ? camera.isFit : camera.isClosest))) return;
    event.preventDefault();
    const pixels = event.deltaMode === 1 ? event.deltaY * WHEEL_LINE : event.deltaY;
    const { x, y } = this.#point(event);
    camera.zoomAt(x, y, 2 ** (-Math.max(-120, Math.min(120, pixels)) / (event.ctrlKey ? 120 : 240)));
    this.view.refresh();
  }

  #point(event) {
    const box = this.frame.getBoundingClientRect();
    return { x: event.clientX - box.left - this.frame.clientLeft, y: event.clientY - box.top - this.frame.clientTop };
  }
}

function spread(one, other) {
  return Math.hypot(one.x - other.x, one.y - other.y);
}
