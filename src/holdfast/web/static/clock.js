/** Counts down from the seconds that the server reports, because the device's clock may be wrong. Compares with a fixed
    end, so a device that slept shows the right time as soon as it wakes. */
export class Countdown {
  constructor(secondsLeft, { tick, end }) {
    this.endsAt = Date.now() + secondsLeft * 1000;
    this.tick = tick;
    this.end = end;
    this.timer = setInterval(() => this.update(), 250);
    this.update();
  }

  get secondsLeft() {
    return Math.max(0, Math.ceil((this.endsAt - Date.now()) / 1000));
  }

  update() {
    this.tick(this.secondsLeft);
    if (this.secondsLeft === 0) {
      this.stop();
      this.end();
    }
  }

  stop() {
    clearInterval(this.timer);
  }
}

export function formatMinutes(seconds) {
  return `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;
}
