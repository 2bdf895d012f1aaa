/** Follows an event: a snapshot, and then every change in order. A lost connection goes on where it broke off. */

const SILENCE_MS = 45_000;
const RETRY_MS = 300;
const RETRY_MAX_MS = 5_000;

export class Live {
  constructor(path, { snapshot, change, connected, lost }) {
    this.path = path;
    this.on = { snapshot, change, connected, lost };
    this.version = null;
    this.failures = 0;
    addEventListener("online", () => this.retry(0));
    this.connect();
  }

  connect() {
    const after = this.version === null ? "" : `?after=${this.version}`;
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    this.socket = new WebSocket(`${scheme}//${location.host}${this.path}${after}`);
    this.socket.onopen = () => this.opened();
    this.socket.onmessage = (event) => this.take(JSON.parse(event.data));
    this.socket.onclose = () => this.closed();
    this.listen();
  }

  opened() {
    this.failures = 0;
    if (this.version !== null) {
      this.on.connected();
    }
  }

  take(message) {
    this.listen();
    if (message.type === "snapshot") {
      this.version = message.version;
      this.on.snapshot(message);
      this.on.connected();
    } else if (message.type === "change") {
      this.takeChange(message);
    }
  }

  /** A gap cannot happen; if it did, starting over is right. */
  takeChange(message) {
    if ((message.from ?? message.seq) !== this.version + 1) {
      this.version = null;
      this.socket.close();
      return;
    }
    this.version = message.seq;
    this.on.change(message);
  }

  /** The server is never silent for long, so silence is a line that broke without a word. */
  listen() {
    clearTimeout(this.silence);
    this.silence = setTimeout(() => this.socket.close(), SILENCE_MS);
  }

  closed() {
    clearTimeout(this.silence);
    this.on.lost();
    this.failures += 1;
    const pause = Math.min(RETRY_MS * 2 ** (this.failures - 1), RETRY_MAX_MS);
    this.retry(pause * (0.5 + Math.random()));
  }

  retry(pause) {
    clearTimeout(this.again);
    this.again = setTimeout(() => this.socket.readyState === WebSocket.CLOSED && this.connect(), pause);
  }
}
