var u=`var r=Uint8Array.fromBase64||(()=>{for(var t=new Uint8Array(128),j=0;j<64;j++)t[j<26?j+65:j<52?j+71:j<62?j-4:j*4-205]=j;return A=>{for(var e=A.length,l=new Uint8Array((e-(A[e-1]=="=")-(A[e-2]=="="))*3/4|0),I=0,i=0;I<e;){var o=t[A.charCodeAt(I++)],g=t[A.charCodeAt(I++)],m=t[A.charCodeAt(I++)],s=t[A.charCodeAt(I++)];l[i++]=o<<2|g>>4,l[i++]=g<<4|m>>2,l[i++]=m<<6|s}return l}})();var N=r("AGFzbQEAAAABNgdgAn9/AGAGf39/f39/AGAFf39/f38AYAR7e3t7AXtgCH9/f39/f39/AX1gA39/fwBgAXsBewMJCAABAgEDBAUGBQMBAAEHMwUGbWVtb3J5AgAKaW50ZXJsZWF2ZQAAB3Byb2R1Y3QAAQZhdHRlbmQABQZzd2lnbHUABgqZFwg5AQF7A0AgAP0ABAAhAiAAIAIgAv0NAAEICQIDCgsEBQwNBgcOD/0LBAAgAEEQaiEAIAAgAUkNAAsLWgEBfwJAIAFBBEkNACAAIAFBfHEgAiADIAQgBRADCyABQXxxIQYCQANAIAYgAU8NASAAIAYgA2xBAnRqIAIgAyAEIAUgBiAEbEECdGoQAiAGQQFqIQYMAAsLC7kEAgZ/C3sgAkEBdCEKIAQgA0ECdGohBQNAIAEgCmohByAHIApqIQggCCAKaiEJ/QwAAAAAAAAAAAAAAAAAAAAAIQ79DAAAAAAAAAAAAAAAAAAAAAAhD/0MAAAAAAAAAAAAAAAAAAAAACEQ/QwAAAAAAAAAAAAAAAAAAAAAIRH9DAAAAAAAAAAAAAAAAAAAAAAhEv0MAAAAAAAAAAAAAAAAAAAAACET/QwAAAAAAAAAAAAAAAAAAAAAIRT9DAAAAAAAAAAAAAAAAAAAAAAhFUEAIQYDQCAAIAZBAXRq/QAEACELIAAgBkEBdGr9AAQQIQwgASAGav0ABAAhDSAOIAsgDUEQ/asB/eYB/eQBIQ4gEiAMIA39DAAA//8AAP//AAD//wAA///9Tv3mAf3kASESIAcgBmr9AAQAIQ0gDyALIA1BEP2rAf3mAf3kASEPIBMgDCAN/QwAAP//AAD//wAA//8AAP///U795gH95AEhEyAIIAZq/QAEACENIBAgCyANQRD9qwH95gH95AEhECAUIAwgDf0MAAD//wAA//8AAP//AAD///1O/eYB/eQBIRQgCSAGav0ABAAhDSARIAsgDUEQ/asB/eYB/eQBIREgFSAMIA39DAAA//8AAP//AAD//wAA///9Tv3mAf3kASEVIAZBEGohBiAGIApJDQALIAQgDiAS/eQBIA8gE/3kASAQIBT95AEgESAV/eQBEAT9CwQAIAkgCmohASAEQRBqIQQgBCAFSQ0ACwumBgIOfw17IANBAXQhCyADQQJ0IQwgBEECdCENIAAgASAMbGohBiACIAQgC2xqIQcDQCAAIQggBSEJA0AgCCEOIA4gDGohDyAPIAxqIRAgECAMaiERIBEgDGohCCACIRIgAiALaiET/QwAAAAAAAAAAAAAAAAAAAAAIRn9DAAAAAAAAAAAAAAAAAAAAAAhGv0MAAAAAAAAAAAAAAAAAAAAACEb/QwAAAAAAAAAAAAAAAAAAAAAIRz9DAAAAAAAAAAAAAAAAAAAAAAhHf0MAAAAAAAAAAAAAAAAAAAAACEe/QwAAAAAAAAAAAAAAAAAAAAAIR/9DAAAAAAAAAAAAAAAAAAAAAAhIEEAIQoDQCAS/QAEACEYIBhBEP2rASEUIBj9DAAA//8AAP//AAD//wAA///9TiEVIBP9AAQAIRggGEEQ/asBIRYgGP0MAAD//wAA//8AAP//AAD///1OIRcgDiAKav0ABAAhGCAZIBggFP3mAf3kASEZIB0gGCAW/eYB/eQBIR0gDyAKav0ABAAhGCAaIBggFP3mAf3kASEaIB4gGCAW/eYB/eQBIR4gECAKav0ABAAhGCAbIBggFP3mAf3kASEbIB8gGCAW/eYB/eQBIR8gESAKav0ABAAhGCAcIBggFP3mAf3kASEcICAgGCAW/eYB/eQBISAgDiAKav0ABBAhGCAZIBggFf3mAf3kASEZIB0gGCAX/eYB/eQBIR0gDyAKav0ABBAhGCAaIBggFf3mAf3kASEaIB4gGCAX/eYB/eQBIR4gECAKav0ABBAhGCAbIBggFf3mAf3kASEbIB8gGCAX/eYB/eQBIR8gESAKav0ABBAhGCAcIBggFf3mAf3kASEcICAgGCAX/eYB/eQBISAgEkEQaiESIBNBEGohEyAKQSBqIQogCiAMSQ0ACyAZIB0gGiAeEAQhGCAJIBj9WwMAACAJIA1qIQkgCSAY/VsDAAEgCSANaiEJIBsgHyAcICAQBCEYIAkgGP1bAwAAIAkgDWohCSAJIBj9WwMAASAJIA1qIQkgCCAGSQ0ACyATIQIgBUEIaiEFIAIgB0kNAAsLlQEBAnsgACAB/Q0AAQIDEBESEwQFBgcUFRYXIAAgAf0NCAkKCxgZGhsMDQ4PHB0eH/3kASEEIAIgA/0NAAECAxAREhMEBQYHFBUWFyACIAP9DQgJCgsYGRobDA0ODxwdHh/95AEhBSAEIAX9DQABAgMEBQYHEBESExQVFhcgBCAF/Q0ICQoLDA0ODxgZGhscHR4f/eQBC7EGAwd/AX0GeyADQQJ0IQ0gBiAEQQJ0aiEIIAAgBUECdGohDCAGIQkDQP0MAAAAAAAAAAAAAAAAAAAAACEQ/QwAAAAAAAAAAAAAAAAAAAAAIRH9DAAAAAAAAAAAAAAAAAAAAAAhEv0MAAAAAAAAAAAAAAAAAAAAACETIAEhCiAAIQsDQCAL/QkCACEUIBAgFCAK/QAEAP3mAf3kASEQIBEgFCAK/QAEEP3mAf3kASERIBIgFCAK/QAEIP3mAf3kASESIBMgFCAK/QAEMP3mAf3kASETIAogDWohCiALQQRqIQsgCyAMSQ0ACyAJIBD9CwQAIAkgEf0LBBAgCSAS/QsEICAJIBP9CwQwIAlBwABqIQkgAUHAAGohASAJIAhJDQAL/QwAAID/AACA/wAAgP8AAID/IRQgCCAU/QsEACAIIBT9CwQQIAggFP0LBCAgCCAU/QsEMCAUIRUgBiEJA0AgFSAJ/QAEAP3pASEVIAlBEGohCSAJIAhJDQALIBUgFSAV/Q0ICQoLDA0ODwABAgMEBQYH/ekBIRUgFSAVIBX9DQQFBgcAAQIDDA0ODwgJCgv96QEhFf0MAAAAAAAAAAAAAAAAAAAAACEQIAYhCQNAIAn9AAQAIBX95QEQByEUIAkgFP0LBAAgECAU/eQBIRAgCUEQaiEJIAkgCEkNAAsgECAQIBAgEBAE/R8AIQ8gBUECdCENQQAhCwNA/QwAAAAAAAAAAAAAAAAAAAAAIRD9DAAAAAAAAAAAAAAAAAAAAAAhEf0MAAAAAAAAAAAAAAAAAAAAACES/QwAAAAAAAAAAAAAAAAAAAAAIRMgBiEJIAIgC2ohDgNAIAn9CQIAIRQgECAUIA79AAQA/eYB/eQBIRAgESAUIA79AAQQ/eYB/eQBIREgEiAUIA79AAQg/eYB/eQBIRIgEyAUIA79AAQw/eYB/eQBIRMgDiANaiEOIAlBBGohCSAJIAhJDQALIA/9EyEUIAcgECAU/ecB/QsEACAHIBEgFP3nAf0LBBAgByASIBT95wH9CwQgIAcgEyAU/ecB/QsEMCAHQcAAaiEHIAtBwABqIQsgCyANSQ0ACyAPC1QBAXsDQCAA/QAEACEDIAAgAv0ABAAgA/0MAACAPwAAgD8AAIA/AACAPyAD/eEBEAf95AH95wH95gH9CwQAIABBEGohACACQRBqIQIgACABSQ0ACwv/AgECe/0MAACuwgAArsIAAK7CAACuwv0MAACuQgAArkIAAK5CAACuQiAA/egB/ekBIQAgAP0MO6q4PzuquD87qrg/O6q4P/3mAf1qIQEgACAB/QwAgDE/AIAxPwCAMT8AgDE//eYB/eUBIQAgACAB/QyDgF45g4BeOYOAXjmDgF45/eYB/eQBIQD9DGdpUDlnaVA5Z2lQOWdpUDkhAiACIAD95gH9DM5DtzrOQ7c6zkO3Os5Dtzr95AEhAiACIAD95gH9DAiJCDwIiQg8CIkIPAiJCDz95AEhAiACIAD95gH9DMGpKj3BqSo9wakqPcGpKj395AEhAiACIAD95gH9DKqqKj6qqio+qqoqPqqqKj795AEhAiACIAD95gH9DAAAAD8AAAA/AAAAPwAAAD/95AEhAiACIAD95gEgAP3mASAA/QwAAIA/AACAPwAAgD8AAIA//eQB/eQBIQIgAiAB/fgB/Qx/AAAAfwAAAH8AAAB/AAAA/a4BQRf9qwH95gEL");self.onmessage=()=>N;
`;async function m(e,A){return A(0,1),{host:e,worker:u}}var d="first-token-live-";function h(e){let A=new URL(e.dataset.assets,new URL(document.documentElement.dataset.content_root||"./",document.baseURI)),t=A.pathname.split("/").at(-2),r={},i=async(n,o)=>{let s=(await R(new URL(n,A),r)).body.getReader(),c=[];for(;;){let{done:f,value:g}=await s.read().catch(()=>{throw new Error(`${n} broke off on its way. Is the network gone?`)});if(f)return new Blob(c).arrayBuffer();c.push(g),o(g.length)}};return{version:A.href,manifest:async()=>{let n=await p(t,"manifest.json",()=>i("manifest.json",()=>{}));return JSON.parse(new TextDecoder().decode(n))},file:(n,o)=>p(t,n,()=>i(`${n}.gz`,o)),forget:()=>(r={cache:"reload"},v(t))}}async function R(e,A){let t;try{t=await fetch(e,A)}catch{throw new Error(`${e.pathname} could not be fetched. Is the network gone?`)}if(!t.ok)throw new Error(`${e.pathname} is missing on this site (${t.status}).`);return t}function I(e){let A=e.get("version");return{version:A,manifest:async()=>e.get("manifest"),file:(t,r)=>p(A,t,()=>G(e,t,r)),forget:()=>v(A)}}function G(e,A,t){return new Promise((r,i)=>{let n=[],o=0,a=()=>{clearTimeout(o),e.off("msg:custom",c)},s=()=>{clearTimeout(o),o=setTimeout(()=>{a(),i(new Error("The kernel does not send the model. If it is busy, wait until it is idle; if it was stopped, run the cell again."))},2e4)},c=(f,g)=>{f.kind!=="piece"||f.name!==A||n[f.index]||(n[f.index]=g[0],t(g[0].byteLength),s(),!(Object.keys(n).length<f.n)&&(a(),r(new Blob(n).arrayBuffer())))};e.on("msg:custom",c),s(),e.send({kind:"file",name:A})})}async function p(e,A,t){let r=await M(e),i=await r?.match(`/${A}`).catch(()=>{});if(i)return i.arrayBuffer();let n=await t();return await r?.put(`/${A}`,new Response(n.slice(0))).catch(()=>{}),n}async function M(e){try{for(let A of await caches.keys())A.startsWith(d)&&A!==d+e&&await caches.delete(A);return await caches.open(d+e)}catch{return}}async function v(e){try{await caches.delete(d+e)}catch{}}function E(e,A,t){return e.textContent="cache",()=>{}}function B(e,A,t){return e.textContent="inside",()=>{}}function C(e,A,t){return e.textContent="next_token",()=>{}}function l(e,A={},...t){let r=document.createElement(e);for(let[i,n]of Object.entries(A))n!==void 0&&n!==!1&&r.setAttribute(i,n===!0?"":n);return r.append(...t),r}function N(e,A,{primary:t=!1}={}){let r=l("button",{type:"button",class:t&&"ft-primary"},e);return r.addEventListener("click",A),r}function Q(e){let A=e.querySelector(".ft-live-try")??e.appendChild(l("p")),t=l("progress",{"aria-label":"Loading the model",max:1,value:0}),r=l("span",{class:"ft-readout"});return A.replaceChildren(l("span",{class:"ft-loading"},t,r)),{progress:(i,n)=>{t.max=n,t.value=i,r.textContent=`${(i/1e6).toFixed(1)} of ${(n/1e6).toFixed(1)} MB`},done:()=>e.replaceChildren(),failed:(i,n)=>{let o=l("span",{role:"alert"},i.message),a=N("Try again",n,{primary:!0});A.replaceChildren(l("span",{class:"ft-failed"},o,a)),a.focus({preventScroll:!0})}}}function w(e,A,t){return e.textContent="speculation",()=>{}}function b(e,A,t){return e.textContent="surprise",()=>{}}var x=`/* What is needed before a view's script has come. Colours are the page's own: the website's
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
`;var y=`/* The look of a live view; loader.css has its frame and its colours. */
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
`;var P={next_token:C,inside:B,cache:E,speculation:w,surprise:b},H={next_token:"The next token, live",inside:"Inside the model, live",cache:"The cache, live",speculation:"Speculative decoding, live",surprise:"Loss per token, live"},q=["speculation"];async function k(e,A,t,r){D("ft-live-style",y),e.setAttribute("role","group"),e.setAttribute("aria-label",H[A]);let i=Q(e),n=await L(i,t,q.includes(A));i.done();let o=P[A](e,n,r);return Y(e),o}async function L(e,A,t){for(;;)try{let r=await m(A,e.progress);return t&&await r.need("draft",e.progress),r}catch(r){await A.forget(),await new Promise(i=>e.failed(r,i))}}function Y(e){let A=e.querySelector("textarea, input, button"),t=matchMedia("(pointer: coarse)").matches;e.tabIndex=-1,(t||!A?e:A).focus({preventScroll:!0})}function D(e,A){if(document.getElementById(e))return;let t=document.createElement("style");t.id=e,t.textContent=A,document.head.append(t)}function ce(e){let A=JSON.parse(e.dataset.settings),t={get:()=>A,set:r=>{A={...A,...r}},onChange:()=>{}};return k(e,e.dataset.view,h(e),t)}function T({model:e,el:A}){D("ft-live-frame",x);let t=document.createElement("div");t.className="ft-live",t.dataset.lmSuppressShortcuts="true",t.innerHTML=e.get("still"),A.append(t);let r=[],i={get:()=>e.get("settings"),set:a=>{e.set("settings",{...e.get("settings"),...a}),e.save_changes()},onChange:a=>{let s=()=>a(e.get("settings"));e.on("change:settings",s),r.push(()=>e.off("change:settings",s))}},n=I(e),o=async a=>{a.target.disabled=!0,r.push(await k(t,e.get("view"),n,i))};return t.querySelector(".ft-live-start").addEventListener("click",o,{once:!0}),()=>r.forEach(a=>a())}var ge={render:T};export{ge as default,ce as mount,m as openEngine,h as siteHost};
