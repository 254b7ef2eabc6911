var v=`var g=Uint8Array.fromBase64||(()=>{for(var o=new Uint8Array(128),e=0;e<64;e++)o[e<26?e+65:e<52?e+71:e<62?e-4:e*4-205]=e;return m=>{for(var s=m.length,a=new Uint8Array((s-(m[s-1]=="=")-(m[s-2]=="="))*3/4|0),r=0,f=0;r<s;){var k=o[m.charCodeAt(r++)],l=o[m.charCodeAt(r++)],n=o[m.charCodeAt(r++)],p=o[m.charCodeAt(r++)];a[f++]=k<<2|l>>4,a[f++]=l<<4|n>>2,a[f++]=n<<6|p}return a}})();var i=g("AGFzbQEAAAAFAwEAAQcKAQZtZW1vcnkCAA==");self.onmessage=()=>i;
`;async function g(e,t){return t(0,1),{host:e,worker:v}}var u="first-token-live-";function h(e){let t=new URL(e.dataset.assets,new URL(document.documentElement.dataset.content_root||"./",document.baseURI)),r=t.pathname.split("/").at(-2),n={},a=async(i,s)=>{let l=(await _(new URL(i,t),n)).body.getReader(),d=[];for(;;){let{done:f,value:p}=await l.read().catch(()=>{throw new Error(`${i} broke off on its way. Is the network gone?`)});if(f)return new Blob(d).arrayBuffer();d.push(p),s(p.length)}};return{version:t.href,manifest:async()=>{let i=await m(r,"manifest.json",()=>a("manifest.json",()=>{}));return JSON.parse(new TextDecoder().decode(i))},file:(i,s)=>m(r,i,()=>a(`${i}.gz`,s)),forget:()=>(n={cache:"reload"},x(r))}}async function _(e,t){let r;try{r=await fetch(e,t)}catch{throw new Error(`${e.pathname} could not be fetched. Is the network gone?`)}if(!r.ok)throw new Error(`${e.pathname} is missing on this site (${r.status}).`);return r}function b(e){let t=e.get("version");return{version:t,manifest:async()=>e.get("manifest"),file:(r,n)=>m(t,r,()=>z(e,r,n)),forget:()=>x(t)}}function z(e,t,r){return new Promise((n,a)=>{let i=[],s=0,o=()=>{clearTimeout(s),e.off("msg:custom",d)},l=()=>{clearTimeout(s),s=setTimeout(()=>{o(),a(new Error("The kernel does not send the model. If it is busy, wait until it is idle; if it was stopped, run the cell again."))},2e4)},d=(f,p)=>{f.kind!=="piece"||f.name!==t||i[f.index]||(i[f.index]=p[0],r(p[0].byteLength),l(),!(Object.keys(i).length<f.n)&&(o(),n(new Blob(i).arrayBuffer())))};e.on("msg:custom",d),l(),e.send({kind:"file",name:t})})}async function m(e,t,r){let n=await I(e),a=await n?.match(`/${t}`).catch(()=>{});if(a)return a.arrayBuffer();let i=await r();return await n?.put(`/${t}`,new Response(i.slice(0))).catch(()=>{}),i}async function I(e){try{for(let t of await caches.keys())t.startsWith(u)&&t!==u+e&&await caches.delete(t);return await caches.open(u+e)}catch{return}}async function x(e){try{await caches.delete(u+e)}catch{}}function w(e,t,r){return e.textContent="cache",()=>{}}function y(e,t,r){return e.textContent="inside",()=>{}}function k(e,t,r){return e.textContent="next_token",()=>{}}function c(e,t={},...r){let n=document.createElement(e);for(let[a,i]of Object.entries(t))i!==void 0&&i!==!1&&n.setAttribute(a,i===!0?"":i);return n.append(...r),n}function R(e,t,{primary:r=!1}={}){let n=c("button",{type:"button",class:r&&"ft-primary"},e);return n.addEventListener("click",t),n}function E(e){let t=e.querySelector(".ft-live-try")??e.appendChild(c("p")),r=c("progress",{"aria-label":"Loading the model",max:1,value:0}),n=c("span",{class:"ft-readout"});return t.replaceChildren(c("span",{class:"ft-loading"},r,n)),{progress:(a,i)=>{r.max=i,r.value=a,n.textContent=`${(a/1e6).toFixed(1)} of ${(i/1e6).toFixed(1)} MB`},done:()=>e.replaceChildren(),failed:(a,i)=>{let s=c("span",{role:"alert"},a.message),o=R("Try again",i,{primary:!0});t.replaceChildren(c("span",{class:"ft-failed"},s,o)),o.focus({preventScroll:!0})}}}function A(e,t,r){return e.textContent="speculation",()=>{}}function C(e,t,r){return e.textContent="surprise",()=>{}}var S=`/* What is needed before a view's script has come. Colours are the page's own: the website's
   theme, else JupyterLab's, else the system's. */
.ft-live {
  --ft-ink: var(--pst-color-text-base, var(--jp-content-font-color1, CanvasText));
  --ft-paper: var(--pst-color-background, var(--jp-layout-color0, Canvas));
  --ft-muted: color-mix(in srgb, var(--ft-ink) 75%, var(--ft-paper));
  --ft-line: color-mix(in srgb, var(--ft-ink) 25%, var(--ft-paper));
  --ft-edge: color-mix(in srgb, var(--ft-ink) 55%, var(--ft-paper));
  --ft-ground: color-mix(in srgb, var(--ft-ink) 4%, var(--ft-paper));
  --ft-accent: #3c69f0;
  --ft-mono: var(--pst-font-family-monospace, var(--jp-code-font-family, ui-monospace)), monospace;
  box-sizing: border-box;
  max-width: 44rem;
  margin: 1.25rem auto;
  padding: 1rem;
  border: 1px solid var(--ft-line);
  border-radius: 0.6rem;
  color: var(--ft-ink);
  font-size: 0.95rem;
  line-height: 1.45;
}
.ft-live figure {
  margin: 0;
}
.ft-live .ft-live-try {
  display: flex;
  flex-wrap: wrap;
  align-items: center;
  gap: 0.4rem 1rem;
  margin: 0.9rem 0 0;
  color: var(--ft-muted);
  font-size: 0.9rem;
}
.ft-live .ft-live-start,
.ft-live .ft-primary {
  min-height: 2.75rem;
  padding: 0.4rem 1.1rem;
  border: 0;
  border-radius: 0.5rem;
  background: var(--ft-accent);
  color: #fff;
  font: inherit;
  font-size: 0.95rem;
  font-weight: 600;
  cursor: pointer;
}
.ft-live .ft-live-start:disabled {
  opacity: 0.6;
  cursor: progress;
}
.ft-live :is(button, input, textarea, summary, a):focus-visible {
  outline: 3px solid #d27800;
  outline-offset: 2px;
}
@media (scripting: none) {
  .ft-live .ft-live-try {
    display: none;
  }
}
@media print {
  .ft-live .ft-live-try {
    display: none;
  }
}
`;var N=`/* The look of a live view; loader.css has its frame and its colours. */
.ft-live {
  display: grid;
  gap: 0.9rem;
}
.ft-live > *,
.ft-live .ft-field {
  min-width: 0;
}
.ft-live p,
.ft-live ol {
  margin: 0;
  padding: 0;
}
.ft-live label {
  margin: 0;
  color: var(--ft-ink);
  font-weight: 400;
}

/* Buttons stand in rows of class ft-row. */
.ft-live .ft-row {
  display: flex;
  flex-wrap: wrap;
  align-items: center;
  gap: 0.5rem;
}
.ft-live button:not(.ft-primary, .ft-live-start) {
  min-height: 2.5rem;
  padding: 0.3rem 0.8rem;
  border: 1px solid var(--ft-edge);
  border-radius: 0.5rem;
  background: var(--ft-paper);
  color: var(--ft-ink);
  font: inherit;
  cursor: pointer;
}
.ft-live .ft-primary {
  min-height: 2.5rem;
}
.ft-live button:not(:disabled):hover {
  box-shadow: 0 0 0 1px var(--ft-edge);
}
.ft-live button:disabled {
  opacity: 0.5;
  cursor: default;
}
.ft-live button[aria-pressed="true"]:not(.ft-primary) {
  border-color: var(--ft-accent);
  background: color-mix(in srgb, var(--ft-accent) 18%, var(--ft-paper));
  box-shadow: inset 0 -3px 0 var(--ft-accent);
}

/* Sliders in columns, as many as there is room for. */
.ft-live .ft-sliders {
  display: grid;
  grid-template-columns: repeat(auto-fit, minmax(min(17rem, 100%), 1fr));
  gap: 0.1rem 1.75rem;
}
.ft-live .ft-slider {
  display: grid;
  grid-template-columns: 1fr auto;
  min-width: 0;
}
.ft-live .ft-slider input {
  grid-column: 1 / -1;
  width: 100%;
  height: 2rem;
  margin: 0;
  accent-color: var(--ft-accent);
  cursor: pointer;
}
.ft-live .ft-readout {
  font-variant-numeric: tabular-nums;
}
@media (pointer: coarse) {
  .ft-live .ft-slider input {
    height: 2.5rem;
  }
}
.ft-live .ft-number {
  display: flex;
  align-items: center;
  gap: 0.5rem;
}
.ft-live .ft-number input {
  box-sizing: border-box;
  width: 7rem;
  min-height: 2.5rem;
  padding: 0.25rem 0.5rem;
  border: 1px solid var(--ft-edge);
  border-radius: 0.4rem;
  background: var(--ft-paper);
  color: var(--ft-ink);
  font: inherit;
  font-variant-numeric: tabular-nums;
}
.ft-live [aria-invalid="true"] {
  border-color: #d20f00;
  outline: 2px dashed #d20f00;
}

/* The text field: coloured words lie behind it, of the very same size. */
.ft-live .ft-field {
  display: grid;
  gap: 0.3rem;
}
.ft-live .ft-text {
  max-height: min(22rem, 45vh);
  border: 1px solid var(--ft-edge);
  border-radius: 0.5rem;
  overflow-y: auto;
  background: var(--ft-paper);
}
.ft-live .ft-text:focus-within {
  outline: 3px solid #d27800;
  outline-offset: 2px;
}
.ft-live .ft-text > div {
  display: grid;
  min-height: 4.5rem;
}
.ft-live .ft-text > div > * {
  grid-area: 1 / 1;
  box-sizing: border-box;
  width: 100%;
  min-width: 0;
  margin: 0;
  padding: 0.6rem 0.75rem;
  border: 0;
  background: none;
  font: 1rem / 1.6 var(--ft-mono);
  letter-spacing: 0;
  tab-size: 4;
  white-space: pre-wrap;
  overflow-wrap: anywhere;
  word-break: normal;
}
.ft-live .ft-behind {
  color: transparent;
  user-select: none;
}
.ft-live .ft-text textarea {
  height: 100%;
  color: var(--ft-ink);
  resize: none;
  overflow: hidden;
}
.ft-live .ft-text textarea:focus-visible {
  outline: none;
}

/* Tokens. */
.ft-live .ft-tokens {
  font: 1rem / 1.9 var(--ft-mono);
  white-space: pre-wrap;
  overflow-wrap: anywhere;
}
.ft-live .ft-token {
  padding: 0.1em 0;
  border-radius: 0.2em;
}
.ft-live .ft-invisible {
  opacity: 0.55;
}
.ft-live .ft-special {
  padding: 0.05em 0.4em;
  border: 1px solid var(--ft-edge);
  border-radius: 1em;
  font-family: var(--pst-font-family-base, var(--jp-ui-font-family, system-ui)), sans-serif;
  font-size: 0.8em;
  white-space: nowrap;
}

/* Bars. */
.ft-live .ft-bars {
  display: grid;
  gap: 2px;
  list-style: none;
}
.ft-live .ft-bars li {
  margin: 0;
}
.ft-live .ft-bars li > * {
  display: grid;
  grid-template-columns: minmax(5.5rem, 22%) 1fr 4rem 4.5rem;
  align-items: center;
  gap: 0.6rem;
  width: 100%;
  min-height: 2rem;
  padding: 0.1rem 0.5rem;
  border: 0;
  border-radius: 0.35rem;
  background: none;
  text-align: right;
  font-variant-numeric: tabular-nums;
}
.ft-live .ft-bars button:hover {
  background: color-mix(in srgb, var(--ft-accent) 10%, transparent);
}
.ft-live .ft-piece {
  overflow: hidden;
  font-family: var(--ft-mono);
  text-overflow: ellipsis;
  white-space: nowrap;
}
.ft-live .ft-track {
  position: relative;
  height: 1.1rem;
  border-left: 1px solid var(--ft-edge);
}
.ft-live .ft-track > * {
  position: absolute;
  left: 0;
  max-width: 100%;
  box-sizing: border-box;
  border-radius: 0 0.2rem 0.2rem 0;
}
.ft-live .ft-pale {
  inset-block: 0;
  border: 1px solid color-mix(in srgb, var(--ft-accent) 80%, var(--ft-ink));
  border-left: 0;
  background: color-mix(in srgb, var(--ft-accent) 22%, transparent);
}
.ft-live .ft-strong {
  inset-block: 0.25rem;
  background: var(--ft-accent);
}
.ft-live .ft-before {
  color: var(--ft-muted);
}
.ft-live .ft-after {
  font-weight: 600;
}
.ft-live .ft-dropped :is(.ft-piece, .ft-after) {
  color: var(--ft-muted);
  font-weight: 400;
}
.ft-live .ft-dropped .ft-piece {
  text-decoration: line-through;
}
.ft-live .ft-dropped .ft-pale {
  border-style: dashed;
  background: none;
}
.ft-live .ft-scale {
  color: var(--ft-muted);
  font-size: 0.85rem;
}
@media (max-width: 30rem) {
  .ft-live .ft-bars li > * {
    grid-template-columns: 5.5rem 1fr 3.4rem 3.9rem;
    gap: 0.35rem;
    padding-inline: 0.2rem;
    font-size: 0.9rem;
  }
}
@media (pointer: coarse) {
  .ft-live .ft-bars button {
    min-height: 2.5rem;
  }
}

/* The line that says how things stand, and what only a screen reader reads. */
.ft-live .ft-seen {
  min-height: 1.45em;
  color: var(--ft-muted);
  font-variant-numeric: tabular-nums;
}
.ft-live .ft-spoken {
  position: absolute;
  width: 1px;
  height: 1px;
  overflow: hidden;
  clip-path: inset(50%);
  white-space: nowrap;
}

/* On the way. */
.ft-live .ft-loading,
.ft-live .ft-failed {
  display: flex;
  flex-wrap: wrap;
  align-items: center;
  gap: 0.5rem 1rem;
  min-height: 2.75rem;
  width: 100%;
}
.ft-live .ft-loading progress {
  flex: 1 1 10rem;
  height: 0.6rem;
  accent-color: var(--ft-accent);
}
.ft-live .ft-failed [role="alert"] {
  flex: 1 1 14rem;
  padding-left: 0.75rem;
  border-left: 4px solid #d20f00;
  color: var(--ft-ink);
}
`;var U={next_token:k,inside:y,cache:w,speculation:A,surprise:C},F={next_token:"The next token, live",inside:"Inside the model, live",cache:"The cache, live",speculation:"Speculative decoding, live",surprise:"Loss per token, live"},H=["speculation"];async function T(e,t,r,n){L("ft-live-style",N),e.setAttribute("role","group"),e.setAttribute("aria-label",F[t]);let a=E(e),i=await j(a,r,H.includes(t));a.done();let s=U[t](e,i,n);return O(e),s}async function j(e,t,r){for(;;)try{let n=await g(t,e.progress);return r&&await n.need("draft",e.progress),n}catch(n){await t.forget(),await new Promise(a=>e.failed(n,a))}}function O(e){let t=e.querySelector("textarea, input, button"),r=matchMedia("(pointer: coarse)").matches;e.tabIndex=-1,(r||!t?e:t).focus({preventScroll:!0})}function L(e,t){if(document.getElementById(e))return;let r=document.createElement("style");r.id=e,r.textContent=t,document.head.append(r)}function de(e){let t=JSON.parse(e.dataset.settings),r={get:()=>t,set:n=>{t={...t,...n}},onChange:()=>{}};return T(e,e.dataset.view,h(e),r)}function D({model:e,el:t}){L("ft-live-frame",S);let r=document.createElement("div");r.className="ft-live",r.dataset.lmSuppressShortcuts="true",r.innerHTML=e.get("still"),t.append(r);let n=[],a={get:()=>e.get("settings"),set:o=>{e.set("settings",{...e.get("settings"),...o}),e.save_changes()},onChange:o=>{let l=()=>o(e.get("settings"));e.on("change:settings",l),n.push(()=>e.off("change:settings",l))}},i=b(e),s=async o=>{o.target.disabled=!0,n.push(await T(r,e.get("view"),i,a))};return r.querySelector(".ft-live-start").addEventListener("click",s,{once:!0}),()=>n.forEach(o=>o())}var pe={render:D};export{pe as default,de as mount,g as openEngine,h as siteHost};
