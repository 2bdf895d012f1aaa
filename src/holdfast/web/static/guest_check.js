/** The proof of work of a guest. A worker solves the challenge of the page while the buyer chooses. */

// A solution that would expire on its way to the server is not worth sending.
const MARGIN_SECONDS = 30;

export class GuestCheck {
  constructor({ url, seconds, challenge }) {
    this.url = url;
    this.seconds = seconds;
    this.begin(challenge);
  }

  /** The form fields that carry a solution that is still valid. */
  async fields() {
    if (performance.now() > this.endsAt) {
      await this.renew();
    }
    const number = await this.number;
    const { issued_at: issuedAt, salt } = this.challenge;
    return { check_issued_at: issuedAt, check_salt: salt, check_number: number };
  }

  /** Get a new challenge. The server accepts each solution for one hold only. */
  async renew() {
    const response = await fetch(this.url, { headers: { accept: "application/json" } });
    if (!response.ok) {
      throw new Error(`no challenge: ${response.status}`);
    }
    this.begin(await response.json());
  }

  begin(challenge) {
    this.challenge = challenge;
    this.endsAt = performance.now() + (this.seconds - MARGIN_SECONDS) * 1000;
    this.number = solve(challenge);
    // The form awaits it later and sees the failure. Until then, the browser must not report it as unhandled.
    this.number.catch(() => {});
  }
}

function solve({ seed, bits }) {
  return new Promise((resolve, reject) => {
    const worker = new Worker(new URL("./guest_check_worker.js", import.meta.url));
    worker.addEventListener("message", ({ data }) => {
      worker.terminate();
      resolve(data);
    });
    worker.addEventListener("error", reject);
    worker.postMessage({ seed, bits });
  });
}
