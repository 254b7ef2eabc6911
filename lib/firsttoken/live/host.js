// Where a view gets its files from: the site's own folder, or the kernel that shows it.
// A host has `version`, `manifest()`, `file(name, onBytes)`, which gives the packed bytes, and
// `forget()`, after which nothing is taken from what the browser keeps.

const CACHE = "first-token-live-";
const KERNEL_SILENT_MS = 10_000;

export function siteHost(root) {
  const place = new URL(
    root.dataset.assets,
    new URL(document.documentElement.dataset.content_root || "./", document.baseURI),
  );
  const version = place.pathname.split("/").at(-2);
  let options = {};
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
    forget: () => {
      options = { cache: "reload" };
      return forget(version);
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

export function kernelHost(model) {
  const version = model.get("version");
  return {
    version,
    manifest: async () => model.get("manifest"),
    file: (name, onBytes) => kept(version, name, () => asked(model, name, onBytes)),
    forget: () => forget(version),
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
  const place = await opened(version);
  const found = await place?.match(`/${name}`).catch(() => undefined);
  if (found) return found.arrayBuffer();
  const bytes = await get();
  await place?.put(`/${name}`, new Response(bytes.slice(0))).catch(() => {});
  return bytes;
}

async function opened(version) {
  try {
    for (const name of await caches.keys()) {
      if (name.startsWith(CACHE) && name !== CACHE + version) await caches.delete(name);
    }
    return await caches.open(CACHE + version);
  } catch {
    return undefined;
  }
}

async function forget(version) {
  try {
    await caches.delete(CACHE + version);
  } catch {
    // nothing was kept
  }
}
