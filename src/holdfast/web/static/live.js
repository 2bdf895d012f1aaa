/** Follows the live feed of an event: a snapshot, then every change in order. Resumes after a lost connection. */

import { setServerTime } from "./server_clock.js";

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
    this.socket.onopen = () => this.handleOpen();
    this.socket.onmessage = (event) => this.receive(JSON.parse(event.data));
    this.socket.onclose = () => this.handleClose();
    this.restartSilenceTimer();
  }

  handleOpen() {
    this.failures = 0;
    if (this.version !== null) {
      this.on.connected();
    }
  }

  receive(message) {
    this.restartSilenceTimer();
    if (message.server_time) {
      setServerTime(message.server_time);
    }
    if (message.type === "snapshot") {
      this.version = message.version;
      this.on.snapshot(message);
      this.on.connected();
    } else if (message.type === "change") {
      this.receiveChange(message);
    }
  }

  /** The feed has no gaps. If one appears, start over from a snapshot. */
  receiveChange(message) {
    if ((message.from ?? message.seq) !== this.version + 1) {
      this.version = null;
      this.socket.close();
      return;
    }
    this.version = message.seq;
    this.on.change(message);
  }

  /** The server sends heartbeats, so silence means that the connection broke without a close. */
  restartSilenceTimer() {
    clearTimeout(this.silenceTimer);
    this.silenceTimer = setTimeout(() => this.socket.close(), SILENCE_MS);
  }

  handleClose() {
    clearTimeout(this.silenceTimer);
    this.on.lost();
    this.failures += 1;
    const pause = Math.min(RETRY_MS * 2 ** (this.failures - 1), RETRY_MAX_MS);
    this.retry(pause * (0.5 + Math.random()));
  }

  retry(pause) {
    clearTimeout(this.retryTimer);
    this.retryTimer = setTimeout(() => this.socket.readyState === WebSocket.CLOSED && this.connect(), pause);
  }
}
