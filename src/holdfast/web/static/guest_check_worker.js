/** Finds a number such that SHA-256 of `<seed>:<number>` starts with enough zero bits. The browser's own SHA-256 answers
 * asynchronously and only over TLS, so this worker has its own: millions of tiny hashes would otherwise spend their time
 * waiting. */

const ROUNDS = 64;
const BLOCK_BYTES = 64;
const primes = firstPrimes(ROUNDS);
const INITIAL = Int32Array.from(primes.slice(0, 8), (prime) => fraction(Math.sqrt(prime)));
const CONSTANTS = Int32Array.from(primes, (prime) => fraction(Math.cbrt(prime)));

const block = new Uint8Array(BLOCK_BYTES);
const view = new DataView(block.buffer);
const words = new Int32Array(ROUNDS);

self.addEventListener("message", ({ data: { seed, bits } }) => {
  for (let number = 0; ; number++) {
    if (Math.clz32(firstWord(`${seed}:${number}`)) >= bits) {
      self.postMessage(number);
      return;
    }
  }
});

/** The first 32 bits of the SHA-256 of an ASCII text that fits into one block. */
function firstWord(text) {
  block.fill(0);
  for (let at = 0; at < text.length; at++) {
    block[at] = text.charCodeAt(at);
  }
  block[text.length] = 0x80;
  view.setUint32(BLOCK_BYTES - 4, text.length * 8);
  return (INITIAL[0] + compress()) | 0;
}

/** One run of the compression function over `block`. Only the first word of the state is of interest. */
function compress() {
  for (let n = 0; n < 16; n++) {
    words[n] = view.getInt32(n * 4);
  }
  for (let n = 16; n < ROUNDS; n++) {
    const x = words[n - 15];
    const y = words[n - 2];
    const s0 = rotate(x, 7) ^ rotate(x, 18) ^ (x >>> 3);
    const s1 = rotate(y, 17) ^ rotate(y, 19) ^ (y >>> 10);
    words[n] = (words[n - 16] + s0 + words[n - 7] + s1) | 0;
  }
  let [a, b, c, d, e, f, g, h] = INITIAL;
  for (let n = 0; n < ROUNDS; n++) {
    const s1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
    const t1 = (h + s1 + ((e & f) ^ (~e & g)) + CONSTANTS[n] + words[n]) | 0;
    const s0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
    const t2 = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
    h = g;
    g = f;
    f = e;
    e = (d + t1) | 0;
    d = c;
    c = b;
    b = a;
    a = (t1 + t2) | 0;
  }
  return a;
}

function rotate(word, by) {
  return (word >>> by) | (word << (32 - by));
}

function firstPrimes(count) {
  const found = [];
  for (let candidate = 2; found.length < count; candidate++) {
    if (found.every((prime) => candidate % prime !== 0)) {
      found.push(candidate);
    }
  }
  return found;
}

/** The first 32 bits of the fractional part. */
function fraction(value) {
  return (value - Math.floor(value)) * 2 ** 32;
}
