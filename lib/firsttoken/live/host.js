// Where a view gets its files from: the site's own folder, or the kernel that shows it.
// A host has `version`, `manifest()`, `file(name, onBytes)`, which gives the packed bytes, and
// `forget()`, after which nothing is taken from what the browser keeps. `real()` gives null, or the
// file of a real model: {name, bytes, sha256, pieces(), forget()}.

// What the browser keeps lies under these names, and a version.
const SHIPPED = "first-token-live-";
const REAL = "first-token-real-";
const KERNEL_SILENT_MS = 10_000;

export function siteHost(root) {
  const place = new URL(
    root.dataset.assets,
    new URL(document.documentElement.dataset.content_root || "./", document.baseURI),
  );
  const version = place.pathname.split("/").at(-2);
  const options = {}; // of fetch
  const get = async (name, onBytes) => {
    const answer = await fetched(new URL(name, place), options);
    const reader = answer.body.getReader();
    const pieces = [];
    for (;;) {
      const { done, value } = await reader.read().catch(() => {
        throw new Error(`${name} broke off on its way. Is the network gone?`);
      });
      if (done) return new Blob(pieces).arrayBuffer();
      pieces.push(value);
      onBytes(value.length);
    }
  };
  return {
    version: place.href,
    manifest: async () => {
      const bytes = await kept(version, "manifest.json", () => get("manifest.json", () => {}));
      return JSON.parse(new TextDecoder().decode(bytes));
    },
    file: (name, onBytes) => kept(version, name, () => get(`${name}.gz`, onBytes)),
    async real() {
      const { real } = await this.manifest();
      return real ? realFile(real, place, options) : null;
    },
    forget: () => {
      options.cache = "reload";
      return forget(SHIPPED + version);
    },
  };
}

async function fetched(url, options) {
  let answer;
  try {
    answer = await fetch(url, options);
  } catch {
    throw new Error(`${url.pathname} could not be fetched. Is the network gone?`);
  }
  if (!answer.ok) throw new Error(`${url.pathname} is missing on this site (${answer.status}).`);
  return answer;
}

// The real model's file: a few parts, so that any static host takes them. The browser keeps it until
// there is another one, whatever becomes of the site's version.
function realFile(real, place, options) {
  const version = real.sha256;
  async function* pieces() {
    for (const name of real.parts) {
      const answer = await keptAnswer(version, name, () => fetched(new URL(name, place), options));
      const reader = answer.body.getReader();
      try {
        for (;;) {
          const { done, value } = await reader.read().catch(() => {
            throw new Error(`${name} broke off on its way. Is the network gone?`);
          });
          if (done) break;
          yield value;
        }
      } finally {
        // Where it is given up, the rest neither comes nor waits in memory; what is kept comes whole.
        reader.cancel().catch(() => {});
      }
    }
  }
  const forgetIt = () => {
    options.cache = "reload";
    return forget(REAL + version);
  };
  return { ...real, pieces, forget: forgetIt };
}

// What the browser has kept, or what `get` fetches, which is kept while it is read: it is large.
async function keptAnswer(version, name, get) {
  const place = await opened(REAL, version);
  const found = await place?.match(`/${name}`).catch(() => undefined);
  if (found) return found;
  const answer = await get();
  place?.put(`/${name}`, answer.clone()).catch(() => {});
  return answer;
}

export function kernelHost(model) {
  const version = model.get("version");
  return {
    version,
    manifest: async () => model.get("manifest"),
    file: (name, onBytes) => kept(version, name, () => asked(model, name, onBytes)),
    forget: () => forget(SHIPPED + version),
    real: async () => null, // the kernel runs it
  };
}

function asked(model, name, onBytes) {
  return new Promise((resolve, reject) => {
    const pieces = [];
    let timer = 0;
    const end = () => {
      clearTimeout(timer);
      model.off("msg:custom", take);
    };
    const fail = () => {
      end();
      reject(
        new Error(
          "The kernel does not send the model. If it is busy, wait until it is idle; " +
            "if it was stopped, run the cell again.",
        ),
      );
    };
    const wait = () => {
      clearTimeout(timer);
      timer = setTimeout(fail, KERNEL_SILENT_MS);
    };
    const take = (message, buffers) => {
      if (message.kind !== "piece" || message.name !== name || pieces[message.index]) return;
      pieces[message.index] = buffers[0];
      onBytes(buffers[0].byteLength);
      wait();
      if (Object.keys(pieces).length < message.n) return;
      end();
      resolve(new Blob(pieces).arrayBuffer());
    };
    model.on("msg:custom", take);
    wait();
    try {
      model.send({ kind: "file", name });
    } catch {
      fail(); // there is no kernel
    }
  });
}

// The browser keeps what has come once, for this version only. A page without a safe address, or
// a browser that keeps nothing, does without.
async function kept(version, name, get) {
  const place = await opened(SHIPPED, version);
  const found = await place?.match(`/${name}`).catch(() => undefined);
  if (found) return found.arrayBuffer();
  const bytes = await get();
  await place?.put(`/${name}`, new Response(bytes.slice(0))).catch(() => {});
  return bytes;
}

async function opened(kind, version) {
  try {
    for (const name of await caches.keys()) {
      if (name.startsWith(kind) && name !== kind + version) await caches.delete(name);
    }
    return await caches.open(kind + version);
  } catch {
    return undefined;
  }
}

async function forget(name) {
  try {
    await caches.delete(name);
  } catch {
    // nothing was kept
  }
}
