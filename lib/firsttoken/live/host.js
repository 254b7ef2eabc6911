// Where a view gets its files from: the site's own folder, or the kernel that shows it.
// A host has `version`, `manifest()` and `file(name, onBytes)`, which gives the packed bytes.

const CACHE = "first-token-live-";

export function siteHost(root) {
  const place = new URL(
    root.dataset.assets,
    new URL(document.documentElement.dataset.content_root || "./", document.baseURI),
  );
  return {
    version: place.href,
    manifest: async () => (await fetched(new URL("manifest.json", place))).json(),
    file: async (name, onBytes) => {
      const answer = await fetched(new URL(`${name}.gz`, place));
      const reader = answer.body.getReader();
      const pieces = [];
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return new Blob(pieces).arrayBuffer();
        pieces.push(value);
        onBytes(value.length);
      }
    },
  };
}

async function fetched(url) {
  let answer;
  try {
    answer = await fetch(url);
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
    file: (name, onBytes) => kept(`${CACHE}${version}`, name, () => asked(model, name, onBytes)),
  };
}

function asked(model, name, onBytes) {
  return new Promise((resolve) => {
    const pieces = [];
    let n = 0;
    const take = (message, buffers) => {
      if (message.kind !== "piece" || message.name !== name) return;
      pieces[message.index] = buffers[0];
      onBytes(buffers[0].byteLength);
      n += 1;
      if (n < message.n) return;
      model.off("msg:custom", take);
      resolve(new Blob(pieces).arrayBuffer());
    };
    model.on("msg:custom", take);
    model.send({ kind: "file", name });
  });
}

// The browser keeps what a kernel has sent; a page without a safe address has no such place.
async function kept(store, name, get) {
  const place = globalThis.caches && (await caches.open(store).catch(() => undefined));
  const found = await place?.match(`/${name}`);
  if (found) return found.arrayBuffer();
  const bytes = await get();
  await place?.put(`/${name}`, new Response(bytes.slice(0))).catch(() => {});
  return bytes;
}
