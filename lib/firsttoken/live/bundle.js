var ot='var ye=Uint8Array.fromBase64||(()=>{for(var e=new Uint8Array(128),t=0;t<64;t++)e[t<26?t+65:t<52?t+71:t<62?t-4:t*4-205]=t;return n=>{for(var r=n.length,s=new Uint8Array((r-(n[r-1]=="=")-(n[r-2]=="="))*3/4|0),o=0,i=0;o<r;){var a=e[n.charCodeAt(o++)],c=e[n.charCodeAt(o++)],l=e[n.charCodeAt(o++)],h=e[n.charCodeAt(o++)];s[i++]=a<<2|c>>4,s[i++]=c<<4|l>>2,s[i++]=l<<6|h}return s}})();function M(e,t,n=0){if(!Number.isSafeInteger(t)||t<n)throw new Error(`${e} must be an integer of at least ${n}, got ${t}`)}function R(e,t,n){if(!Number.isInteger(t)||t<0||t>=n)throw new Error(`${e} must lie in 0 … ${n-1}, got ${t}`)}function I(e,{vocab_size:t,max_context:n}){if(e.length===0)throw new Error("ids must hold at least one id, got none");if(e.length>n)throw new Error(`ids hold ${e.length} tokens, expected at most the context of ${n}`);for(let r of e)R("token ids",r,t)}var _t=0x2360ed051fc65da44385df649fccf645n;function ve(e){let[t,n,r,s]=gt(BigInt(e??xt())),o=(r<<64n|s)<<1n|1n,i=c=>BigInt.asUintN(128,c*_t+o),a=i(i(0n)+(t<<64n|n));return{random:()=>(a=i(a),Number(mt(a)>>11n)/2**53)}}function mt(e){let t=BigInt.asUintN(64,e>>64n^e),n=e>>122n;return BigInt.asUintN(64,t>>n|t<<64n-n)}function xt(){return crypto.getRandomValues(new BigUint64Array(1))[0]}function gt(e){let t=wt(bt(e)),n=Ae(2337405405,1492356589),r=Array.from({length:8},(s,o)=>BigInt(n(t[o%t.length])));return[0,2,4,6].map(s=>r[s+1]<<32n|r[s])}function wt(e){let t=Ae(1135663077,2468251765),n=Array.from({length:4},(r,s)=>t(e[s]??0));for(let r=0;r<4;r++)for(let s=0;s<4;s++)r!==s&&(n[s]=ke(n[s],t(n[r])));for(let r of e.slice(4))for(let s=0;s<4;s++)n[s]=ke(n[s],t(r));return n}function Ae(e,t){return n=>{let r=n^e;e=Math.imul(e,t);let s=Math.imul(r,e);return(s^s>>>16)>>>0}}function ke(e,t){let n=Math.imul(3389127133,e)-Math.imul(1232336661,t);return(n^n>>>16)>>>0}function bt(e){let t=[];do t.push(Number(e&0xffffffffn)),e>>=32n;while(e>0n);return t}var{fround:ie}=Math,oe={temperature:1,top_k:0,top_p:1,min_p:0,repetition_penalty:1,seed:null},yt={temperature:[0,1/0],top_p:[0,1],min_p:[0,1],repetition_penalty:[0,1/0]},kt=ie(34028234663852886e22),Ee=2*2**-23;function J(e={}){for(let n of Object.keys(e))if(!(n in oe))throw new Error(`params must be among ${Object.keys(oe).join(", ")}, got ${n}`);let t={...oe,...e};for(let[n,[r,s]]of Object.entries(yt)){let o=t[n];if(typeof o!="number"||!(r<=o&&o<=s)||o===1/0){let i=`a number within ${r} … ${s===1/0?"inf":s}`;throw new Error(`${n} must be ${i}, got ${o}`)}}if(t.repetition_penalty===0)throw new Error("repetition_penalty must be above 0, got 0");return M("top_k",t.top_k),t.seed!==null&&M("seed",t.seed),t}function B(e){let t=e[X(e)],n=e.slice(),r=0;for(let s=0;s<n.length;s+=1)n[s]-=t,n[s]=Math.exp(n[s]),r+=n[s];for(let s=0;s<n.length;s+=1)n[s]/=r;return n}function Q(e,t,n){let r=At(vt(e,t,n),t.temperature);return t.min_p>0&&(r=Et(r,t.min_p)),t.top_k>0&&t.top_k<r.length&&(r=ae(r,t.top_k)),t.top_p<1&&(r=St(r,t.top_p)),B(r)}function H(e,{random:t}){let n=0;for(let o of e)n+=o;let r=t()*n,s=0;for(let o=0;o<e.length;o+=1)if(s+=e[o],s>r)return o;throw new Error("probabilities must be not negative, finite, not all 0")}function X(e){let t=0;for(let n=1;n<e.length;n+=1)e[n]>e[t]&&(t=n);return t}function W(e,t){let n=[];for(let r=0;r<e.length;r+=1){if(n.length===t&&!(e[r]>e[n[t-1]]))continue;let s=0;for(let o=n.length;s<o;){let i=s+o>>1;e[n[i]]<e[r]?o=i:s=i+1}n.splice(s,0,r),n.length>t&&n.pop()}return n}function vt(e,t,n){let r=t.repetition_penalty;if(r===1)return e;let s=e.slice();for(let o of new Set(n))s[o]=e[o]>0?e[o]/r:e[o]*r;return s}function At(e,t){if(t===1)return e;if(t===0)return ae(e,1);let n=ie(Math.min(t,kt)),r=e[X(e)];if(!Number.isFinite(ie(r/n)))return e.map(o=>(o-r)/t);let s=e.slice();for(let o=0;o<s.length;o+=1)s[o]/=n;return s}function Et(e,t){let n=e[X(e)]+Math.log(t)-Ee;return e.map(r=>r>=n?r:-1/0)}function St(e,t){let n=B(new Float64Array(e)),r=(1-t)/(2*e.length),s=n.filter(a=>a>=r).sort(),o=0,i=0;do i+=s[s.length-++o];while(o<s.length&&i<t-Ee);return ae(e,o)}function ae(e,t){let n=e.slice().fill(-1/0);for(let r of W(e,t))n[r]=e[r];return n}function Se(e,t,n,r){let s=n.map(()=>r.random());for(let[o,i]of n.entries()){let a=Math.min(e[o][i],t[o][i])/t[o][i];if(!(s[o]<a))return[...n.slice(0,o),H(zt(e[o],t[o]),r)]}return[...n,H(e[n.length],r)]}function zt(e,t){let n=new Float64Array(e.length),r=0;for(let s=0;s<e.length;s+=1)n[s]=e[s]-Math.min(e[s],t[s]),r+=n[s];return r>0?n:e}async function ze({tokenizer:e,models:t},n,r){let{use_cache:s=!0,top:o=10}=n,i=t.target,a=$e(i,e,n),c=s?i.newCache(a.maxLength):null;try{for(;!a.finishReason&&!r.stopped;){let l=performance.now(),h=a.ids.slice(c?c.length:0),u=i.lastLogits(h,c),d=a.distribution(u),b=a.append(H(d,a.rng));r.tell({...b,ids_length:a.ids.length,step_ms:performance.now()-l,at_ms:a.elapsedMs(),n_cached:c?.length??0,cache_bytes:c?.bytes??0,cache_capacity_bytes:c?.capacityBytes??0,top:ce(e,B(u),d,o)}),await r.turn()}return a.result()}finally{c?.free()}}async function Ce({tokenizer:e,models:t},n,r){let{target:s,draft:o}=t;if(!o)throw new Error("draft is not loaded: `need` it first");let{gamma:i=4}=n;M("gamma",i);let a=$e(s,e,n),c=[s,o].map(h=>h.newCache(a.maxLength)),l=[];try{for(;!a.finishReason&&!r.stopped;){let h=Ct(s,o,c,a,i),{drafted:u,accepted:d}=h;l.push({drafted:u,accepted:d}),r.tell({...h,rejected:h.rejected.map(e.named),at_ms:a.elapsedMs()}),await r.turn()}return{...a.result(),rounds:l}}finally{for(let h of c)h.free()}}function Ct(e,t,[n,r],s,o){let i=performance.now(),a=Math.min(o,s.maxLength-s.ids.length-1),{drafted:c,guesses:l}=$t(t,r,s,a),h=performance.now(),u=Tt(e,n,s,c).map((z,j)=>s.distribution(z,c.slice(0,j))),d=Se(u,l,c,s.rng),b=performance.now(),A=d.length-1,y=A<c.length?"replaced":"bonus",m=[];for(let[z,j]of d.entries())if(m.push({...s.append(j),kind:z<A?"kept":y}),s.finishReason)break;return n.truncate(s.ids.length-1),{tokens:m,rejected:c.slice(A),drafted:c.length,accepted:A,draft_ms:h-i,check_ms:b-h}}function $t(e,t,n,r){t.truncate(Math.min(t.length,n.ids.length-1));let s=[],o=[];for(;s.length<r&&s.at(-1)!==e.arch.eos_id;){let i=[...n.ids,...s].slice(t.length),a=n.distribution(e.lastLogits(i,t),s);o.push(a),s.push(H(a,n.rng))}return{drafted:s,guesses:o}}function Tt(e,t,n,r){let s=e.arch.vocab_size,o=e.forward([...n.ids,...r].slice(t.length),t),i=o.length/s-r.length-1;return Array.from({length:r.length+1},(a,c)=>o.subarray((i+c)*s,(i+c+1)*s))}function $e(e,t,{ids:n,params:r,max_tokens:s=16}){let o=J(r),{eos_id:i,max_context:a}=e.arch;if(I(n,e.arch),M("max_tokens",s,1),n.length===a)throw new Error(`ids hold ${n.length} tokens, expected fewer than the context of ${a}`);let c=performance.now(),l=[...n],h=t.stream(),u={ids:l,maxLength:Math.min(l.length+s,a),finishReason:null,rng:ve(o.seed),distribution:(d,b=[])=>Q(d,o,[...l,...b]),append(d){l.push(d);let b=l.length-n.length;return d===i?u.finishReason="eos":b===s?u.finishReason="length":l.length===a&&(u.finishReason="context"),{...t.named(d),text:h.push(d)}},elapsedMs:()=>performance.now()-c,result(){let d=l.slice(n.length);return{finish_reason:u.finishReason??"stopped",ids:d,text:t.decode(d),seconds:u.elapsedMs()/1e3}}};return u}function ce(e,t,n,r){return W(t,r).map(s=>({...e.named(s),p:t[s],kept:n[s]}))}var le=ye("AGFzbQEAAAABOgdgAn9/AGAGf39/f39/AGAFf39/f38AYAR7e3t7AXtgB39/f39/f38BfWAEf39/fwBgBX9/f3t7AX0DCQgAAQIBAwQFBgUDAQABBzMFBm1lbW9yeQIACmludGVybGVhdmUAAAdwcm9kdWN0AAEGYXR0ZW5kAAUGc3dpZ2x1AAYKpRYIOQEBewNAIAD9AAQAIQIgACACIAL9DQABCAkCAwoLBAUMDQYHDg/9CwQAIABBEGohACAAIAFJDQALC1oBAX8CQCABQQRJDQAgACABQXxxIAIgAyAEIAUQAwsgAUF8cSEGAkADQCAGIAFPDQEgACAGIANsQQJ0aiACIAMgBCAFIAYgBGxBAnRqEAIgBkEBaiEGDAALCwuNBAIGfwx7/QwAAP//AAD//wAA//8AAP//IQ4gAkEBdCEKIAQgA0ECdGohBQNAIAEgCmohByAHIApqIQggCCAKaiEJ/QwAAAAAAAAAAAAAAAAAAAAAIQ/9DAAAAAAAAAAAAAAAAAAAAAAhEP0MAAAAAAAAAAAAAAAAAAAAACER/QwAAAAAAAAAAAAAAAAAAAAAIRL9DAAAAAAAAAAAAAAAAAAAAAAhE/0MAAAAAAAAAAAAAAAAAAAAACEU/QwAAAAAAAAAAAAAAAAAAAAAIRX9DAAAAAAAAAAAAAAAAAAAAAAhFkEAIQYDQCAAIAZBAXRq/QAEACELIAAgBkEBdGr9AAQQIQwgASAGav0ABAAhDSAPIAsgDUEQ/asB/eYB/eQBIQ8gEyAMIA0gDv1O/eYB/eQBIRMgByAGav0ABAAhDSAQIAsgDUEQ/asB/eYB/eQBIRAgFCAMIA0gDv1O/eYB/eQBIRQgCCAGav0ABAAhDSARIAsgDUEQ/asB/eYB/eQBIREgFSAMIA0gDv1O/eYB/eQBIRUgCSAGav0ABAAhDSASIAsgDUEQ/asB/eYB/eQBIRIgFiAMIA0gDv1O/eYB/eQBIRYgBkEQaiEGIAYgCkkNAAsgBCAPIBP95AEgECAU/eQBIBEgFf3kASASIBb95AEQBP0LBAAgCSAKaiEBIARBEGohBCAEIAVJDQALC5oGAg5/Dnv9DAAA//8AAP//AAD//wAA//8hGSADQQF0IQsgA0ECdCEMIARBAnQhDSAAIAEgDGxqIQYgAiAEIAtsaiEHA0AgACEIIAUhCQNAIAghDiAOIAxqIQ8gDyAMaiEQIBAgDGohESARIAxqIQggAiESIAIgC2ohE/0MAAAAAAAAAAAAAAAAAAAAACEa/QwAAAAAAAAAAAAAAAAAAAAAIRv9DAAAAAAAAAAAAAAAAAAAAAAhHP0MAAAAAAAAAAAAAAAAAAAAACEd/QwAAAAAAAAAAAAAAAAAAAAAIR79DAAAAAAAAAAAAAAAAAAAAAAhH/0MAAAAAAAAAAAAAAAAAAAAACEg/QwAAAAAAAAAAAAAAAAAAAAAISFBACEKA0AgEv0ABAAhGCAYQRD9qwEhFCAYIBn9TiEVIBP9AAQAIRggGEEQ/asBIRYgGCAZ/U4hFyAOIApq/QAEACEYIBogGCAU/eYB/eQBIRogHiAYIBb95gH95AEhHiAPIApq/QAEACEYIBsgGCAU/eYB/eQBIRsgHyAYIBb95gH95AEhHyAQIApq/QAEACEYIBwgGCAU/eYB/eQBIRwgICAYIBb95gH95AEhICARIApq/QAEACEYIB0gGCAU/eYB/eQBIR0gISAYIBb95gH95AEhISAOIApq/QAEECEYIBogGCAV/eYB/eQBIRogHiAYIBf95gH95AEhHiAPIApq/QAEECEYIBsgGCAV/eYB/eQBIRsgHyAYIBf95gH95AEhHyAQIApq/QAEECEYIBwgGCAV/eYB/eQBIRwgICAYIBf95gH95AEhICARIApq/QAEECEYIB0gGCAV/eYB/eQBIR0gISAYIBf95gH95AEhISASQRBqIRIgE0EQaiETIApBIGohCiAKIAxJDQALIBogHiAbIB8QBCEYIAkgGP1bAwAAIAkgDWohCSAJIBj9WwMAASAJIA1qIQkgHCAgIB0gIRAEIRggCSAY/VsDAAAgCSANaiEJIAkgGP1bAwABIAkgDWohCSAIIAZJDQALIBMhAiAFQQhqIQUgAiAHSQ0ACwuVAQECeyAAIAH9DQABAgMQERITBAUGBxQVFhcgACAB/Q0ICQoLGBkaGwwNDg8cHR4f/eQBIQQgAiAD/Q0AAQIDEBESEwQFBgcUFRYXIAIgA/0NCAkKCxgZGhsMDQ4PHB0eH/3kASEFIAQgBf0NAAECAwQFBgcQERITFBUWFyAEIAX9DQgJCgsMDQ4PGBkaGxwdHh/95AEL4gUDBn8BfQZ7IAUgA0ECdGohByAEQQJ0IQsgACALaiEKIAUhCANA/QwAAAAAAAAAAAAAAAAAAAAAIRD9DAAAAAAAAAAAAAAAAAAAAAAhEf0MAAAAAAAAAAAAAAAAAAAAACES/QwAAAAAAAAAAAAAAAAAAAAAIRMgACEJA0AgCf0JAgAhDiAQIA4gAf0ABAD95gH95AEhECARIA4gAf0ABBD95gH95AEhESASIA4gAf0ABCD95gH95AEhEiATIA4gAf0ABDD95gH95AEhEyABQcAAaiEBIAlBBGohCSAJIApJDQALIAggEP0LBAAgCCAR/QsEECAIIBL9CwQgIAggE/0LBDAgCEHAAGohCCAIIAdJDQAL/QwAAID/AACA/wAAgP8AAID/IQ4gByAO/QsEACAHIA79CwQQIAcgDv0LBCAgByAO/QsEMCAOIQ8gBSEIA0AgDyAI/QAEAP3pASEPIAhBEGohCCAIIAdJDQALIA8gDyAP/Q0ICQoLDA0ODwABAgMEBQYH/ekBIQ8gDyAPIA/9DQQFBgcAAQIDDA0ODwgJCgv96QEhDyAFIAcgBf0MAACAPwAAgD8AAIA/AACAPyAPEAchDUEAIQkDQP0MAAAAAAAAAAAAAAAAAAAAACEQ/QwAAAAAAAAAAAAAAAAAAAAAIRH9DAAAAAAAAAAAAAAAAAAAAAAhEv0MAAAAAAAAAAAAAAAAAAAAACETIAUhCCACIAlqIQwDQCAI/QkCACEOIBAgDiAM/QAEAP3mAf3kASEQIBEgDiAM/QAEEP3mAf3kASERIBIgDiAM/QAEIP3mAf3kASESIBMgDiAM/QAEMP3mAf3kASETIAwgC2ohDCAIQQRqIQggCCAHSQ0ACyAN/RMhDiAGIBAgDv3nAf0LBAAgBiARIA795wH9CwQQIAYgEiAO/ecB/QsEICAGIBMgDv3nAf0LBDAgBkHAAGohBiAJQcAAaiEJIAkgC0kNAAsgDQt2ACAAIAEgA/0MAACAvwAAgL8AAIC/AACAv/0MAAAAAAAAAAAAAAAAAAAAABAHGgNAIAAgAP0ABAAgAv0ABAD95gFDAACAP/0TIAP9AAQA/eQB/ecB/QsEACAAQRBqIQAgAkEQaiECIANBEGohAyAAIAFJDQALC/ACARF7QwAArkL9EyEJQwAArsL9EyEKQzuquD/9EyELQwCAMT/9EyEMQ4OAXrn9EyENQ2dpUDn9EyEOQ85Dtzr9EyEPQwiJCDz9EyEQQ8GpKj39EyERQ6qqKj79EyESQwAAAD/9EyETQwAAgD/9EyEUQf8A/REhFQNAIAMgAP0ABAD95gEgBP3lASEFIAUgCf3qASAK/esBIQUgBSAL/eYB/WohBiAFIAYgDP3mAf3lASEFIAUgBiAN/eYB/eUBIQUgDiAF/eYBIA/95AEhByAHIAX95gEgEP3kASEHIAcgBf3mASAR/eQBIQcgByAF/eYBIBL95AEhByAHIAX95gEgE/3kASEHIAcgBf3mASAF/eYBIQcgByAFIBT95AH95AEhByAG/fgBIQYgByAGIBX9rgFBF/2rAf3mASEHIAIgB/0LBAAgCCAH/eQBIQggAEEQaiEAIAJBEGohAiAAIAFJDQALIAggCCAIIAgQBP0fAAs=");function Te(e){let t=Bt(e),n=8+je(e),r=new Map;for(let[s,{dtype:o,shape:i,data_offsets:[a,c]=[]}]of Object.entries(t)){if(s==="__metadata__")continue;if(o!=="BF16")throw new Error(`${s} is stored as ${o}; expected BF16.`);let l=i.reduce((h,u)=>h*u,2);if(c-a!==l)throw new Error(`${s} [${i}] takes ${c-a} bytes; expected ${l}.`);if(n+c>e.byteLength)throw new Error(`The weights end after ${e.byteLength} bytes; ${s} needs ${n+c}.`);r.set(s,{dtype:o,shape:i,offset:n+a,length:c-a})}return r}function je(e){if(e.byteLength<8)throw new Error(`The weights end after ${e.byteLength} bytes, before their header.`);return Number(new DataView(e).getBigUint64(0,!0))}function Bt(e){let t=je(e);if(8+t>e.byteLength)throw new Error(`The weights end after ${e.byteLength} bytes; their header needs ${8+t}.`);try{return JSON.parse(new TextDecoder().decode(new Uint8Array(e,8,t)))}catch{throw new Error("The header of the weights is not readable: the file was altered.")}}function Be(e,t){for(let[n,r]of t){let s=e.get(n);if(!s)throw new Error(`The weights lack ${n}.`);if(String(s.shape)!==String(r))throw new Error(`${n} has the shape [${s.shape}]; expected [${r}].`)}for(let n of e.keys())if(!t.has(n))throw new Error(`The weights hold ${n}, which nothing uses.`)}var Ne=32,D=16;function Pe(e,t){let n=Nt(e),r=Te(t);Be(r,Me(n));let s=Lt(),o=Pt(s,n,t,r),i=Mt(s,n,o),a,c=(l,h)=>h||((!a||a.capacity<l.length)&&(a?.free(),a=Le(s,n,Math.max(l.length,n.max_context))),a.truncate(0),a);return{arch:n,get memoryBytes(){return s.kernel.memory.buffer.byteLength},newCache:(l=n.max_context)=>Le(s,n,l),forward(l,h=null){let u=new Float32Array(l.length*n.vocab_size),d=(b,A)=>u.set(i.logits(0,A),b*n.vocab_size);return i.pass(l,c(l,h),{afterChunk:d}),u},lastLogits(l,h=null){let u=i.pass(l,c(l,h));return i.logits(u-1,1).slice()},inside(l,h=[]){let{n_layers:u,n_heads:d,vocab_size:b}=n,A=l.length,y=new Float32Array(u*d*A*A),m=new Float32Array(u*b),z=i.pass(l,c(l,null),{silenced:h,onAttention(j,q,re,Y,se){let G=((j*d+q)*A+re)*A;for(let O=0;O<Y.length;O+=1)y[G+O]=Y[O]/se},afterLayer:(j,q)=>m.set(i.logits(q-1,1),j*b)});return{attention:y,layerLogits:m,logits:i.logits(z-1,1).slice()}}}}function Nt(e){if(e.model_type!=="llama"||e.hidden_act!=="silu"||e.rope_scaling)throw new Error("The configuration is not that of a plain Llama model.");if(!e.tie_word_embeddings)throw new Error("The configuration has an output matrix of its own; expected tied weights.");let t={n_layers:e.num_hidden_layers,d_model:e.hidden_size,n_heads:e.num_attention_heads,n_kv_heads:e.num_key_value_heads,head_dim:e.head_dim,d_ff:e.intermediate_size,vocab_size:e.vocab_size,max_context:e.max_position_embeddings,eos_id:e.eos_token_id,rope_theta:e.rope_theta,norm_eps:e.rms_norm_eps};for(let r of["d_model","d_ff","vocab_size"])if(t[r]%8)throw new Error(`${r} is ${t[r]}; expected a multiple of 8.`);if(t.head_dim%16)throw new Error(`head_dim is ${t.head_dim}; expected a multiple of 16.`);let n=[...Me(t).values()].map(r=>r.reduce((s,o)=>s*o));return{...t,n_params:n.reduce((r,s)=>r+s)}}function Me(e){let{d_model:t,d_ff:n}=e,r=e.n_heads*e.head_dim,s=e.n_kv_heads*e.head_dim,o=new Map([["model.embed_tokens.weight",[e.vocab_size,t]]]);for(let i=0;i<e.n_layers;i+=1){let a=(c,...l)=>o.set(`model.layers.${i}.${c}.weight`,l);a("input_layernorm",t),a("self_attn.q_proj",r,t),a("self_attn.k_proj",s,t),a("self_attn.v_proj",s,t),a("self_attn.o_proj",t,r),a("post_attention_layernorm",t),a("mlp.gate_proj",n,t),a("mlp.up_proj",n,t),a("mlp.down_proj",t,n)}return o.set("model.norm.weight",[t])}function Lt(){if(!WebAssembly.validate(le))throw new Error("This browser cannot run the model: it lacks the vector instructions (SIMD).");let e=new WebAssembly.Instance(new WebAssembly.Module(le)).exports,t=new Map,n=0,r=new Float32Array(e.memory.buffer);return{kernel:e,get floats(){return r},take(s){let o=Math.ceil(s/64)*64,i=t.get(o)?.pop();if(i!==void 0)return i;let a=n;n+=o;let c=n-e.memory.buffer.byteLength;return c>0&&(e.memory.grow(Math.ceil(c/65536)),r=new Float32Array(e.memory.buffer)),a},giveBack(s,o){let i=Math.ceil(o/64)*64;t.set(i,[...t.get(i)??[],s])}}}function Pt(e,t,n,r){let s=c=>{let{offset:l,length:h}=r.get(c),u=e.take(h);return new Uint8Array(e.kernel.memory.buffer).set(new Uint8Array(n,l,h),u),e.kernel.interleave(u,u+h),u},o=c=>{let{offset:l,length:h}=r.get(c),u=new Uint16Array(n.slice(l,l+h));return new Float32Array(Uint32Array.from(u,d=>d<<16).buffer)},i=Array.from({length:t.n_layers},(c,l)=>{let h=u=>`model.layers.${l}.${u}.weight`;return{attentionNorm:o(h("input_layernorm")),q:s(h("self_attn.q_proj")),k:s(h("self_attn.k_proj")),v:s(h("self_attn.v_proj")),out:s(h("self_attn.o_proj")),mlpNorm:o(h("post_attention_layernorm")),gate:s(h("mlp.gate_proj")),up:s(h("mlp.up_proj")),down:s(h("mlp.down_proj"))}}),a=s("model.embed_tokens.weight");return{blocks:i,embedding:a,finalNorm:o("model.norm.weight")}}function Le(e,t,n){let{n_layers:r,n_kv_heads:s,head_dim:o}=t,i=Math.ceil(n/D)*D,a=i*o*4,c=r*s*2*o*4,l=e.take(i*c),h=(u,d)=>l+(u*s+d)*2*a;return{length:0,capacity:n,capacityBytes:n*c,get bytes(){return this.length*c},atKeys:h,atValues:(u,d)=>h(u,d)+a,truncate(u){R("length",u,this.length+1),this.length=u},free:()=>e.giveBack(l,i*c)}}function Mt(e,t,n){let{d_model:r,n_heads:s,n_kv_heads:o,head_dim:i,d_ff:a,vocab_size:c,norm_eps:l}=t,{kernel:h}=e,u=s/o,d=i/2,b=Math.fround(1/Math.sqrt(i)),A=Ft(i,t.rope_theta),y=g=>e.take(Ne*g*4),m={x:y(r),h:y(r),q:y(s*i),k:y(o*i),v:y(o*i),mixed:y(s*i),y:y(r),gate:y(a),up:y(a),exps:y(a),logits:y(c)},z={at:0,size:0};function j(g,_,w={}){q(g,_),re(_.capacity);let f=0;for(let p=0;p<g.length;p+=f)f=Math.min(Ne,g.length-p),Y(g.slice(p,p+f),_,w),w.afterChunk?.(p,f);return f}function q(g,_){M("the number of ids",g.length,1);for(let w of g)R("token ids",w,c);if(_.length+g.length>_.capacity)throw new Error(`The cache holds ${_.length} of ${_.capacity} tokens; ${g.length} more do not fit.`)}function re(g){let _=(g+D)*4;z.size>=_||(z.size&&e.giveBack(z.at,z.size),z={at:e.take(_),size:_})}function Y(g,_,w){let f=g.length,p=O(_.length,f);se(g),n.blocks.forEach((x,k)=>{G(f,x.attentionNorm),h.product(m.h,f,x.q,r,s*i,m.q),h.product(m.h,f,x.k,r,o*i,m.k),h.product(m.h,f,x.v,r,o*i,m.v),ge(m.q,f,s,p,b),ge(m.k,f,o,p,1),ut(f,_,k),ft(f,_,k,w.onAttention),dt(f,k,w.silenced),h.product(m.mixed,f,x.out,s*i,r,m.y),we(f),G(f,x.mlpNorm),h.product(m.h,f,x.gate,r,a,m.gate),h.product(m.h,f,x.up,r,a,m.up),h.swiglu(m.gate,m.gate+f*a*4,m.up,m.exps),h.product(m.gate,f,x.down,a,r,m.y),we(f),w.afterLayer?.(k,f)}),_.length+=f}function se(g){let _=new Uint32Array(e.floats.buffer,m.x,g.length*r),w=new Uint16Array(e.floats.buffer,n.embedding,c*r);g.forEach((f,p)=>{for(let x=0;x<r;x+=1){let k=(x&-8)+2*(x&3)+(x>>2&1);_[p*r+x]=w[f*r+k]<<16}})}function G(g,_,w=0){let f=e.floats;for(let p=w;p<w+g;p+=1){let x=m.x/4+p*r,k=m.h/4+p*r,E=0;for(let v=0;v<r;v+=1)E+=f[x+v]*f[x+v];let C=1/Math.sqrt(E/r+l);for(let v=0;v<r;v+=1)f[k+v]=f[x+v]*C*_[v]}}function O(g,_){let w=new Float32Array(_*d),f=new Float32Array(_*d);for(let p=0;p<_;p+=1)for(let x=0;x<d;x+=1){let k=Math.fround((g+p)*A[x]);w[p*d+x]=Math.cos(k),f[p*d+x]=Math.sin(k)}return{cos:w,sin:f}}function ge(g,_,w,{cos:f,sin:p},x){let k=e.floats;for(let E=0;E<_;E+=1)for(let C=0;C<w;C+=1){let v=g/4+(E*w+C)*i;for(let S=0;S<d;S+=1){let $=k[v+S]*x,K=k[v+S+d]*x,Z=f[E*d+S],be=p[E*d+S];k[v+S]=$*Z-K*be,k[v+S+d]=K*Z+$*be}}}function ut(g,_,w){let f=e.floats;for(let p=0;p<g;p+=1){let x=_.length+p,k=Math.floor(x/D);for(let E=0;E<o;E+=1){let C=(p*o+E)*i,v=_.atKeys(w,E)/4+k*i*D+x%D,S=_.atValues(w,E)/4+x*i;for(let $=0;$<i;$+=1)f[v+$*D]=f[m.k/4+C+$],f[S+$]=f[m.v/4+C+$]}}}function ft(g,_,w,f){for(let p=0;p<s;p+=1){let x=Math.floor(p/u),k=_.atKeys(w,x),E=_.atValues(w,x);for(let C=0;C<g;C+=1){let v=(C*s+p)*i*4,S=_.length+C+1,$=h.attend(m.q+v,k,E,S,i,z.at,m.mixed+v);if(f){let K=z.at/4,Z=e.floats.subarray(K,K+S);f(w,p,S-1,Z,$)}}}}function dt(g,_,w=[]){for(let[,f]of w.filter(([p])=>p===_))for(let p=0;p<g;p+=1){let x=m.mixed/4+(p*s+f)*i;e.floats.fill(0,x,x+i)}}function we(g){let _=e.floats,[w,f]=[m.x/4,m.y/4];for(let p=0;p<g*r;p+=1)_[w+p]+=_[f+p]}function pt(g,_){G(_,n.finalNorm,g);let w=m.h+g*r*4;return h.product(w,_,n.embedding,r,c,m.logits),new Float32Array(e.floats.buffer,m.logits,_*c)}return{pass:j,logits:pt}}function Ft(e,t){return Float32Array.from({length:e/2},(n,r)=>1/Math.fround(t**Math.fround(2*r/e)))}async function Fe({tokenizer:e,models:t},{text:n},r){let{target:s}=t,o=e.encode(n);if(o.length===0)throw new Error("text must hold at least one token, got none");let i=new Float64Array(o.length),a=0;for await(let[l,h]of Ut(s,o,r)){for(let[u,d]of h.entries())l+u<a||(i[a]=Dt(d,o[a]),a+=1);r.tell([a,o.length])}let c=new TextEncoder().encode(n).length;return{ids:o,pieces:o.map(l=>e.named(l).piece),bits:i,n_bytes:c,bits_per_byte:i.reduce((l,h)=>l+h)/c}}async function*Ut(e,t,n){let r=[e.arch.eos_id,...t.slice(0,-1)],s=e.arch.vocab_size,o=Math.min(e.arch.max_context,r.length),i=e.newCache(o);try{for(let a of Rt(r.length,o))for(i.truncate(0);i.length<o;){let c=a+i.length,l=r.slice(c,Math.min(c+64,a+o)),h=e.forward(l,i),u=Array.from(l,(d,b)=>h.subarray(b*s,(b+1)*s));if(yield[c,u],await n.turn(),n.stopped)throw new Error("stopped")}}finally{i.free()}}function Rt(e,t){let n=[];for(let r=0;r<e-t;r+=Math.max(1,Math.floor(t/2)))n.push(r);return[...n,e-t]}function Dt(e,t){let n=e.reduce((s,o)=>Math.max(s,o)),r=e.reduce((s,o)=>s+Math.exp(o-n),0);return(Math.log(r)+n-e[t])/Math.LN2}var Ot=e=>e/2**32|0,It=e=>e>>>0;function Ue(e,t,n,r){let s=Ot(n),o=It(n);e.setUint32(t,r?o:s,r),e.setUint32(t+4,r?s:o,r)}function Re(e){return e instanceof Uint8Array||ArrayBuffer.isView(e)&&e.constructor.name==="Uint8Array"&&"BYTES_PER_ELEMENT"in e&&e.BYTES_PER_ELEMENT===1}var he=e=>e?`"${e}" `:"";function Ht(e,t=""){if(typeof e!="number")throw new TypeError(he(t)+"expected number, got "+typeof e);if(!Number.isSafeInteger(e)||e<0)throw new RangeError(he(t)+"expected integer >= 0, got "+e);return e}function V(e,t,n=""){if(Re(e)&&(t===void 0||e.length===t))return e;t!==void 0&&Ht(t,"length");let r=Re(e),s=t!==void 0?` of length ${t}`:"",o=r?`length=${e.length}`:`type=${typeof e}`,i=he(n)+"expected Uint8Array"+s+", got "+o;throw r?new RangeError(i):new TypeError(i)}var Wt=(e,t)=>{if(e===null||typeof e!="object"||Array.isArray(e))throw new TypeError((t==="object"?"":`"${t}" `)+"expected object, got type="+typeof e)},De=(e,t)=>{Wt(e,t);let n=Object.getPrototypeOf(e);if(n!==Object.prototype&&n!==null)throw new TypeError(`"${t}" expected plain object`);if(Object.hasOwn(e,"__proto__"))throw new TypeError(`"${t}.__proto__" is not allowed`)};function ue(e,t=!0){if(e.destroyed)throw new Error("hash was destroyed");if(t&&e.finished)throw new Error("digest() was already called")}function Oe(e,t){V(e,void 0,"output");let n=t.outputLen;if(!(e.length>=n))throw new RangeError(\'"output" expected length >= \'+n)}function fe(...e){for(let t=0;t<e.length;t++)e[t].fill(0)}function ee(e){return new DataView(e.buffer,e.byteOffset,e.byteLength)}function T(e,t){return e<<32-t|e>>>t}var qt=typeof Uint8Array.from([]).toHex=="function"&&typeof Uint8Array.fromHex=="function",Gt=Array.from({length:256},(e,t)=>t.toString(16).padStart(2,"0"));function Ie(e){if(V(e),qt)return e.toHex();let t="";for(let n=0;n<e.length;n++)t+=Gt[e[n]];return t}function Kt(e,t,n="opts"){return De(e,"defaults"),t!==void 0&&De(t,n),Object.assign(Object.create(null),e,t)}function He(e,t={}){if(typeof e!="function")throw new TypeError(\'"hashCons" expected function, got type=\'+typeof e);t=Kt({},t,"info");let n=(s,o)=>e(o).update(s).digest(),r=e(void 0);return n.outputLen=r.outputLen,n.blockLen=r.blockLen,n.canXOF=r.canXOF,n.create=s=>e(s),Object.assign(n,t),Object.freeze(n)}var We=e=>({oid:Uint8Array.from([6,9,96,134,72,1,101,3,4,2,e])});function qe(e,t,n){return e&t^~e&n}function Ge(e,t,n){return e&t^e&n^t&n}var te=class{blockLen;outputLen;canXOF=!1;padOffset;isLE;buffer;view;finished=!1;length=0;pos=0;destroyed=!1;constructor(t,n,r,s){this.blockLen=t,this.outputLen=n,this.padOffset=r,this.isLE=s,this.buffer=new Uint8Array(t),this.view=ee(this.buffer)}update(t){ue(this),V(t);let{view:n,buffer:r,blockLen:s}=this,o=t.length,i=!1;for(let a=0;a<o;){let c=Math.min(s-this.pos,o-a);if(c===s){let l=ee(t);for(;s<=o-a;a+=s)this.process(l,a);i=!0;continue}r.set(a===0&&c===o?t:t.subarray(a,a+c),this.pos),this.pos+=c,a+=c,this.pos===s&&(this.process(n,0),this.pos=0,i=!0)}return this.length+=t.length,i&&this.roundClean(),this}digestInto(t){ue(this),Oe(t,this),this.finished=!0;let{buffer:n,view:r,blockLen:s,isLE:o}=this,{pos:i}=this;n[i++]=128,n.fill(0,i),this.padOffset>s-i&&(this.process(r,0),n.fill(0)),Ue(r,s-8,this.length*8,o),this.process(r,0),this.roundClean();let a=t===n?r:ee(t),c=this.outputLen,l=c/4,h=this.get();if(c%4||l>h.length)throw new Error("invalid outputLen");for(let u=0;u<l;u++)a.setUint32(4*u,h[u],o)}digest(){let{buffer:t,outputLen:n}=this;this.digestInto(t);let r=t.slice(0,n);return this.destroy(),r}_cloneIntoMeta(t){let{buffer:n,length:r,finished:s,destroyed:o,pos:i}=this;return t.destroyed=o,t.finished=s,t.length=r,t.pos=i,i&&t.buffer.set(n),t}clone(){return this._cloneInto()}},Ke=Uint32Array.from([1779033703,3144134277,1013904242,2773480762,1359893119,2600822924,528734635,1541459225]);var Xt=Uint32Array.from([1116352408,1899447441,3049323471,3921009573,961987163,1508970993,2453635748,2870763221,3624381080,310598401,607225278,1426881987,1925078388,2162078206,2614888103,3248222580,3835390401,4022224774,264347078,604807628,770255983,1249150122,1555081692,1996064986,2554220882,2821834349,2952996808,3210313671,3336571891,3584528711,113926993,338241895,666307205,773529912,1294757372,1396182291,1695183700,1986661051,2177026350,2456956037,2730485921,2820302411,3259730800,3345764771,3516065817,3600352804,4094571909,275423344,430227734,506948616,659060556,883997877,958139571,1322822218,1537002063,1747873779,1955562222,2024104815,2227730452,2361852424,2428436474,2756734187,3204031479,3329325298]),F=new Uint32Array(64),de=class extends te{A=0;B=0;C=0;D=0;E=0;F=0;G=0;H=0;constructor(t,n){super(64,t,8,!1),this.A=n[0]|0,this.B=n[1]|0,this.C=n[2]|0,this.D=n[3]|0,this.E=n[4]|0,this.F=n[5]|0,this.G=n[6]|0,this.H=n[7]|0}get(){let{A:t,B:n,C:r,D:s,E:o,F:i,G:a,H:c}=this;return[t,n,r,s,o,i,a,c]}set(t,n,r,s,o,i,a,c){this.A=t|0,this.B=n|0,this.C=r|0,this.D=s|0,this.E=o|0,this.F=i|0,this.G=a|0,this.H=c|0}_cloneInto(t){return(t||=new this.constructor).set(...this.get()),this._cloneIntoMeta(t)}process(t,n){for(let u=0;u<16;u++,n+=4)F[u]=t.getUint32(n,!1);for(let u=16;u<64;u++){let d=F[u-15],b=F[u-2],A=T(d,7)^T(d,18)^d>>>3,y=T(b,17)^T(b,19)^b>>>10;F[u]=y+F[u-7]+A+F[u-16]|0}let{A:r,B:s,C:o,D:i,E:a,F:c,G:l,H:h}=this;for(let u=0;u<64;u++){let d=T(a,6)^T(a,11)^T(a,25),b=h+d+qe(a,c,l)+Xt[u]+F[u]|0,y=(T(r,2)^T(r,13)^T(r,22))+Ge(r,s,o)|0;h=l,l=c,c=a,a=i+b|0,i=o,o=s,s=r,r=b+y|0}r=r+this.A|0,s=s+this.B|0,o=o+this.C|0,i=i+this.D|0,a=a+this.E|0,c=c+this.F|0,l=l+this.G|0,h=h+this.H|0,this.set(r,s,o,i,a,c,l,h)}roundClean(){fe(F)}destroy(){this.destroyed=!0,this.set(0,0,0,0,0,0,0,0),fe(this.buffer)}},pe=class extends de{constructor(){super(32,Ke)}};var Xe=He(()=>new pe,We(1));async function Ye(e,t,n){let r=await Yt(e,t);if(r.length!==n.bytes)throw new Error(`${t} has ${r.length} bytes; expected ${n.bytes}. ${_e}`);let s=t.endsWith(".safetensors")?Zt(r):r;if(Ie(Xe(s))!==n.sha256)throw new Error(`${t} is not the file that was shipped: its bytes were altered. ${_e}`);return s.buffer}var _e="Trying again fetches it anew.";async function Yt(e,t){try{let n=new Blob([e]).stream().pipeThrough(new DecompressionStream("gzip"));return new Uint8Array(await new Response(n).arrayBuffer())}catch{let n=e.byteLength;throw new Error(`${t} arrived damaged: its ${n} bytes are no whole gzip file. ${_e}`)}}function Zt(e){let t=e.length/2,n=new Uint8Array(e.length);for(let r=0;r<t;r+=1)n[2*r]=e[r],n[2*r+1]=e[t+r];return n}var Ze="\\\\p{Alphabetic}\\\\p{M}\\\\p{Nd}\\\\p{Pc}",Je=`${Ze}\\\\u00B2\\\\u00B3\\\\u00B9\\\\u00BC-\\\\u00BE`,N=`[${Je}]`,Jt=`[^${Je}]`,Qt=`(?:(?<!${N})(?=${N})|(?<=${N})(?!${N}))`,Vt=`(?:(?<!${N})(?!${N})|(?<=${N})(?=${N}))`;var me="0-9A-Fa-f",pr=new Map([["A","(?<![\\\\s\\\\S])"],["z","(?![\\\\s\\\\S])"],["Z","(?=\\\\n?(?![\\\\s\\\\S]))"],["h",`[${me}]`],["H",`[^${me}]`],["w",N],["W",Jt],["d","\\\\p{Nd}"],["D","\\\\P{Nd}"],["s","\\\\p{White_Space}"],["S","\\\\P{White_Space}"],["b",Qt],["B",Vt],["a","\\\\x07"],["e","\\\\x1B"]]);var _r=new Map([["W",`[^${Ze}]`],["H",`[^${me}]`]]);var en=(e,t,n)=>{let r=[],s=0;for(;s<e.length;){if(r.push(e[s]),(t.get(e[s])??n)!==n){++s;continue}for(;++s<e.length&&(t.get(e[s])??n)===n;)t.get(r.at(-1))!==n&&(r[r.length-1]+=e[s])}return r};var tn=e=>new Map(Object.entries(e));var nn=class{constructor(){let e=function(...t){return e._call(...t)};return Object.setPrototypeOf(e,new.target.prototype)}},rn=nn;var sn=(()=>{let e=[...Array.from({length:94},(s,o)=>o+33),...Array.from({length:12},(s,o)=>o+161),...Array.from({length:82},(s,o)=>o+174)],t=e.slice(),n=0;for(let s=0;s<256;++s)e.includes(s)||(e.push(s),t.push(256+n),n+=1);let r=t.map(s=>String.fromCharCode(s));return Object.fromEntries(e.map((s,o)=>[s,r[o]]))})(),on=e=>Object.fromEntries(Object.entries(e).map(([t,n])=>[n,t])),mr=on(sn);var an=class extends rn{constructor(e){super(),this.config=e,this.vocab=[],this.tokens_to_ids=new Map,this.unk_token_id=void 0,this.unk_token=void 0,this.end_of_word_suffix=void 0,this.fuse_unk=this.config.fuse_unk??!1}_call(e){let t=this.encode(e);return this.fuse_unk&&(t=en(t,this.tokens_to_ids,this.unk_token_id)),t}},cn=an;var ln=class{constructor(e=(n,r)=>n>r,t=1/0){this._heap=[],this._comparator=e,this._max_size=t}get size(){return this._heap.length}is_empty(){return this.size===0}peek(){return this._heap[0]}push(...e){return this.extend(e)}extend(e){for(let t of e)if(this.size<this._max_size)this._heap.push(t),this._sift_up();else{let n=this._smallest();this._comparator(t,this._heap[n])&&(this._heap[n]=t,this._sift_up_from(n))}return this.size}pop(){let e=this.peek(),t=this.size-1;return t>0&&this._swap(0,t),this._heap.pop(),this._sift_down(),e}replace(e){let t=this.peek();return this._heap[0]=e,this._sift_down(),t}_parent(e){return(e+1>>>1)-1}_left(e){return(e<<1)+1}_right(e){return e+1<<1}_greater(e,t){return this._comparator(this._heap[e],this._heap[t])}_swap(e,t){let n=this._heap[e];this._heap[e]=this._heap[t],this._heap[t]=n}_sift_up(){this._sift_up_from(this.size-1)}_sift_up_from(e){for(;e>0&&this._greater(e,this._parent(e));)this._swap(e,this._parent(e)),e=this._parent(e)}_sift_down(){let e=0;for(;this._left(e)<this.size&&this._greater(this._left(e),e)||this._right(e)<this.size&&this._greater(this._right(e),e);){let t=this._right(e)<this.size&&this._greater(this._right(e),this._left(e))?this._right(e):this._left(e);this._swap(e,t),e=t}}_smallest(){return 2**Math.floor(Math.log2(this.size))-1}},hn=ln,un=class{constructor(e){this.capacity=e,this.cache=new Map}get(e){if(!this.cache.has(e))return;let t=this.cache.get(e);return this.cache.delete(e),this.cache.set(e,t),t}put(e,t){this.cache.has(e)&&this.cache.delete(e),this.cache.set(e,t),this.cache.size>this.capacity&&this.cache.delete(this.cache.keys().next().value)}clear(){this.cache.clear()}},fn=un,dn=class extends cn{constructor(e){super(e),this.tokens_to_ids=tn(e.vocab),this.unk_token_id=this.tokens_to_ids.get(e.unk_token),this.unk_token=e.unk_token,this.vocab=new Array(this.tokens_to_ids.size);for(let[n,r]of this.tokens_to_ids)this.vocab[r]=n;let t=Array.isArray(e.merges[0]);this.merges=t?e.merges:e.merges.map(n=>n.split(" ",2)),this.bpe_ranks=new Map(this.merges.map((n,r)=>[JSON.stringify(n),r])),this.end_of_word_suffix=e.end_of_word_suffix,this.continuing_subword_suffix=e.continuing_subword_suffix??null,this.byte_fallback=this.config.byte_fallback??!1,this.byte_fallback&&(this.text_encoder=new TextEncoder),this.ignore_merges=this.config.ignore_merges??!1,this.max_length_to_cache=256,this.cache_capacity=1e4,this.cache=new fn(this.cache_capacity)}clear_cache(){this.cache.clear()}bpe(e){if(e.length===0)return[];let t=this.cache.get(e);if(t!==void 0)return t;let n=Array.from(e);this.end_of_word_suffix&&(n[n.length-1]+=this.end_of_word_suffix);let r=[];if(n.length>1){let s=new hn((a,c)=>a.score<c.score),o={token:n[0],bias:0,prev:null,next:null},i=o;for(let a=1;a<n.length;++a){let c={bias:a/n.length,token:n[a],prev:i,next:null};i.next=c,this.add_node(s,i),i=c}for(;!s.is_empty();){let a=s.pop();if(a.deleted||!a.next||a.next.deleted)continue;if(a.deleted=!0,a.next.deleted=!0,a.prev){let l={...a.prev};a.prev.deleted=!0,a.prev=l,l.prev?l.prev.next=l:o=l}let c={token:a.token+a.next.token,bias:a.bias,prev:a.prev,next:a.next.next};c.prev?(c.prev.next=c,this.add_node(s,c.prev)):o=c,c.next&&(c.next.prev=c,this.add_node(s,c))}for(let a=o;a!==null;a=a.next)r.push(a.token)}else r=n;if(this.continuing_subword_suffix)for(let s=0;s<r.length-1;++s)r[s]+=this.continuing_subword_suffix;return e.length<this.max_length_to_cache&&this.cache.put(e,r),r}add_node(e,t){let n=this.bpe_ranks.get(JSON.stringify([t.token,t.next.token]));n!==void 0&&(t.score=n+t.bias,e.push(t))}encode(e){let t=[];for(let n of e){if(this.ignore_merges&&this.tokens_to_ids.has(n)){t.push(n);continue}let r=this.bpe(n);for(let s of r)if(this.tokens_to_ids.has(s))t.push(s);else if(this.byte_fallback){let o=Array.from(this.text_encoder.encode(s)).map(i=>`<0x${i.toString(16).toUpperCase().padStart(2,"0")}>`);o.every(i=>this.tokens_to_ids.has(i))?t.push(...o):this.unk_token!=null&&t.push(this.unk_token)}else this.unk_token!=null&&t.push(this.unk_token)}return t}},Qe=dn;var Ve="1t p 7 p 1c 0 b 0 5 0 6 m 2 u 2 cp 5 b f 4 8 0 2 0 3m 4 2 1 3 3 2 0 7 0 2 2 2 0 2 j 2 2a 2 3u 9 4l 2 11 3 0 7 14 20 q 5 3 1a 16 10 1 2 2q 2 0 g 1 8 1 b 2 3 0 h 0 2 t u 2g c 0 p w a 1 5 0 6 l 5 0 a 0 4 0 o o 8 a 6 n 2 5 i 15 1n 1h 4 0 j 0 8 9 g f 5 7 3 1 3 l 2 6 2 0 4 3 4 0 h 0 e 1 2 2 f 1 b 0 9 5 5 1 3 l 2 6 2 1 2 1 2 1 w 3 2 0 k 2 h 8 2 2 2 l 2 6 2 1 2 4 4 0 j 0 g 1 o 0 c 7 3 1 3 l 2 6 2 1 2 4 4 0 v 1 2 2 g 0 i 0 2 5 4 2 2 3 4 1 2 0 2 1 4 1 4 2 4 b n 0 1h 7 2 2 2 m 2 f 4 0 r 2 3 0 3 1 v 0 5 7 2 2 2 m 2 9 2 4 4 0 w 1 2 1 g 1 i 8 2 2 2 14 3 0 h 0 6 2 9 2 p 5 6 h 4 n 2 8 2 0 3 6 1n 1b 2 1 d 6 1n 1 2 0 2 4 2 n 2 0 2 9 2 1 a 0 3 4 2 0 m 3 x 0 1s 7 2 z s 4 38 16 l 0 h 5 5 3 4 0 4 1 8 2 5 c d 0 i 11 2 0 6 0 3 16 2 98 2 3 3 6 2 0 2 3 3 14 2 3 3 w 2 3 3 6 2 0 2 3 3 e 2 1k 2 3 3 1u 12 f h 2d 3 5 4 h7 3 g 2 p 6 22 7 7 8 h e i f h f c 2 2 g 1f 10 0 5 0 1w 2g 8 4 3 x 2 0 6 1x b u 1e t 3 4 c 17 5 p 1j m a 1g 2b 0 2m 1a i 7 1j t e 1 b 17 r z 16 2 b z 3 a 6 16 3 2 16 3 2 5 2 1 4 0 6 5b 1t 7p 3 5 3 11 3 5 3 7 2 0 2 0 2 0 2 u 3 1g 2 6 2 0 4 2 2 6 4 3 3 5 5 c 6 2 2 6 39 0 e 0 h c 2u 0 5 0 3 9 2 0 4 4 7 0 2 0 2 0 2 3 2 a 3 3 6 4 5 0 1h 1 22k 6c 7 3 4 1 d 11 2 0 6 0 3 1j 8 0 h m a 6 2 6 2 6 2 6 2 6 2 6 2 6 2 6 29 0 d2 1 17 4 6 1 5 2d 7 2 2 2h 2 3 6 16 2 2l i v 1d f e9 533 1t h3g 1w 19 3 7g 4 f b 1 l 1a h u 3 1x 1e 8 3 2u 3 1u 3 1 2 0 2 7 m f 2 2 2 3 2 m u 1f f 1d 1r 5 4 0 2 1 c r b m q s 8 1a t 0 h 4 2 9 b 4 2 14 o 2 2 7 l m 4 0 4 1d 2 0 4 1 3 4 3 0 2 0 p 2 3 a 8 2 d 5 3 5 3 5 a 6 2 6 2 16 2 d 7 36 u 8mb d m 5 1c 6it a5 3 2x 13 6 d 4 6 0 2 9 2 c 2 4 2 0 2 1 2 1 2 2z y a2 j 1r 3 1h 15 b 39 4 2 3q 11 p 7 p c 2g 4 5 3 5 3 5 3 2 10 b 2 p 2 i 2 1 2 e 3 d z 3e au s 4 1c 1c v e j 2 7 7 11 b t 3 z 5 7 1d 4d j z 5 z 5 13 9 1f d a 2 e 2 6 2 1 2 a 2 e 2 6 2 1 4 1f d 8m a l b 7 p 5 2 15 2 8 1y 5 3 0 2 17 2 1 4 0 3 m b m a u 1u i 2 1 b l b p 1z 1j 7 1 1t 0 g 3 2 2 2 s 17 s 4 s 10 7 2 r s 1h b l b i e h 33 20 1k 1e e 1e e z 13 r a m 6z 15 7 1 h 2 1o s b 0 9 l 17 h 1b k s m d 1g 1m 1 3 0 e 18 x o r z u 0 3 0 9 y 4 0 d 1b f 3 m 0 2 0 10 h 2 o k 1 1s 6 2 0 2 3 2 e 2 9 8 1a 13 7 3 1 3 l 2 6 2 1 2 4 4 0 j 0 d 4 v 9 2 0 3 0 2 11 2 0 q 0 2 0 19 1g j 3 l 2 v 1b l 1 2 0 55 1a 16 3 11 1b l 0 1o 16 e 0 20 q 12 6 56 17 39 1r w 7 3 0 3 7 2 1 2 n g 0 2 0 2n 7 3 12 h 0 2 0 t 0 b 13 8 0 m 0 c 19 k 0 j 20 5k w w 8 2 10 i 0 1e t 35 6 2 1 2 11 m 0 q 5 2 1 2 v f 0 94 i g 0 2 c 2 x 3h 0 28 pl 6f 5f 219 2o g tr i 5 q 32y 6 g6 5a2 t 1cz fs 8 u i 26 i t j 1b h 3 w k 6 i c1 18 5w 1r 3l 22 6 0 1v c 1t 1 2 0 t 4qf 9 yd 16 9 6w8 3 2 6 2 1 2 82 g 0 u 2 3 0 f 3 9 az 1s5 2y 6 c 4 8 8 9 4mf 2c 2 1y 2 1 3 0 3 1 3 3 2 b 2 0 2 6 2 1s 2 3 3 7 2 6 2 r 2 3 2 4 2 0 4 6 2 9f 3 o 2 o 2 u 2 o 2 u 2 o 2 u 2 o 2 u 2 o 2 7 1f9 u 7 5 7a 1p 43 18 b 6 h 0 8y t j 17 dh r 6d t 3 0 ds 6 2 3 2 1 2 e 2 5g 1o 1v 8 0 xh 3 2 q 2 1 2 0 3 0 2 9 2 3 2 0 2 0 7 0 5 0 2 0 2 0 2 2 2 1 2 0 3 0 2 0 2 0 2 0 2 0 2 1 2 0 3 3 2 6 2 3 2 3 2 0 2 9 2 g 6 2 2 4 2 g 3et wyn x 37d 7 65 3 4g1 f 5rk g h9 1wj f1 15v 3t6 6 38f",et="1c 9 3d 1 6 0 3 2 142 9 3r 9 5j 9 bh 9 3b 9 5 5 31 9 3b 9 3b 9 3 5 33 c 38 9 9 6 2w 9 2x 6 8 i 32 9 2p 9 3b 9 1z j 7h 9 1z 9 k0 j oi 2 6o 9 7 9 n 9 8d 9 3l a 4m 9 7 9 53 9 2f 9 3r 9 7 9 t3 0 4 5 7 9 5j 1e 3 4 k7 1n 27 l hj t 12i 0 lm 0 q 8 f 2 9k 3 3v 9 v 7 2 e x 9 14 e msh 9 59 9 8x 5 4b 9 13 9 5j 9 n 9 2f 9 bb 9 gev 9 dq 18 d 1k i 1 9i q 11 3 u 0 9 0 3r 4 5n 9 q7 7 q 6 14 8 24 4 n 5 4h 1 3 f 3 19 1t 8 1h 1 v 2 24 4 2x 7 p 7 16 6 97 5 1d 9 7 9 7r u 4f 9 17 3 35 6 3r t 3l 9 1p 9 41 9 8 j 70 9 9j 9 3b 9 af 9 2v 9 7 j 25 b bp i 2m 9 if 9 2f s 6c 9 1z 9 br 9 2v k to 32 c02 9 1t3 9 2f 9 3r 9 2 6 en 9 7b m imy 9 153 j d j 31 o uu 1d 1tt 9 br 9 dz 9 6w 9 jx 8 3l 9 m0 1m 2 2 2 3 25 18 2 e qr c 25g 9";function st(e){let t=new Qe(e.model),n=new Map(Object.entries(e.model.vocab)),r=new Map(e.added_tokens.map(({id:i,content:a})=>[i,a])),s=bn(n,r),o=i=>{if(!Number.isInteger(i)||!(i in s))throw new Error(`token id ${i} is outside 0 … ${s.length-1}`);return s[i]};return{encode:i=>t.encode(xn(i)).map(a=>n.get(a)),decode:i=>tt(o).all(i),named:i=>({id:i,piece:r.get(i)??pn(o(i))}),stream:()=>tt(o)}}function tt(e){let t=new TextDecoder("utf-8",{ignoreBOM:!0}),n=s=>t.decode(e(s),{stream:!0}),r=()=>t.decode();return{push:n,finish:r,all:s=>s.map(n).join("")+r()}}function pn(e){try{return new TextDecoder("utf-8",{fatal:!0,ignoreBOM:!0}).decode(e)}catch{return Array.from(e,t=>t<128?String.fromCharCode(t):`\\\\x${t.toString(16)}`).join("")}}var xe="\\\\p{White_Space}",[nt,rt]=[Ve,et].map(mn),_n=new RegExp(`\'s|\'t|\'re|\'ve|\'m|\'ll|\'d| ?[${nt}]+| ?[${rt}]+| ?[^${xe}${nt}${rt}]+|${xe}+(?!\\\\P{White_Space})|${xe}+`,"gu");function mn(e){let t=e.split(" ").map(s=>parseInt(s,36)),n=0,r="";for(let s=0;s<t.length;s+=2){let o=n+t[s];n=o+t[s+1],r+=`\\\\u{${o.toString(16)}}-\\\\u{${n.toString(16)}}`}return r}function xn(e){let t=new TextEncoder;return(gn(e).match(_n)??[]).map(n=>Array.from(t.encode(n),r=>ot[r]).join(""))}function gn(e){return new TextDecoder("utf-8",{ignoreBOM:!0}).decode(new TextEncoder().encode(e))}var ot=wn();function wn(){let e=256;return Array.from({length:256},(t,n)=>{let r=n>32&&n<127||n>160&&n<173||n>173;return String.fromCharCode(r?n:e++)})}function bn(e,t){let n=new Map(ot.map((s,o)=>[s,o])),r=[];for(let[s,o]of e)r[o]=Uint8Array.from(t.has(o)?[]:s,i=>n.get(i));return r}var P={},U,L,ne=new Map,yn={load:En,tokenize:Sn,decode:zn,next:Cn,inside:$n,logits:Bn,stats:Nn},it={write:ze,speculate:Ce,losses:Fe};self.onmessage=async({data:{id:e,name:t,asked:n}})=>{if(t==="stop"){ne.has(e)&&(ne.get(e).stopped=!0);return}try{let r=await(t in it?vn(e,it[t],n):yn[t](n));self.postMessage({id:e,kind:"done",value:r},kn(r))}catch(r){self.postMessage({id:e,kind:"failed",value:r.message})}};function kn(e){return(ArrayBuffer.isView(e)?[e]:Object.values(e)).filter(ArrayBuffer.isView).map(n=>n.buffer)}async function vn(e,t,n){let r={stopped:!1,turn:An,tell:s=>self.postMessage({id:e,kind:"event",value:s})};ne.set(e,r);try{return await t({tokenizer:U,models:P},n,r)}finally{ne.delete(e)}}var ct=new MessageChannel,lt=[];ct.port1.onmessage=()=>lt.shift()();function An(){return new Promise(e=>{lt.push(e),ct.port2.postMessage(null)})}async function En({model:e,files:t}){let n={};for(let{name:o,entry:i,bytes:a}of t)n[o]=await Ye(a,o,i);let r=o=>JSON.parse(new TextDecoder().decode(n[o]));n["tokenizer.json"]&&(U=st(r("tokenizer.json")));let s=n[`${e}/model.safetensors`];return P[e]=Pe(r(`${e}/config.json`),s),P[e].arch}function Sn({text:e}){let t=U.encode(e);return{ids:t,pieces:t.map(n=>U.named(n).piece)}}function zn({ids:e}){let t=U.stream(),n=e.map(t.push);return n.length&&(n[n.length-1]+=t.finish()),n}function Cn({ids:e,params:t,top:n=10}){let r=J(t),s=e.length?e:[P.target.arch.eos_id];I(s,P.target.arch);let o=ht(P.target,s),i=B(o),a=Q(o,r,s);return{top:ce(U,i,a,n),n_kept:a.filter(c=>c>0).length,entropy_bits:at(i),kept_entropy_bits:at(a)}}function at(e){return e.reduce((t,n)=>n>0?t-n*Math.log2(n):t,0)}function ht(e,t){L??={ids:[],cache:e.newCache(e.arch.max_context)};let n=0;for(;n<t.length&&t[n]===L.ids[n];)n+=1;return(n<t.length||n<L.ids.length)&&(L.cache.truncate(Math.min(n,t.length-1)),L.logits=e.lastLogits(t.slice(L.cache.length),L.cache),L.ids=t),L.logits}function $n({ids:e,silenced:t=[]}){let{target:n}=P;I(e,n.arch),jn(t,n.arch);let{attention:r,layerLogits:s,logits:o}=n.inside(e,t),i=B(ht(n,e)),a=t.length?B(o):i,c=new Set([...W(i,5),...W(a,5)]);return{attention:r,layers:Tn(s,n.arch),next:[...c].map(l=>({...U.named(l),before:i[l],after:a[l]})).sort((l,h)=>h.before-l.before)}}function Tn(e,{n_layers:t,vocab_size:n}){return Array.from({length:t},(r,s)=>{let o=B(e.subarray(s*n,(s+1)*n)),i=X(o);return{...U.named(i),p:o[i]}})}function jn(e,{n_layers:t,n_heads:n}){for(let[r,s]of e)R("layer",r,t),R("head",s,n)}function Bn({model:e,ids:t,use_cache:n=!1}){let r=P[e];if(!r)throw new Error(`model must be target or draft and loaded, got ${e}`);if(I(t,r.arch),!n)return r.forward(t);let s=r.newCache(t.length),o=new Float32Array(t.length*r.arch.vocab_size);return t.forEach((i,a)=>o.set(r.forward([i],s),a*r.arch.vocab_size)),s.free(),o}function Nn(){return{memory_bytes:Object.values(P).reduce((e,t)=>e+t.memoryBytes,0)}}\n/*! With parts of @huggingface/tokenizers, Apache License 2.0, and of @noble/hashes, MIT License,\n    (c) 2022 Paul Miller. */\n';var Se={target:["tokenizer.json","target/config.json","target/model.safetensors"],draft:["draft/config.json","draft/model.safetensors"]},ge=globalThis.firstTokenEngines??=new Map;async function it(e,t){let{version:n}=e;if(!ge.has(n)){let a=Pt(()=>ge.delete(n));ge.set(n,{...a,models:new Map})}let o=ge.get(n),{request:s,job:r}=o,i=(a,c)=>Ut(o,a,e,c);return await i("target",t),{need:i,arch:a=>{let c=o.models.get(a)?.arch;if(!c)throw new Error(`${a} is not loaded: \`need\` it first.`);return c},tokenize:a=>s("tokenize",{text:a}),decode:a=>s("decode",{ids:a}),next:a=>s("next",a),inside:a=>s("inside",a),logits:a=>s("logits",a),stats:()=>s("stats",{}),write:(a,c)=>r("write",a,c),speculate:(a,c)=>r("speculate",a,c),losses:(a,c)=>{let{done:f,stop:d}=r("losses",a,h=>c?.(...h));return Object.assign(f,{stop:d})}}}function Ut(e,t,n,o){if(!Se[t])throw new Error(`model must be target or draft, got ${t}`);let{models:s}=e;if(!s.has(t)){let i=new Set,c={listeners:i,done:Gt(e,t,n,(...f)=>i.forEach(d=>d(...f)))};s.set(t,c),c.done.then(f=>c.arch=f,()=>s.delete(t))}let r=s.get(t);return o&&r.listeners.add(o),r.done.then(()=>{})}async function Gt({request:e},t,n,o){let s=await n.manifest(),r=Se[t].reduce((f,d)=>f+s[d].packed_bytes,0),i=new Map,a=(f,d)=>{i.set(f,d),o([...i.values()].reduce((h,p)=>h+p),r)},c=await Promise.all(Se[t].map(async f=>{let d=s[f];a(f,0);let h=await n.file(f,p=>a(f,i.get(f)+p));return a(f,d.packed_bytes),{name:f,entry:d,bytes:h}}));return e("load",{model:t,files:c},c.map(f=>f.bytes))}function Pt(e){let t=URL.createObjectURL(new Blob([ot],{type:"text/javascript"})),n=new Worker(t,{type:"module"}),o=new Map,s=0,r,i=(a,c,f,d)=>{let h=++s,p=new Promise((m,u)=>{if(r)throw r;o.set(h,{resolve:m,reject:u,onEvent:d}),n.postMessage({id:h,name:a,asked:c},f)});return{id:h,done:p}};return n.onmessage=({data:{id:a,kind:c,value:f}})=>{let{resolve:d,reject:h,onEvent:p}=o.get(a);if(c==="event")return p?.(f);o.delete(a),c==="failed"?h(new Error(f)):d(f)},n.onerror=({message:a})=>{r=new Error(`The browser cannot run the model: ${a??"no worker started"}. Reload the page to try again.`);for(let{reject:c}of o.values())c(r);e()},{request:(a,c,f=[])=>i(a,c,f).done,job:(a,c,f)=>{let{id:d,done:h}=i(a,c,[],f);return{done:h,stop:()=>n.postMessage({id:d,name:"stop"})}}}}var Ae="first-token-live-";function at(e){let t=new URL(e.dataset.assets,new URL(document.documentElement.dataset.content_root||"./",document.baseURI)),n=t.pathname.split("/").at(-2),o={},s=async(r,i)=>{let c=(await Ht(new URL(r,t),o)).body.getReader(),f=[];for(;;){let{done:d,value:h}=await c.read().catch(()=>{throw new Error(`${r} broke off on its way. Is the network gone?`)});if(d)return new Blob(f).arrayBuffer();f.push(h),i(h.length)}};return{version:t.href,manifest:async()=>{let r=await Qe(n,"manifest.json",()=>s("manifest.json",()=>{}));return JSON.parse(new TextDecoder().decode(r))},file:(r,i)=>Qe(n,r,()=>s(`${r}.gz`,i)),forget:()=>(o={cache:"reload"},ct(n))}}async function Ht(e,t){let n;try{n=await fetch(e,t)}catch{throw new Error(`${e.pathname} could not be fetched. Is the network gone?`)}if(!n.ok)throw new Error(`${e.pathname} is missing on this site (${n.status}).`);return n}function lt(e){let t=e.get("version");return{version:t,manifest:async()=>e.get("manifest"),file:(n,o)=>Qe(t,n,()=>Yt(e,n,o)),forget:()=>ct(t)}}function Yt(e,t,n){return new Promise((o,s)=>{let r=[],i=0,a=()=>{clearTimeout(i),e.off("msg:custom",d)},c=()=>{a(),s(new Error("The kernel does not send the model. If it is busy, wait until it is idle; if it was stopped, run the cell again."))},f=()=>{clearTimeout(i),i=setTimeout(c,1e4)},d=(h,p)=>{h.kind!=="piece"||h.name!==t||r[h.index]||(r[h.index]=p[0],n(p[0].byteLength),f(),!(Object.keys(r).length<h.n)&&(a(),o(new Blob(r).arrayBuffer())))};e.on("msg:custom",d),f();try{e.send({kind:"file",name:t})}catch{c()}})}async function Qe(e,t,n){let o=await qt(e),s=await o?.match(`/${t}`).catch(()=>{});if(s)return s.arrayBuffer();let r=await n();return await o?.put(`/${t}`,new Response(r.slice(0))).catch(()=>{}),r}async function qt(e){try{for(let t of await caches.keys())t.startsWith(Ae)&&t!==Ae+e&&await caches.delete(t);return await caches.open(Ae+e)}catch{return}}async function ct(e){try{await caches.delete(Ae+e)}catch{}}var dt="<|endoftext|>";var Wt=Math.random().toString(36).slice(2,8),ft=0;function l(e,t={},...n){let o=document.createElement(e);for(let[s,r]of Object.entries(t))r!==void 0&&r!==!1&&o.setAttribute(s,r===!0?"":r);return o.append(...n),o}function J(e){let t=0;return()=>{t||=requestAnimationFrame(()=>{t=0,e()})}}function te(e){let t=!1,n=!1;return async function(){if(t){n=!0;return}t=!0;try{do n=!1,await e();while(n)}finally{t=!1}}}function D(e,t,{primary:n=!1}={}){let o=l("button",{type:"button",class:n&&"ft-primary"},e);return o.addEventListener("click",()=>{o.getAttribute("aria-disabled")!=="true"&&t()}),o}function oe(e,t){e.setAttribute("aria-disabled",String(!t))}function we(e,t,n){let o=D(e,()=>{s(o.getAttribute("aria-pressed")!=="true"),n(o.getAttribute("aria-pressed")==="true")}),s=r=>o.setAttribute("aria-pressed",String(r));return s(t),{element:o,set:s}}function K(e,{min:t,max:n,step:o=1,value:s,format:r=String},i){let a=Le(),c=l("input",{type:"range",id:a,min:t,max:n,step:o}),f=l("span",{class:"ft-readout","aria-hidden":"true"}),d=()=>{f.textContent=r(Number(c.value)),c.setAttribute("aria-valuetext",f.textContent),c.style.setProperty("--ft-at",`${100*(c.value-t)/(n-t)}%`)},h=m=>{c.value=m,d()};h(s),c.addEventListener("input",()=>{d(),i(Number(c.value))});let p=l("label",{for:a},e);return{element:l("div",{class:"ft-slider"},p,f,c),set:h}}function ne(e,{min:t,max:n,value:o},s){let r=Le(),i=l("input",{type:"number",id:r,min:t,max:n,step:1,required:!0});i.addEventListener("input",()=>{let c=!i.checkValidity();i.setAttribute("aria-invalid",String(c)),c||s(Number(i.value))});let a=c=>{i.value!==String(c)&&(i.value=c),i.setAttribute("aria-invalid","false")};return a(o),{element:l("div",{class:"ft-number"},l("label",{for:r},e),i),set:a}}function P(e,t,n){let o=Le(),s=l("textarea",{id:o,rows:1,spellcheck:"false",autocapitalize:"off"});s.autocomplete="off";let r=l("div",{class:"ft-behind","aria-hidden":"true"}),i=l("div",{class:"ft-text"},l("div",{},r,s)),a=[],c=p=>{let m=a.findIndex((w,x)=>!Jt(w,p[x])),u=m<0?a.length:m;for(;r.childNodes.length>u;)r.lastChild.remove();let A=p.slice(u).map(w=>l("span",{class:w.class},w.text));r.append(...A,"​"),a=p},f=p=>{let m=i.scrollTop+i.clientHeight>=i.scrollHeight-40,u=p.map(A=>A.text).join("");s.value!==u&&(s.value=u),c(p),m&&(i.scrollTop=i.scrollHeight)},d=p=>f([{text:p}]);d(t),s.addEventListener("input",()=>{c([{text:s.value}]),n(s.value)});let h=l("label",{for:o},e);return{element:l("div",{class:"ft-field"},h,i),input:s,set:d,show:f}}function Jt(e,t){return e.text===t?.text&&e.class===t.class}function H(){let e=l("p",{class:"ft-seen"}),t=l("p",{class:"ft-spoken",role:"status","aria-live":"polite"}),n=0,o=-3e3,s="",r=()=>{n=0,o=performance.now(),t.textContent=s},i=c=>{s=c,n||=setTimeout(r,Math.max(0,o+3e3-performance.now()))},a=c=>{e.textContent=c};return{element:l("div",{class:"ft-status"},e,t),show:a,speak:i,say:c=>{a(c),i(c)}}}var Te={" ":["·","space"],"\n":["↵","newline"],"	":["→","tab"],"\r":["␍","return"]};function V(e,{flowing:t=!1}={}){return e===dt?[l("span",{class:"ft-special"},"end of text")]:e.split(/([ \n\t\r])/).flatMap(n=>{if(!Te[n])return n?[n]:[];let o=l("span",{class:"ft-invisible"},Te[n][0]);return t&&n===`
`?[o,`
`]:[o]})}function ie(e){return e===dt?"end of text":e.replace(/[ \n\t\r]/g,t=>` ${Te[t][1]} `).trim()}function be(e,t={}){let n=`ft-token ${t.class??""}`.trim();return l("span",{...t,class:n},...V(e,{flowing:!0}))}function Y(e){return e===0?"0 %":e<.001?"<0.1 %":`${(100*e).toFixed(1)} %`}function ve(e,{heads:t=[],onPick:n,pickWord:o=""}={}){let s=["",...t].map(p=>l("span",{},p)),r=l("p",{class:"ft-heads","aria-hidden":"true"},...s);r.hidden=t.length===0;let i=l("ol",{class:"ft-bars","aria-label":e}),a=l("p",{class:"ft-scale","aria-hidden":"true"}),c=[],f=p=>{let m={piece:l("span",{class:"ft-piece"}),pale:l("span",{class:"ft-pale"}),strong:l("span",{class:"ft-strong"}),before:l("span",{class:"ft-before"}),after:l("span",{class:"ft-after"})},u=l("span",{class:"ft-track"},m.pale,m.strong),A=[m.piece,u,m.before,m.after];return m.box=n?D("",()=>n(c[p])):l("span"),m.box.append(...A),m.item=l("li",{},m.box),m},d=[],h=p=>{c=p;let m=Math.max(...c.map(A=>Math.max(A.before,A.after))),u=[.1,.25,.5].find(A=>m<=A)??1;for(;d.length<c.length;)d.push(f(d.length)),i.append(d.at(-1).item);d.forEach((A,w)=>{A.item.hidden=w>=c.length,A.item.hidden||Kt(A,c[w],u,n&&o)}),a.textContent=c.length?`A full bar is ${100*u} %.`:""};return{element:l("div",{},r,i,a),draw:h}}function Kt(e,{piece:t,before:n,after:o,note:s},r,i){if(e.shown!==t&&e.piece.replaceChildren(...V(t)),e.shown=t,e.item.classList.toggle("ft-dropped",!!s),e.pale.style.width=`${100*n/r}%`,e.strong.style.width=`${100*o/r}%`,e.before.textContent=Y(n),e.after.textContent=s??Y(o),i){let a=`${i} ${ie(t)}: ${Y(n)}, then ${s??Y(o)}`;e.box.setAttribute("aria-label",a)}}function ht(e){let t=e.querySelector(".ft-live-try")??e.appendChild(l("p")),n=l("progress",{"aria-label":"Loading the model",max:1,value:0}),o=l("span",{class:"ft-readout"}),s=l("span",{class:"ft-loading"},n,o);return t.replaceChildren(s),{progress:(r,i)=>{n.max=i,n.value=r,o.textContent=`${(r/1e6).toFixed(1)} of ${(i/1e6).toFixed(1)} MB`},done:()=>e.replaceChildren(),failed:(r,i)=>{let a=l("span",{role:"alert"},r.message),f=D("Try again",()=>{t.replaceChildren(s),i()},{primary:!0});t.replaceChildren(l("span",{class:"ft-failed"},a,f)),De(e)&&f.focus({preventScroll:!0})}}}function De(e){let{activeElement:t,body:n}=document;return t===n||e.contains(t)}function Le(){return ft+=1,`ft-live-${Wt}-${ft}`}var N=e=>e.toLocaleString("en"),G=(e,t,n=`${t}s`)=>`${N(e)} ${e===1?t:n}`,j=e=>e>=100?N(Math.round(e)):e.toPrecision(2),ut=e=>e.toSorted((t,n)=>t-n)[Math.floor(e.length/2)];function xe(e){let t=l("span",{class:"ft-given"}),n=l("span"),s=l("div",{class:"ft-output",tabindex:"0",role:"region","aria-label":"The text"},l("div",{},t,n)),r=[];return{element:s,begin:i=>{t.textContent=i,n.replaceChildren(),r=[]},add:i=>r.push(i),flush:()=>{r.length&&(n.append(...r.flatMap(e)),r=[])}}}function re(e,t={}){let n=Object.entries(e).map(([o,s])=>{let r=l("span",{class:`ft-swatch ft-${o}`});return l("li",{},r,`${s} `,t[o]??"")});return l("ul",{class:"ft-key"},...n)}function ae(e){let t=l("data",{"data-name":e},"–");return{element:t,set:(o,s)=>{t.value=o,t.textContent=s}}}function le(e){let t=l("dl",{class:"ft-figures"}),n={};for(let[o,s]of Object.entries(e))n[o]=ae(o),t.append(l("div",{},l("dt",{},s),l("dd",{},n[o].element)));return{element:t,set:(o,s,r)=>n[o].set(s,r)}}function ye(e){let t=l("dl",{class:"ft-rates"}),n={};for(let[s,r]of Object.entries(e)){let i=l("span",{class:`ft-${s}`}),a=ae(s),c=l("span",{class:`ft-swatch ft-${s}`}),f=l("span",{class:"ft-rate"},i);t.append(l("div",{},l("dt",{},c,r),l("dd",{},a.element,f))),n[s]={bar:i,value:a}}return{element:t,draw:s=>{let r=Math.max(...Object.values(s).map(i=>i??0));for(let[i,{bar:a,value:c}]of Object.entries(n)){let f=s[i];a.style.width=f?`${100*f/r}%`:"0",c.set(f??"",f?`${j(f)} tokens/s`:"not yet")}}}}var Vt=500,Xt=9,ce={on:"with the cache",off:"without a cache"};function mt(e,t,n){let o=t.arch("target"),s=n.get(),r={},i=pt("on",[],s.max_tokens),a,c=!1,f=!1,d=P("Your text",s.text,$=>n.set({text:$})),h=ne("Tokens to write",{min:1,max:Vt,value:s.max_tokens},$=>n.set({max_tokens:$})),p=we("Cache",s.use_cache,$=>{n.set({use_cache:$}),u.say(z())}),m=D("Write",()=>c?U():C(),{primary:!0}),u=H(),A=xe($=>[$]),w=en(o),x=tn(o,s.bytes_per_token),k=nn(),y=rn(),I=l("div",{class:"ft-results",hidden:!0},A.element,w.element,x.element,l("div",{class:"ft-pair"},k.element,y.element));e.append(d.element,l("div",{class:"ft-row"},m,p.element,h.element),u.element,I);let Q=()=>{A.flush(),w.draw(i),x.draw(i),k.draw(r),y.draw(r,i),c&&u.show(`Writing ${ce[i.kind]}: ${i.ids.length} tokens.`)},O=J(Q);Q(),u.show(z());function z(){let $=n.get().use_cache?"Cache on: the keys and values of every token are kept.":"Cache off: every step reads the whole text again.";return c?`From the next text on: ${$}`:$}async function C(){[c,f]=[!0,!1],m.textContent="Stop",I.hidden=!1;let $;try{await S(),$=on(r,i)}catch(F){$=F.message}a=void 0,c=!1,m.textContent="Write",Q(),w.describe(i),k.describe(r),u.say($)}async function S(){let{text:$,use_cache:F,max_tokens:R,temperature:E,seed:L}=n.get(),{ids:b}=await t.tokenize($),g=[o.eos_id,...b],v=pt(F?"on":"off",g,R);if(i.prompt.join()!==g.join())for(let M in r)delete r[M];i=r[v.kind]=v,A.begin($);let B={ids:g,params:{temperature:E,seed:L},max_tokens:R,use_cache:F,top:0};a=t.write(B,M=>{Zt(v,M),A.add(M.text),O()}),f&&a.stop(),await a.done}function U(){f=!0,a?.stop()}return n.onChange($=>{d.set($.text),h.set($.max_tokens),p.set($.use_cache)}),U}function pt(e,t,n){return{kind:e,prompt:t,n_columns:t.length+n,ids:[],steps:[],at:[],computed:[0,0],n_computed:0,n_again:0,n_cached:0,cache_bytes:0,cache_capacity_bytes:0}}function Zt(e,{id:t,step_ms:n,at_ms:o,n_cached:s,cache_bytes:r,cache_capacity_bytes:i}){let a=e.prompt.length+e.ids.length;e.computed=[e.n_cached,a],e.n_computed+=a-e.n_cached,e.n_again+=a,e.ids.push(t),e.steps.push(n),e.at.push(o),Object.assign(e,{n_cached:s,cache_bytes:r,cache_capacity_bytes:i})}function ke({at:e}){return e.length<2?void 0:1e3*(e.length-1)/(e.at(-1)-e[0])}function en(e){let t=2*e.n_layers,n=(y,I,Q)=>X("rect",{class:`ft-${y}`,x:0,y:I,height:Q}),o=n("empty",0,t),s=n("prompt",0,t),r=n("decode",0,t),i=n("computed",-1.5,.9),a=X("path",{class:"ft-gap","stroke-width":.15}),c=X("path",{class:"ft-gap","stroke-width":.1}),f=X("path",{class:"ft-gap","stroke-width":.4});c.setAttribute("d","");let d=X("svg",{role:"img",preserveAspectRatio:"none",style:`height: ${Xt*(t+1.5)}px`},o,s,r,a,c,f,i),h=l("div",{class:"ft-layers","aria-hidden":"true"});for(let y=1;y<=e.n_layers;y++)h.append(l("span",{},`${y}`));let p=l("span"),m=l("p",{class:"ft-note"});m.append("A column is one position; each layer has a row of keys above one of values.");let u=l("section",{class:"ft-picture"},l("p",{class:"ft-heading"},"What is kept: keys and values"),re({prompt:"prompt",decode:"written",computed:"computed in this step"}),l("div",{class:"ft-layered"},h,d),l("div",{class:"ft-ends","aria-hidden":"true"},l("span",{},"position 1"),p),m),A=0,w=y=>{A=y,d.setAttribute("viewBox",`0 -1.5 ${y} ${t+1.5}`),o.setAttribute("width",y),a.setAttribute("d",ze(y-1,I=>`M${I+1} 0v${t}`)),c.setAttribute("d",ze(e.n_layers,I=>`M0 ${2*I+1}h${y}`)),f.setAttribute("d",ze(e.n_layers-1,I=>`M0 ${2*I+2}h${y}`)),p.textContent=String(y)},x=y=>{y.n_columns!==A&&w(y.n_columns),je(s,0,Math.min(y.prompt.length,y.n_cached)),je(r,y.prompt.length,y.n_cached),je(i,...y.computed)},k=({n_cached:y,prompt:I,n_columns:Q,computed:[O,z]})=>{let C=y?`keys and values of ${y} positions are kept, the first ${I.length} the prompt's`:"nothing is kept",S=`${Q} columns by ${e.n_layers} layers: ${C}; the last step computed`;d.setAttribute("aria-label",`${S} ${G(z-O,"position")}.`)};return d.setAttribute("aria-label","Keys and values of every layer: nothing is kept yet."),{element:u,draw:x,describe:k}}function tn({n_layers:e,n_kv_heads:t,head_dim:n},o){let s=le({formula:"By formula",filled:"Filled in the model's arrays",allocated:"Allocated for them"}),r=2*e*t*n,i=`2 · ${e} layers · ${t} KV heads · ${n}`,a=({n_cached:c,cache_bytes:f,cache_capacity_bytes:d})=>{let h=o*c,p=`${i} · ${G(c,"token")} · ${o/r} bytes`;s.set("formula",h,`${p} = ${N(h)} bytes`),s.set("filled",f,`${N(f)} bytes`),s.set("allocated",d,`${N(d)} bytes`)};return{element:s.element,draw:a}}function nn(){let e={on:X("path",{class:"ft-on"}),off:X("path",{class:"ft-off"})},t=X("svg",{role:"img",preserveAspectRatio:"none"},e.off,e.on),[n,o,s]=[l("span"),l("span"),l("span")],r=l("p",{class:"ft-note"}),i=l("section",{},l("p",{class:"ft-heading"},"Milliseconds per token"),l("div",{class:"ft-chart"},l("div",{class:"ft-ticks","aria-hidden":"true"},n,o,l("span",{},"0")),t,l("div",{class:"ft-ends","aria-hidden":"true"},l("span",{},"position 1"),s)),r),a=d=>{let h=Object.values(d),p=h.flatMap(w=>w.steps).sort((w,x)=>w-x);if(!p.length)return;let m=ln(1.1*p[Math.floor(.97*p.length)]),u=Math.max(...h.map(w=>w.n_columns));t.setAttribute("viewBox",`0 ${-m} ${u} ${m}`);for(let w in e)e[w].setAttribute("d",d[w]?c(d[w],m):"");[n.textContent,o.textContent]=[`${m} ms`,String(m/2)],s.textContent=String(u);let A=p.filter(w=>w>m);r.textContent=A.length?`On the upper edge: ${G(A.length,"token")}, up to ${j(A.at(-1))} ms.`:""},c=({prompt:d,steps:h},p)=>h.map((m,u)=>`M${d.length+u} ${-Math.min(m,p)}h0`).join("");return{element:i,draw:a,describe:d=>{let h=Object.values(d).map(({kind:p,steps:m})=>{let[u,A]=[m.slice(0,20),m.slice(-20)].map(w=>j(ut(w)));return`${ce[p]} ${u} ms at the beginning of the text, ${A} ms at its end`});t.setAttribute("aria-label",`Milliseconds per token: ${h.join("; ")}.`)}}}function rn(){let e=ye(ce),t=l("p",{class:"ft-verdict"}),n=l("p",{class:"ft-note"}),o=l("p",{class:"ft-heading"},"Tokens per second");return{element:l("section",{},o,e.element,t,n),draw:(i,a)=>{let c={on:i.on&&ke(i.on),off:i.off&&ke(i.off)};e.draw(c);let f=c.on&&c.off;t.textContent=f?`${j(c.on/c.off)} times as fast with it.`:"",n.textContent=sn(a)}}}function sn({kind:e,ids:t,n_computed:n,n_again:o,prompt:s}){if(!t.length)return"";let r=N(s.length+t.length-1);return e==="on"?`Positions sent through the model: ${N(n)}. Without a cache: ${N(o)}, as every step sends the whole text.`:`Positions sent through the model: ${N(n)}. With a cache: ${r}, each once.`}function on(e,{kind:t,ids:n}){let o=ke(e[t]);if(!o)return`Stopped after ${G(n.length,"token")}.`;let s=`${G(n.length,"token")} ${ce[t]}: ${j(o)} per second.`,r=e[t==="on"?"off":"on"],i=r&&ke(r);if(!i)return`${s} Now switch the cache ${t==="on"?"off":"on"} and write again.`;let a=Math.min(n.length,r.ids.length),c=n.slice(0,a).every((f,d)=>f===r.ids[d]);return`${s} ${c?"The text is the same":"The text is another"} as ${ce[r.kind]}, where it was ${j(i)}.`}var an="http://www.w3.org/2000/svg";function X(e,t,...n){let o=document.createElementNS(an,e);for(let[s,r]of Object.entries(t))o.setAttribute(s,r);return o.append(...n),o}function je(e,t,n){e.setAttribute("x",t),e.setAttribute("width",Math.max(0,n-t))}function ze(e,t){return Array.from({length:e},(n,o)=>t(o)).join("")}function ln(e){let t=10**Math.floor(Math.log10(e));return t*[1,2,3,4,6,8,10].find(n=>n*t>=e)}function fe(e,t){let n,o=s=>{n&&(n.tabIndex=-1),n=s,s.tabIndex=0};return e.addEventListener("focusin",s=>{let r=s.target.closest("[tabindex]");r&&r!==n&&t.includes(r)&&o(r)}),e.addEventListener("keydown",s=>{let r=t.indexOf(s.target),i=r<0?void 0:t[cn(t,r,s.key)];!i||s.ctrlKey||s.metaKey||s.altKey||(s.preventDefault(),i.focus())}),{enter:o}}function cn(e,t,n){if(n==="ArrowRight")return t+1;if(n==="ArrowLeft")return t-1;if(n==="Home")return 0;if(n==="End")return e.length-1;if(n==="ArrowDown")return At(e,t,1);if(n==="ArrowUp")return At(e,t,-1)}var gt=e=>e.getClientRects()[0]??e.getBoundingClientRect();function At(e,t,n){let{top:o,left:s,height:r}=gt(e[t]),i,a;for(let c=t+n;e[c];c+=n){let f=gt(e[c]);if(Math.abs(f.top-o)<r/2)continue;if(i??=f.top,Math.abs(f.top-i)>r/2)break;let d=Math.abs(f.left-s);(!a||d<a.distance)&&(a={at:c,distance:d})}return a?.at}var Fe=96,fn=120,bt=3;function vt(e,t,n){let o=t.arch("target"),s=n.get(),r,i,a,c=!1,f=P("Your text",s.text,b=>{i=void 0,C({text:b}),R(fn)}),d=l("p",{class:"ft-note",hidden:!0}),h=un({onPoint:b=>{a=b,Q()},onChoose:U}),p=gn(U),m=K("Layer",{min:1,max:o.n_layers,value:s.layer+1,format:b=>String(b)},b=>S({layer:b-1})),u=K("Head",{min:1,max:o.n_heads,value:s.head+1,format:b=>String(b)},b=>S({head:b-1})),A=D("",()=>$(s.layer,s.head),{primary:!0}),w=D("Restore all",()=>{C({silenced:[]}),R()}),x=bn(o,$),k=l("p",{class:"ft-effect"}),y=ve("What the model expects next",{heads:["all heads","silent"]}),I=H();I.element.classList.add("ft-spoken"),e.replaceChildren(f.element,d,l("div",{class:"ft-inside"},l("div",{class:"ft-reads"},h.element,l("div",{class:"ft-sliders"},m.element,u.element)),p.element,l("div",{class:"ft-silence"},l("div",{class:"ft-row"},A,w),k,x.element),l("div",{class:"ft-next"},y.element)),I.element);let Q=J(()=>{if(!r||c)return;let b=r.pieces.length,g=Math.min(i??b-1,b-1),v=wt(r,s.layer,s.head);h.draw({shares:v[g],reader:g,pointed:a,name:Re(s)}),p.draw({rows:v,reader:g,name:Re(s)}),x.draw({...s,layers:r.layers});let B=Oe(s,s.layer,s.head);A.textContent=`${B?"Restore":"Silence"} ${Pe(s)}`,w.disabled=s.silenced.length===0,O()});function O(){let b=r.silenced.length>0,g=r.next.map(v=>b?v:{...v,note:""});y.draw(g),k.replaceChildren(...hn(r))}function z(){let b=r.pieces.length,g=Math.min(i??b-1,b-1),v=wt(r,s.layer,s.head)[g],B=`${Re(s)}: ${dn(r.pieces,v,g)}`;I.say(`${B} ${k.textContent}`)}function C(b){s={...s,...b},n.set(b)}function S(b){C(b),Q(),r&&z()}function U(b){i=b,Q(),z()}function $(b,g){let v=s.silenced.filter(([M,Z])=>M!==b||Z!==g),B=Oe(s,b,g)?v:[...v,[b,g]];C({layer:b,head:g,silenced:B}),m.set(b+1),u.set(g+1),Q(),R()}let F;function R(b=0){clearTimeout(F),F=setTimeout(E,b)}let E=te(async()=>{try{let{text:b,silenced:g}=s,{ids:v,pieces:B}=await t.tokenize(b),M=v.slice(-Fe),Z=await t.inside({ids:[o.eos_id,...M],silenced:g});if(c)return;d.hidden=M.length===v.length,d.textContent=`${v.length} tokens; the model is shown the last ${Fe}.`,L({...Z,silenced:g,pieces:[Ge,...B.slice(-Fe)]})}catch(b){c||k.replaceChildren(l("span",{role:"alert"},b.message))}});function L(b){let g=r?.pieces.join("\0")===b.pieces.join("\0");r={...b,arch:o},g||(a=void 0,h.fill(r.pieces)),O(),Q(),z()}return n.onChange(b=>{JSON.stringify(b)!==JSON.stringify(s)&&(s=b,f.set(s.text),m.set(s.layer+1),u.set(s.head+1),R())}),R(),()=>{c=!0,clearTimeout(F)}}var q=e=>Y(e).replace(" "," "),Ge="",Re=({layer:e,head:t})=>`Layer ${e+1}, head ${t+1}`,Pe=({layer:e,head:t})=>`layer ${e+1}, head ${t+1}`,Oe=({silenced:e},t,n)=>e.some(([o,s])=>o===t&&s===n),He=e=>l("code",{},...V(e)),Ne=e=>e===Ge?l("code",{},"start"):He(e),Ue=e=>e===Ge?"start":ie(e);function wt({attention:e,pieces:t,arch:n},o,s){let r=t.length,i=(o*n.n_heads+s)*r*r;return t.map((a,c)=>e.subarray(i+c*r,i+(c+1)*r))}function xt(e,t){return Array.from(e,(o,s)=>({p:o,index:s})).sort((o,s)=>s.p-o.p).slice(0,t)}function dn(e,t,n){let o=xt(t.subarray(0,n+1),bt).map(({p:s,index:r})=>`${q(s)} from ${Ue(e[r])}`);return`${Ue(e[n])} reads ${o.join(", ")}.`}function hn({next:e,silenced:t}){let[n]=e,o=He(n.piece);if(t.length===0)return["The model expects ",o,` with ${q(n.before)}.`];let s=t.length===1?Pe({layer:t[0][0],head:t[0][1]}):`${t.length} heads`,[r,i]=[q(n.before),q(n.after)],a=n.after<n.before?"falls":"rises",c=r===i?` stays at ${i}.`:` ${a} from ${r} to ${i}.`;return[`Without ${s}, `,o,c]}function un({onPoint:e,onChoose:t}){let n=l("p",{class:"ft-sentence"}),o=l("div",{class:"ft-tokens",role:"listbox"}),s=l("p",{class:"ft-readout","aria-hidden":"true"}),r=[],i=[],a=fe(o,r),c=d=>r.indexOf(d.target.closest(".ft-token")),f=d=>{let h=c(d);e(h<0?void 0:h)};return o.addEventListener("pointerover",f),o.addEventListener("focusin",f),o.addEventListener("pointerleave",()=>e(void 0)),o.addEventListener("focusout",()=>e(void 0)),o.addEventListener("click",d=>{c(d)>=0&&t(c(d))}),o.addEventListener("keydown",d=>{d.key!=="Enter"&&d.key!==" "||(d.preventDefault(),t(c(d)))}),{element:l("div",{},n,o,s),fill:d=>{i=d;let h={role:"option",tabindex:"-1"};r.length=0;for(let p of i)r.push(be(p,h));r[0].replaceChildren(l("span",{class:"ft-special"},"start")),o.replaceChildren(...r),a.enter(r.at(-1)),o.scrollTop=o.scrollHeight},draw:({shares:d,reader:h,pointed:p,name:m})=>{r.forEach((u,A)=>{let w=A<=h?d[A]:0;u.style.setProperty("--share",w.toFixed(3)),u.classList.toggle("ft-later",A>h),u.setAttribute("aria-selected",String(A===h)),u.setAttribute("aria-label",`${Ue(i[A])}, ${q(w)}`)}),o.setAttribute("aria-label",`Tokens, and what ${m} reads from each`),n.replaceChildren(`${m}: `,...pn(i,d,h)),s.replaceChildren(...mn(i,d,h,p))}}}function pn(e,t,n){let o=xt(t.subarray(0,n+1),bt).flatMap(({p:s,index:r},i)=>[i?", ":"",`${q(s)} from `,Ne(e[r])]);return[Ne(e[n])," reads ",...o,"."]}function mn(e,t,n,o){if(o===void 0)return["Point at a token for its share; click it to let it read."];let s=Ne(e[o]);return o>n?[s," comes later: it cannot be read."]:[s,` gets ${q(t[o])}.`]}function gn(e){let t=l("canvas",{role:"img"}),n=l("span",{class:"ft-map-row"}),o=l("figcaption"),s=l("div",{class:"ft-map-box"},t,n),r=1;t.addEventListener("click",a=>{let{top:c,height:f}=t.getBoundingClientRect();e(Math.min(r-1,Math.max(0,Math.floor((a.clientY-c)/f*r))))});let i;return{element:l("figure",{class:"ft-map"},s,o),draw:({rows:a,reader:c,name:f})=>{if(r=a.length,n.style.top=`${100*c/r}%`,n.style.height=`${100/r}%`,i?.buffer===a[0].buffer&&i.byteOffset===a[0].byteOffset)return;i=a[0],An(t,a);let d=wn(a);o.textContent=`Each row is a token that reads, each column one that is read. ${d}`,t.setAttribute("aria-label",`${f}, ${r} tokens by ${r}. ${d}`)}}}function An(e,t){let n=t.length;e.width=n,e.height=n;let o=e.getContext("2d"),s=o.createImageData(n,n);t.forEach((r,i)=>{for(let a=0;a<=i;a+=1){let c=Math.round(255*Math.sqrt(r[a]));s.data.set([15,120,90,c],4*(i*n+a))}}),o.putImageData(s,0,0)}function wn(e){let t=e.slice(1);if(t.length===0)return"There is one token, which can only read itself.";let n=i=>q(t.reduce((a,c,f)=>a+i(c,f+1),0)/t.length),o=n((i,a)=>i[a-1]),s=n((i,a)=>i[a]),r=n(i=>i[0]);return`On average ${o} go to the token before, ${s} to the token itself, ${r} to the start.`}function bn(e,t){let n=[],o=[],s=Array.from({length:e.n_heads},(h,p)=>l("th",{scope:"col"},String(p+1))),r=l("tbody");for(let h=0;h<e.n_layers;h+=1){let p=Array.from({length:e.n_heads},(u,A)=>{let w=`Silence ${Pe({layer:h,head:A})}`,x=D("",()=>{d.enter(x),t(h,A)});return x.setAttribute("aria-label",w),x.title=w,x.tabIndex=-1,n.push(x),l("td",{},x)}),m=l("td",{class:"ft-said"});o.push(m),r.append(l("tr",{},l("th",{scope:"row"},String(h+1)),...p,m))}let i=l("th",{scope:"col"},l("span",{class:"ft-spoken"},"Layer")),a=l("tr",{},i,...s,l("th",{scope:"col"},"would say")),c=l("caption",{},"A row for each layer, a column for each head: press one to silence it. On the right, what the model would say if that layer were its last."),f=l("table",{class:"ft-all-heads"},c,l("thead",{},a),r),d=fe(f,n);return d.enter(n[0]),{element:f,draw:({layer:h,head:p,silenced:m,layers:u})=>{n.forEach((A,w)=>{let x=Math.floor(w/e.n_heads),k=w%e.n_heads;A.setAttribute("aria-pressed",String(Oe({silenced:m},x,k))),A.classList.toggle("ft-looked",x===h&&k===p)}),u.forEach(({piece:A,p:w},x)=>{o[x].replaceChildren(He(A),` ${q(w)}`)})}}}var yt=10,vn=150,xn=24,yn=500,Ye={temperature:1,top_k:0,top_p:1,min_p:0,repetition_penalty:1},kt={eos:"The model ended the text here.",context:"The model's context is full.",stopped:"You stopped it."},_e=e=>e.toLocaleString("en");function $t(e,t,n){let{max_context:o,vocab_size:s,eos_id:r}=t.arch("target"),i=matchMedia("(prefers-reduced-motion: reduce)"),a=n.get(),c=[r],f=1,d=[],h,p=0,m,u,A=!1,w=!1,x=()=>Object.fromEntries([...Object.keys(Ye),"seed"].map(_=>[_,a[_]])),k=_=>{a={...a,..._},n.set(_)},y=P("Your text",a.text,_=>{k({text:_}),m=g(_)}),I=l("span",{class:"ft-readout"}),Q=l("p",{class:"ft-legend"},l("span",{class:"ft-typed"},"yours"),l("span",{class:"ft-written"},"the model's"),I),O=D("Generate",()=>u?u.stop():Z(),{primary:!0}),z=D("Undo",B),C=H(),S=ve("Likeliest next tokens",{heads:["model","settings"],onPick:v,pickWord:"Append"}),U=l("p",{class:"ft-note"},"Pale bar: the model's probability. Strong bar: with your settings. Dashed, crossed out: dropped by them. A click appends the token."),$=l("p",{class:"ft-counts"}),F=_n(a,_=>{k(_),Ze()}),R=ne("Seed",{min:0,max:2**32-1,value:a.seed},_=>k({seed:_})),E=D("New seed",()=>{k({seed:Math.floor(Math.random()*1e4)}),R.set(a.seed),C.say(`Seed ${a.seed}.`)}),L=ne("Tokens to write",{min:1,max:yn,value:a.max_tokens},_=>k({max_tokens:_})),b=D("Reset settings",()=>{k(Ye),F.set(a),Ze()});e.append(l("div",{class:"ft-growing"},y.element,Q),l("div",{},l("div",{class:"ft-row"},O,z),C.element),l("div",{class:"ft-choice"},U,S.element,$),F.element,l("div",{class:"ft-row"},b,L.element,R.element,E));async function g(_){u?.stop(),u=void 0,h=_,p+=1;let T=await t.tokenize(_);w||_!==h||(h=void 0,c=[r,...T.ids],f=c.length,d=[],tt(),C.show(""),pe(),ue())}function v({id:_}){if(!(u||h!==void 0)){if(et())return Ie();d.push(c.length),c=[...c,_],M()}}function B(){u||d.length===0||(c=c.slice(0,d.pop()),C.say(""),M())}async function M(){let _=c,T=(await t.decode(c.slice(1))).join("");c!==_||h!==void 0||(k({text:T}),pe(),ue())}async function Z(){if(await m,u)return;if(et())return Ie();let _=c.length,T=0,W=!1,nt=!1,se=kn(({id:ee,top:Ce,at_ms:Me})=>{if(u!==me)return;c=[...c,ee],C.show(Et(c.length-_,Me)),pe();let st=performance.now();i.matches||st-T<vn||(T=st,S.draw(_t(Ce)))}),rt=t.write({ids:c,params:x(),max_tokens:a.max_tokens,top:yt},ee=>{se.add(ee),i.matches&&se.rest()}),me={stop:()=>{nt=!W,rt.stop(),se.rest()}};u=me,d.push(_),O.textContent="Stop",pe();let Be;try{let{finish_reason:ee,seconds:Ce}=await rt.done;W=!0,await se.end();let Me=nt?kt.stopped:kt[ee]??"";Be=`${Et(c.length-_,1e3*Ce)} ${Me}`}catch(ee){se.rest(),Be=ee.message}(!u||u===me)&&(O.textContent="Generate"),u===me&&(u=void 0,C.say(Be),M())}function Ze(){A=!0,ue()}let et=()=>c.length>=o,Ie=()=>C.say(`The model reads ${o} tokens at most, and your text has ${_e(c.length)}. `+(d.length?"Take something back, or shorten it.":"Shorten it.")),ue=te(Rt(async()=>{if(c.length>o)return S.draw([]),$.textContent="",Ie();let _=c,T=await t.next({ids:c,params:x(),top:yt});w||u||c!==_||(S.draw(_t(T.top)),$.textContent=`${_e(T.n_kept)} of ${_e(s)} tokens kept. Entropy: ${T.entropy_bits.toFixed(2)} bits, with your settings ${T.kept_entropy_bits.toFixed(2)}.`,A&&C.speak($.textContent),A=!1)}));function Rt(_){return async()=>{try{await _()}catch(T){S.draw([]),$.textContent="",C.say(T.message)}}}let pe=J(te(async()=>{if(h!==void 0)return;let _=p,T=await t.decode(c.slice(1));w||_!==p||(y.show(T.map(Ot)),tt(),oe(z,d.length>0&&!u))})),tt=()=>{I.textContent=`${_e(c.length)} of ${o} tokens`},Ot=(_,T)=>{let W=T+1<f?"ft-typed":"ft-written";return{text:_,class:c[T+1]===r?`${W} ft-end`:W}};return n.onChange(_=>{let T=a;a=_,F.set(a),R.set(a.seed),L.set(a.max_tokens),_.text!==T.text?(y.set(_.text),m=g(_.text)):Object.keys(Ye).some(W=>_[W]!==T[W])&&ue()}),m=g(a.text),()=>{w=!0,u?.stop()}}function kn(e){let t=[],n=0,o=()=>{},s=i=>{let a=t.slice(0,i);t=t.slice(i),a.forEach(e),t.length===0&&o()},r=()=>{s(Math.max(1,Math.ceil(t.length/xn))),n=t.length&&requestAnimationFrame(r)};return{add:i=>{t.push(i),n||=requestAnimationFrame(r)},rest:()=>s(t.length),end:()=>new Promise(i=>{o=i,t.length===0&&i()})}}function _n(e,t){let n=r=>r.toFixed(2),s=Object.entries({temperature:["Temperature",{max:2,step:.05,format:r=>r?n(r):"0, greedy"}],top_k:["Top-k",{max:100,format:r=>r?String(r):"off"}],top_p:["Top-p",{max:1,step:.01,format:r=>r<1?n(r):"1, off"}],min_p:["Min-p",{max:1,step:.01,format:r=>r?n(r):"0, off"}],repetition_penalty:["Repetition penalty",{min:1,max:2,step:.05,format:r=>r>1?n(r):"1, off"}]}).map(([r,[i,a]])=>{let c={min:0,value:e[r],...a};return[r,K(i,c,f=>t({[r]:f}))]});return{element:l("div",{class:"ft-sliders"},...s.map(([,r])=>r.element)),set:r=>s.forEach(([i,a])=>a.set(r[i]))}}function _t(e){return e.map(({id:t,piece:n,p:o,kept:s})=>({id:t,piece:n,before:o,after:s,note:s>0?void 0:"dropped"}))}function Et(e,t){return`${e===1?"1 token":`${e} tokens`} in ${(t/1e3).toFixed(2)} s, ${Math.round(1e3*e/t)} per second.`}function Ee(e,t){return e===1?t+1:(1-e**(t+1))/(1-e)}function It(e,t,n,o){return Ee(e,t)/(o+t*n)}function he(e){let[t,n,o]=[0,0,0];for(let r of e)t+=r.accepted,n+=Math.min(r.accepted+1,r.drafted),o+=r.accepted+1;let s=n?t/n:void 0;return{accepted:t,looked_at:n,alpha:s,tokens:o,per_pass:o/e.length}}function qe(e){let t=e.slice(1);if(!t.length)return;let n=de(t.map(r=>r.draft_ms)),o=de(t.map(r=>r.check_ms)),s=Bt(t.map(r=>r.tokens.length));return{draft_ms:n,check_ms:o,per_second:1e3*s/(n+o)}}function We(e,t,{steps:n}){let o=e.slice(1).filter(({drafted:f})=>f===t);if(!o.length||n.length<2)return;let{alpha:s}=he(e),r=de(n.slice(1)),i=de(o.map(f=>f.draft_ms))/t/r,a=de(o.map(f=>f.check_ms))/r,c=1e3/r;return{step_ms:r,plain_per_second:c,draft_cost:i,check_cost:a,measured:qe(e).per_second/c,predicted:It(s,t,i,a),with_free_check:It(s,t,i,1)}}function Bt(e){return e.reduce((t,n)=>t+n,0)/e.length}function de(e){let t=Math.floor(e.length/4);return Bt(e.toSorted((n,o)=>n-o).slice(t,e.length-t))}function Ct(e,t,n){let{eos_id:o}=t.arch("target"),s=n.get(),r=[],i,a,c=!1,f=!1,d=s.gamma,h=P("Your text",s.text,E=>n.set({text:E})),p=K("Guesses per round, γ",{min:1,max:8,value:s.gamma},E=>n.set({gamma:E})),m=K("Temperature",{min:0,max:2,step:.1,value:s.temperature,format:E=>E.toFixed(1)},E=>n.set({temperature:E})),u=ne("Seed",{min:0,max:2**32-1,value:s.seed},E=>n.set({seed:E})),A=D("Write",()=>S(A,F),{primary:!0}),w=D("Race plain decoding",()=>S(w,R)),x=H(),k=En(),y=Bn(),I=Cn(),Q=Sn(),O=l("div",{class:"ft-results",hidden:!0},k.element,y.element,I.element,Q.element);e.append(h.element,l("div",{class:"ft-sliders"},p.element,m.element),l("div",{class:"ft-row"},A,w,u.element),x.element,O);let z=()=>{k.flush(),y.flush(),I.draw(r,d),Q.draw(r,d,i)},C=J(z);x.show("The draft guesses, and one pass of the target checks all guesses of a round.");async function S(E,L){if(c)return U();let b=E===A?w:A,g=E.textContent;E.textContent="Stop",oe(b,!1),[c,f]=[!0,!1];let v;try{v=await L()}catch(B){v=B.message}a=void 0,c=!1,E.textContent=g,oe(b,!0),z(),y.describe(r),x.say(v)}function U(){f=!0,a?.stop()}async function $(){let{text:E,temperature:L,seed:b,max_tokens:g}=n.get(),{ids:v}=await t.tokenize(E),B={temperature:L,seed:b};return{ids:[o,...v],params:B,max_tokens:g}}async function F(){let E=await $();i?.key!==JSON.stringify(E)&&(i=void 0),d=n.get().gamma,r=[],O.hidden=!1,k.begin(n.get().text),y.begin();let L={...E,gamma:d};return a=t.speculate(L,b=>{r.push(b),k.add(b),y.add(b),x.show(`Writing with guesses: ${G(r.length,"round")}.`),C()}),f&&a.stop(),await a.done,Qn(r,d,i)}async function R(){let E=await $(),L={key:JSON.stringify(E),ids:[],steps:[]};return a=t.write({...E,top:0},({id:b,step_ms:g})=>{L.ids.push(b),L.steps.push(g),x.show(`First plain decoding: ${L.ids.length} of ${E.max_tokens} tokens.`)}),f&&a.stop(),await a.done,f?"Stopped.":(i=L,F())}return n.onChange(E=>{h.set(E.text),p.set(E.gamma),m.set(E.temperature),u.set(E.seed)}),U}function En(){let e=xe($n),t=we("Show rejected",!0,s=>e.element.classList.toggle("ft-without-rejected",!s)),o=l("div",{class:"ft-row"},re({kept:"guess, kept",replaced:"guess, replaced",bonus:"bonus of the target"}),t.element);return{...e,element:l("section",{class:"ft-fate"},o,e.element)}}function $n({tokens:e,rejected:t}){return e.flatMap(({text:n,kind:o})=>{let s=l("span",{class:`ft-token ft-${o}`},...In(n));return o!=="replaced"?[s]:[l("del",{},...V(t[0].piece)),s]})}function In(e){let t=()=>l("span",{class:"ft-invisible"},"↵");return e.split(/(\n)/).flatMap(n=>n===`
`?[t(),n]:[n])}function Bn(){let e=l("div",{class:"ft-rounds",role:"img","aria-label":"No rounds yet"}),t={"box ft-box-kept":"kept","box ft-box-rejected":"rejected","box ft-box-void":"void: guessed after a rejected one","box ft-box-own":"the target's own token"},n=l("section",{},l("p",{class:"ft-heading"},"Rounds"),re(t),e),o=[],s=i=>l("span",{class:`ft-box ft-box-${i}`}),r=({drafted:i,accepted:a})=>l("span",{class:"ft-round"},...Array.from({length:i},(c,f)=>s(f<a?"kept":f===a?"rejected":"void")),s("own"));return{element:n,begin:()=>{e.replaceChildren(),o=[]},add:i=>o.push(i),flush:()=>{e.append(...o.map(r)),o=[]},describe:i=>{let a=i.map(({drafted:c,accepted:f})=>`${f} of ${c}`);e.setAttribute("aria-label",`Guesses kept, round by round: ${a.join(", ")}.`)}}}function Cn(){let e=le({alpha:"Guesses kept, of those that were looked at: α",per_pass:"Tokens per pass of the target, counted",formula:l("span",{},"By formula, 1 + α + … + α",l("sup",{},"γ"))}),t=(n,o)=>{let{accepted:s,looked_at:r,alpha:i,tokens:a,per_pass:c}=he(n);if(i===void 0)return;e.set("alpha",i,`${N(s)} of ${N(r)}: ${i.toFixed(2)}`);let f=`${N(a)} in ${G(n.length,"pass","passes")}: `;e.set("per_pass",c,f+c.toFixed(2));let d=Ee(i,o);e.set("formula",d,`${d.toFixed(2)} (${Mn(d/c-1)})`)};return{element:e.element,draw:t}}function Mn(e){let t=(100*Math.abs(e)).toFixed(1);return`${e<0&&Number(t)?"−":"+"}${t} %`}function Sn(){let e=ye({plain:"plain decoding",drafted:"speculation"}),t=l("p",{class:"ft-verdict"}),n={draft:"drafting",check:"checking"},o=Object.keys(n).map(u=>l("span",{class:`ft-${u}`})),s=l("div",{class:"ft-split","aria-hidden":"true"},...o),r={draft:ae("draft"),check:ae("check")},i=re(n,{draft:r.draft.element,check:r.check.element}),a=le({step:"A step of plain decoding",draft_cost:"A step of the draft, in such steps: c",check_cost:"A check of γ + 1 tokens, in such steps: v",predicted:"Speed-up by formula, from α, c and v",measured:"Speed-up, measured",with_free_check:"By formula, if a check cost one step"}),f=l("p",{class:"ft-note"},"v is near 1 where reading the weights sets the pace, as for one reader on a GPU, and nears γ + 1 where arithmetic does."),d=l("section",{class:"ft-clock"},l("p",{class:"ft-heading"},"The clock: the model's time, drawing left out"),e.element,t,l("p",{},"Where the time of a typical round goes:"),s,i,a.element,f),h=(u,A,w)=>{let x=qe(u),k=w&&We(u,A,w);d.hidden=!x,a.element.hidden=f.hidden=!k,e.draw({plain:k?.plain_per_second,drafted:x?.per_second}),t.textContent=k?Mt(k):"",x&&p(x),k&&m(k,A,he(u).alpha)},p=u=>{for(let[A,w]of Object.keys(n).entries()){let x=u[`${w}_ms`];o[A].style.flexGrow=x,r[w].set(x,`${j(x)} ms`)}},m=(u,A,w)=>{let{draft_cost:x,check_cost:k}=u,I=`${Ee(w,A).toFixed(2)} / (${A} · ${j(x)} + ${j(k)})`;a.set("step",u.step_ms,`${j(u.step_ms)} ms`),a.set("draft_cost",x,j(x)),a.set("check_cost",k,j(k)),a.set("predicted",u.predicted,`${I} = ${j(u.predicted)}`),a.set("measured",u.measured,j(u.measured)),a.set("with_free_check",u.with_free_check,j(u.with_free_check))};return{element:d,draw:h}}function Mt({measured:e,check_cost:t}){return`${`${j(e)} times as fast as plain decoding`}; a check costs ${j(t)} steps.`}function Qn(e,t,n){let{per_pass:o,tokens:s}=he(e);if(!e.length)return"Stopped before the end of the first round.";let i=`${`${G(s,"token")} in ${G(e.length,"pass","passes")}`} of the target, ${o.toFixed(2)} per pass.`,a=n&&We(e,t,n);return a?`${i} ${Mt(a)} ${Tn(e,n)}`:`${i} Race plain decoding to see the clock.`}function Tn(e,{ids:t}){return e.flatMap(s=>s.tokens.map(({id:r})=>r)).every((s,r)=>s===t[r])?"Both texts are the same.":"The texts differ: other random numbers were drawn."}var Ke=65536,Dn=350,Ln=300,St=1500,jn=8,$e=[.5,1,2,4,8],zn=10,Qt=3,Fn=3,Rn={ids:[],pieces:[],bits:[],n_bytes:0};function Dt(e,t,n){let o=t.arch("target"),s=n.get(),r,i=!1,a=P("Your text",s.text,g=>I(g,Dn)),c=l("p",{class:"ft-note",role:"alert"}),f=l("input",{type:"file",hidden:!0}),d=D("Open a file…",()=>f.click()),h=l("progress",{"aria-label":"Reading the text",max:1,value:0}),p=D("Stop",()=>{$(),u.say("Stopped. The colours are those of the text before.")}),m=l("div",{class:"ft-row",hidden:!0},h,p),u=H(),A=Wn(),w=Kn(L),x=l("div",{class:"ft-about"}),k=l("ol",{class:"ft-most"}),y=l("div",{class:"ft-surprise"},l("div",{class:"ft-whole"},u.element,A.element),l("div",{},Jn(),x,w.element),l("div",{class:"ft-whole"},l("p",{class:"ft-heading"},"Most surprising"),k));e.replaceChildren(a.element,l("div",{class:"ft-row"},d,f,l("span",{},"or drop one here")),c,m,y);function I(g,v=0){let{kept:B,cut:M}=On(g);M&&a.set(B),c.textContent=M?"The text is long: its first 64 KB are read.":"",s={...s,text:B},n.set({text:B}),U(v)}async function Q(g){try{let v=await Nn(g);a.set(v),I(v)}catch(v){c.textContent=v.message}}f.addEventListener("change",()=>{f.files.length&&Q(f.files[0]),f.value=""});let O=g=>g.preventDefault(),z=g=>{let[v]=g.dataTransfer.files;v&&(g.preventDefault(),Q(v))};e.addEventListener("dragover",O),e.addEventListener("drop",z);let C,S;function U(g=0){clearTimeout(C),$(),C=setTimeout(F,g)}function $(){S?.stop(),S=void 0,m.hidden=!0}async function F(){let{text:g}=s;if(g==="")return R(Rn,g);let v=t.losses({text:g},(M,Z)=>{h.max=Z,h.value=M});S=v,h.removeAttribute("value");let B=setTimeout(()=>{m.hidden=v!==S},Ln);try{let M=await v;v===S&&!i&&await R(M,g)}catch(M){v===S&&!i&&(c.textContent=M.message)}finally{clearTimeout(B),v===S&&(m.hidden=!0)}}async function R(g,v){r=g,u.say(Hn(r)),w.fill(r),k.replaceChildren(...Xn(r,w.goTo)),x.replaceChildren(Yn(r));let B=v&&await Un(v);r!==g||i||A.draw(qn(r,B,s.held_out))}let E;function L(g){E=g,x.replaceChildren(...Tt(r,g)),b()}let b=te(async()=>{let[g,v]=[E,r],B=Gn(v.ids,g,o),{top:M}=await t.next({ids:B,params:{},top:o.vocab_size});E!==g||r!==v||i||x.replaceChildren(...Tt(v,g),...er(M,v.ids[g]))});return n.onChange(g=>{g.text!==s.text&&(a.set(g.text),I(g.text))}),I(s.text),()=>{i=!0,clearTimeout(C),$(),e.removeEventListener("dragover",O),e.removeEventListener("drop",z)}}function On(e){let t=new TextEncoder().encode(e);return t.length<=Ke?{kept:e,cut:!1}:{kept:new TextDecoder().decode(t.subarray(0,Ke),{stream:!0}),cut:!0}}async function Nn(e){let t=await e.slice(0,Ke+4).arrayBuffer();try{let n=new TextDecoder("utf-8",{fatal:!0}).decode(t,{stream:e.size>t.byteLength});if(!n.includes("\0"))return n}catch{}throw new Error(`${e.name} holds no text in UTF-8, so it cannot be read here.`)}async function Un(e){if(!globalThis.CompressionStream)return;let t=new Blob([e]);return 8*(await new Response(t.stream().pipeThrough(new CompressionStream("gzip"))).arrayBuffer()).byteLength/t.size}function Gn(e,t,{eos_id:n,max_context:o}){let s=Math.min(o,e.length),r=Math.max(1,Math.floor(s/2)),i=Math.max(0,Math.ceil((t+1-s)/r)),a=Math.min(i*r,e.length-s);return[n,...e].slice(a,t+1)}var Ve=e=>`${e<10?e.toFixed(2):e.toFixed(1)} bits`,Pn=e=>$e.filter(t=>e>=t).length,Xe=e=>l("code",{},...V(e)),Je=(e,t)=>`${e.toLocaleString("en")} ${t}${e===1?"":"s"}`;function Hn({ids:e,bits:t,n_bytes:n,bits_per_byte:o}){if(e.length===0)return"There is no text yet.";let s=t.reduce((i,a)=>i+a,0),r=`${Je(e.length,"token")}, ${Je(n,"byte")}, ${Je(Math.round(s),"bit")}`;return`${o.toFixed(2)} bits per byte (${r})`}function Yn({ids:e}){let t=e.length?"Choose a token to see what else could have come.":"Type or paste a text: code, prose, your name.";return l("p",{class:"ft-note"},t)}function qn({ids:e,bits_per_byte:t},n,o){let s=[{name:"the model, on Python new to it",value:o},{name:"knowing nothing",value:jn}];return n&&s.push({name:"gzip and its header, on your text",value:n}),e.length&&s.push({name:"the model, on your text",value:t,own:!0}),s.filter(({value:r})=>r!==void 0).sort((r,i)=>r.value-i.value)}function Wn(){let e=l("ul",{class:"ft-references","aria-label":"Bits per byte"});return{element:e,draw:t=>{let n=Math.max(...t.map(({value:s})=>s)),o=t.map(({name:s,value:r,own:i})=>{let a=l("span",{class:"ft-bar"});return a.style.width=`${100*r/n}%`,l("li",{class:i&&"ft-own"},l("span",{},s),l("span",{class:"ft-track"},a),l("span",{class:"ft-number-text"},r.toFixed(2)))});e.replaceChildren(...o)}}}function Jn(){let t=[...$e.map((n,o)=>o?`${$e[o-1]}–${n}`:`under ${n}`),`${$e.at(-1)} and more`].map((n,o)=>l("li",{},l("span",{class:"ft-token","data-level":o},n)));return l("ul",{class:"ft-levels","aria-label":"Colours: bits of a token"},...t)}function Kn(e){let t=l("div",{class:"ft-tokens ft-losses",role:"listbox","aria-label":"Tokens with their bits"}),n=[],o=fe(t,n),s=0,r=i=>{t.querySelector('[aria-selected="true"]')?.setAttribute("aria-selected","false"),n[i].setAttribute("aria-selected","true"),e(i)};return t.addEventListener("click",i=>{let a=n.indexOf(i.target.closest(".ft-token"));a>=0&&n[a].focus()}),t.addEventListener("focusin",i=>r(n.indexOf(i.target))),{element:t,goTo:i=>{n[i]?.scrollIntoView({block:"center"}),n[i]?.focus({preventScroll:!0})},fill:({pieces:i,bits:a})=>{cancelAnimationFrame(s),n.length=0,t.replaceChildren();let c=()=>{if(n.length===i.length)return;let f=n.length,d=Math.min(f+St,i.length);for(;d<i.length&&d<f+2*St&&!i[d-1].endsWith(`
`);)d+=1;for(let h=f;h<d;h+=1)n.push(Vn(i[h],a[h]));t.append(l("div",{class:"ft-chunk"},...n.slice(f))),f===0&&o.enter(n[0]),s=requestAnimationFrame(c)};c()}}}function Vn(e,t){return be(e,{role:"option",tabindex:"-1","aria-selected":"false","aria-label":`${ie(e)}, ${Ve(t)}`,"data-level":Pn(t)})}function Xn({pieces:e,bits:t},n){return Array.from(t,(s,r)=>r).sort((s,r)=>t[r]-t[s]).slice(0,zn).map(s=>{let r=l("span",{class:"ft-context"},Zn(e,s)),i=D("",()=>n(s));return i.append(l("span",{class:"ft-place"},r,Xe(e[s])),l("span",{class:"ft-number-text"},Ve(t[s]))),l("li",{},i)})}function Zn(e,t){let n=Math.max(0,t-Qt),o=Math.max(0,t-2*Qt);for(;n>o&&/^\w/.test(e[n])&&/\w$/.test(e[n-1]);)n-=1;return e.slice(n,t).join("").split(`
`).at(-1).trimStart()}function Tt({pieces:e,bits:t},n){let o=2**-t[n],s=o<.001?`${(100*o).toPrecision(2)} %`:Y(o);return[l("p",{},Xe(e[n]),` ${Ve(t[n])}: p = ${s}.`)]}function er(e,t){let n=e.findIndex(i=>i.id===t)+1,o=e.filter(i=>i.id!==t).slice(0,Fn),s=n===1?"It was the likeliest token.":`It was number ${n} of ${e.length}.`,r=o.map(i=>l("li",{},Xe(i.piece),` ${Y(i.p)}`));return[l("p",{},s," Instead could have come:"),l("ul",{},...r)]}var Lt=`/* What is needed before a view's script has come. Colours are the page's own: the website's
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
`;var jt=`/* The look of a live view; loader.css has its frame and its colours. */
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
@media (hover: hover) {
  .ft-live button:not([aria-disabled="true"]):hover {
    box-shadow: 0 0 0 1px var(--ft-edge);
  }
  .ft-live .ft-bars li > button:not([aria-disabled]):hover {
    background: color-mix(in srgb, var(--ft-accent) 10%, transparent);
  }
}
.ft-live button[aria-disabled="true"] {
  border-style: dashed;
  color: var(--ft-muted);
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
  appearance: none;
  background: none;
  cursor: pointer;
}
.ft-live .ft-slider input::-webkit-slider-runnable-track {
  height: 6px;
  border-radius: 3px;
  background: linear-gradient(to right, var(--ft-accent) var(--ft-at), var(--ft-edge) 0);
}
.ft-live .ft-slider input::-moz-range-track {
  height: 6px;
  border-radius: 3px;
  background: linear-gradient(to right, var(--ft-accent) var(--ft-at), var(--ft-edge) 0);
}
.ft-live .ft-slider input::-webkit-slider-thumb {
  width: 24px;
  height: 24px;
  margin-top: -9px;
  border: 2px solid #fff;
  border-radius: 50%;
  appearance: none;
  background: var(--ft-accent);
  box-shadow: 0 0 0 1px #0006;
}
.ft-live .ft-slider input::-moz-range-thumb {
  box-sizing: border-box;
  width: 24px;
  height: 24px;
  border: 2px solid #fff;
  border-radius: 50%;
  background: var(--ft-accent);
  box-shadow: 0 0 0 1px #0006;
}
.ft-live .ft-readout {
  font-variant-numeric: tabular-nums;
}
@media (pointer: coarse), (max-width: 30rem) {
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
/* What stands below a text that is being written stays in its place under a thumb. */
.ft-live .ft-growing .ft-text > div {
  min-height: 10.8rem;
}
@media (max-width: 37.5rem) {
  .ft-live .ft-growing .ft-text {
    height: 10.8rem;
  }
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

/* Whose words they are: tokens of the reader in grey, in turn lighter and darker, those of the model
   in colour and underlined. */
.ft-live .ft-typed {
  background: color-mix(in srgb, var(--ft-ink) 6%, transparent);
}
.ft-live .ft-typed:nth-child(even) {
  background: color-mix(in srgb, var(--ft-ink) 13%, transparent);
}
.ft-live .ft-written {
  background: color-mix(in srgb, #d27800 16%, transparent);
  box-shadow: 0 2px 0 #d27800;
}
.ft-live .ft-written:nth-child(even) {
  background: color-mix(in srgb, #d27800 30%, transparent);
}
.ft-live .ft-behind .ft-end::after {
  content: "";
  position: absolute;
  margin-left: 2px;
  width: 4px;
  height: 1.4em;
  border-radius: 2px;
  background: var(--ft-ink);
}
.ft-live .ft-legend {
  display: flex;
  flex-wrap: wrap;
  gap: 0.25rem 0.75rem;
  margin-top: 0.4rem;
  color: var(--ft-muted);
  font-size: 0.85rem;
}
.ft-live .ft-legend .ft-readout {
  margin-left: auto;
}
.ft-live .ft-legend :is(.ft-typed, .ft-written) {
  padding: 0 0.4em;
}
.ft-live .ft-counts,
.ft-live .ft-scale {
  color: var(--ft-muted);
  font-size: 0.85rem;
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
.ft-live .ft-bars li > *,
.ft-live .ft-heads {
  display: grid;
  grid-template-columns: minmax(5.5rem, 22%) 1fr 4rem 4.5rem;
  align-items: center;
  gap: 0.6rem;
  width: 100%;
}
.ft-live .ft-heads {
  box-sizing: border-box;
  padding-inline: 0.5rem;
  color: var(--ft-muted);
  font-size: 0.85rem;
  text-align: right;
}
.ft-live .ft-heads :first-child {
  grid-column: 1 / 3;
  text-align: left;
}
.ft-live .ft-heads[hidden] {
  display: none;
}
.ft-live .ft-bars li > * {
  min-height: 2rem;
  padding: 0.1rem 0.5rem;
  border: 0;
  border-radius: 0.35rem;
  background: none;
  text-align: right;
  white-space: nowrap;
  font-variant-numeric: tabular-nums;
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
@media (max-width: 30rem) {
  .ft-live .ft-bars li > *,
  .ft-live .ft-heads {
    grid-template-columns: 5.5rem 1fr 3.4rem 3.9rem;
    gap: 0.35rem;
    padding-inline: 0.2rem;
    font-size: 0.9rem;
  }
}
/* A slider and what it changes share a phone's screen. */
@media (max-width: 37.5rem) {
  .ft-live .ft-choice .ft-bars li:nth-child(n + 7) {
    display: none;
  }
}
@media (pointer: coarse), (max-width: 30rem) {
  .ft-live .ft-bars li > button {
    min-height: 2.5rem;
  }
}

/* The line that says how things stand, and what only a screen reader reads. */
.ft-live .ft-seen {
  margin-top: 0.4rem;
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

.ft-live [hidden] {
  display: none !important;
}

/* Inside and surprise: text as tokens that can be chosen. */
.ft-live [role="listbox"] .ft-token {
  cursor: pointer;
}
.ft-live [role="listbox"] .ft-token:focus-visible {
  outline: 3px solid #d27800;
  outline-offset: 1px;
}
.ft-live .ft-note {
  color: var(--ft-muted);
  font-size: 0.85rem;
}
.ft-live .ft-note:empty {
  display: none;
}
.ft-live code {
  padding: 0 0.2em;
  border: 1px solid var(--ft-line);
  border-radius: 0.25em;
  background: none;
  color: inherit;
  font: 0.95em var(--ft-mono);
  white-space: pre;
}
.ft-live code .ft-special {
  padding: 0;
  border: 0;
}

/* Inside: what is read is green, as keys and values are in every figure; who reads is orange. */
.ft-live .ft-inside {
  display: grid;
  grid-template: "reads map" "silence next" / minmax(0, 1fr) minmax(0, 18rem);
  gap: 1rem 1.5rem;
}
.ft-live .ft-reads {
  grid-area: reads;
}
.ft-live .ft-map {
  grid-area: map;
}
.ft-live .ft-silence {
  grid-area: silence;
}
.ft-live .ft-next {
  grid-area: next;
}
.ft-live :is(.ft-reads, .ft-silence, .ft-next) {
  display: grid;
  align-content: start;
  gap: 0.7rem;
}
.ft-live .ft-reads > div:first-child {
  display: grid;
  gap: 0.4rem;
}
.ft-live .ft-sentence {
  min-height: 2.9em;
  font-variant-numeric: tabular-nums;
}
.ft-live .ft-effect {
  min-height: 1.45em;
  font-variant-numeric: tabular-nums;
}
.ft-live .ft-reads .ft-tokens {
  max-height: 18rem;
  overflow-y: auto;
}
.ft-live .ft-reads .ft-token {
  background:
    linear-gradient(#0f785a, #0f785a) bottom / 100% calc(var(--share, 0) * 4px) no-repeat,
    rgb(15 120 90 / calc(var(--share, 0) * 50%));
}
.ft-live .ft-reads .ft-later {
  opacity: 0.55;
}
.ft-live .ft-reads [aria-selected="true"] {
  outline: 2px solid #d27800;
}
.ft-live .ft-reads .ft-sliders {
  grid-template-columns: repeat(2, minmax(0, 1fr));
}
.ft-live .ft-map-box {
  position: relative;
  width: min(100%, 15rem);
  aspect-ratio: 1;
  margin: 0 auto 0.4rem;
  border: 1px solid var(--ft-line);
}
.ft-live .ft-map canvas {
  display: block;
  width: 100%;
  height: 100%;
  image-rendering: pixelated;
  cursor: pointer;
}
.ft-live .ft-map-row {
  position: absolute;
  inset-inline: 0;
  outline: 2px solid #d27800;
  pointer-events: none;
}
.ft-live .ft-map figcaption {
  color: var(--ft-muted);
  font-size: 0.85rem;
}
.ft-live .ft-all-heads {
  display: table;
  width: 100%;
  margin: 0;
  border-spacing: 2px;
  border-collapse: separate;
  color: var(--ft-ink);
  font-size: 0.85rem;
  font-variant-numeric: tabular-nums;
}
.ft-live .ft-all-heads :is(th, td, tr, caption) {
  padding: 0;
  border: 0;
  background: none;
  color: var(--ft-ink);
  text-align: center;
}
.ft-live .ft-all-heads caption {
  padding-bottom: 0.4rem;
  color: var(--ft-muted);
  text-align: left;
  caption-side: top;
}
.ft-live .ft-all-heads th {
  color: var(--ft-muted);
  font-weight: 400;
}
.ft-live .ft-all-heads .ft-said {
  width: 6.2rem;
  padding-left: 0.6rem;
  text-align: left;
  white-space: nowrap;
}
.ft-live .ft-all-heads button {
  position: relative;
  width: 100%;
  min-height: 1.9rem;
  padding: 0;
  border-radius: 0.3rem;
}
.ft-live .ft-all-heads tr > :first-child {
  width: 1.3rem;
}
.ft-live .ft-all-heads code {
  display: inline-block;
  max-width: 100%;
  overflow: hidden;
  vertical-align: bottom;
}
.ft-live .ft-all-heads button[aria-pressed="true"]:not(.ft-primary) {
  border: 1px dashed var(--ft-ink);
  background:
    linear-gradient(
      to top right,
      transparent calc(50% - 1.5px),
      #d20f00 0 calc(50% + 1.5px),
      transparent 0
    ),
    var(--ft-ground);
  box-shadow: none;
}
.ft-live .ft-all-heads button.ft-looked {
  outline: 2px solid #d27800;
}
.ft-live .ft-all-heads button.ft-looked:focus-visible {
  outline-width: 4px;
}
.ft-live .ft-next .ft-bars li > * {
  grid-template-columns: 5rem 1fr 3.4rem 3.6rem;
  gap: 0.35rem;
  min-height: 1.7rem;
  padding-inline: 0;
  font-size: 0.85rem;
}
@media (pointer: coarse) {
  .ft-live .ft-all-heads button {
    min-width: 2.5rem;
    min-height: 2.5rem;
  }
}
@media (max-width: 42rem) {
  .ft-live .ft-inside {
    grid-template: "reads" "silence" "next" "map" / minmax(0, 1fr);
  }
  .ft-live .ft-all-heads .ft-said {
    width: 3.5rem;
    padding-left: 0.3rem;
    white-space: normal;
  }
}

/* Surprise: the more bits, the stronger the orange and the thicker the line; one colour, whose
   steps are ordered for every eye. */
.ft-live .ft-surprise {
  display: grid;
  grid-template-columns: minmax(0, 1fr);
  gap: 1rem;
}
.ft-live .ft-whole {
  display: grid;
  grid-template-columns: minmax(0, 1fr);
  gap: 0.5rem;
}
.ft-live .ft-whole .ft-seen {
  color: var(--ft-ink);
  font-weight: 600;
}
.ft-live .ft-references,
.ft-live .ft-levels,
.ft-live .ft-most {
  margin: 0;
  padding: 0;
  list-style: none;
}
.ft-live .ft-references li {
  display: grid;
  grid-template-columns: 15rem 1fr 2.8rem;
  align-items: center;
  gap: 0.6rem;
  margin: 0;
  padding: 0.1rem 0;
  color: var(--ft-muted);
  font-variant-numeric: tabular-nums;
}
.ft-live .ft-references .ft-own {
  color: var(--ft-ink);
  font-weight: 600;
}
.ft-live .ft-bar {
  inset-block: 0.2rem;
  background: var(--ft-edge);
}
.ft-live .ft-own .ft-bar {
  background: #d27800;
}
.ft-live .ft-number-text {
  text-align: right;
  white-space: nowrap;
  font-variant-numeric: tabular-nums;
}
.ft-live .ft-levels {
  display: flex;
  flex-wrap: wrap;
  align-items: center;
  gap: 0.2rem 0.5rem;
  margin-bottom: 0.5rem;
  color: var(--ft-muted);
  font-size: 0.85rem;
}
.ft-live .ft-levels li {
  margin: 0;
}
.ft-live .ft-levels::before {
  content: "bits:";
}
.ft-live .ft-levels .ft-token {
  padding: 0.1em 0.35em 0.25em;
  color: var(--ft-ink);
}
.ft-live .ft-losses {
  max-height: min(32rem, 70vh);
  overflow-y: auto;
  border: 1px solid var(--ft-line);
  border-radius: 0.5rem;
  padding: 0.5rem 0.6rem;
}
.ft-live .ft-losses:empty {
  display: none;
}
.ft-live .ft-chunk {
  content-visibility: auto;
  contain-intrinsic-block-size: auto 60rem; /* its height alone: it is as wide as its box */
}
.ft-live [data-level] {
  --level: 0;
  background:
    linear-gradient(#d27800, #d27800) bottom / 100% calc(var(--level) * 0.8px) no-repeat,
    rgb(210 120 0 / calc(var(--level) * 10%));
}
.ft-live [data-level="1"] {
  --level: 1;
}
.ft-live [data-level="2"] {
  --level: 2;
}
.ft-live [data-level="3"] {
  --level: 3;
}
.ft-live [data-level="4"] {
  --level: 4;
}
.ft-live [data-level="5"] {
  --level: 5;
}
.ft-live .ft-losses [aria-selected="true"] {
  outline: 2px solid var(--ft-ink);
}
.ft-live .ft-about {
  display: flex;
  flex-wrap: wrap;
  align-content: start;
  gap: 0.1rem 0.7rem;
  min-height: 3.4rem;
  font-variant-numeric: tabular-nums;
}
.ft-live .ft-about ul {
  display: flex;
  flex-wrap: wrap;
  gap: 0.1rem 0.9rem;
  margin: 0;
  padding: 0;
  list-style: none;
}
.ft-live .ft-about li {
  margin: 0;
}
.ft-live .ft-heading {
  margin: 0;
  color: var(--ft-ink);
  font-size: 0.95rem;
  font-weight: 600;
}
.ft-live .ft-most {
  display: grid;
  grid-template-columns: repeat(auto-fill, minmax(min(11.5rem, 100%), 1fr));
  gap: 0.3rem;
}
.ft-live .ft-most li {
  margin: 0;
}
.ft-live .ft-most button {
  display: grid;
  grid-template-columns: minmax(0, 1fr) auto;
  align-items: center;
  gap: 0.3rem;
  width: 100%;
  min-height: 2rem;
  padding: 0.1rem 0.5rem;
  text-align: left;
}
.ft-live .ft-place {
  overflow-wrap: anywhere;
}
.ft-live .ft-context {
  color: var(--ft-muted);
  font: 0.85em var(--ft-mono);
  white-space: pre-wrap;
}
@media (pointer: coarse) {
  .ft-live .ft-most button {
    min-height: 2.5rem;
  }
}
@media (max-width: 42rem) {
  .ft-live .ft-about {
    min-height: 6.5rem;
  }
  .ft-live .ft-references li {
    grid-template-columns: 1fr 2.8rem;
  }
  .ft-live .ft-references .ft-track {
    grid-row: 2;
    grid-column: 1 / -1;
  }
}

/* The cache, and speculation. */
.ft-live .ft-results {
  display: grid;
  gap: 1.1rem;
  min-width: 0;
}
.ft-live section > .ft-heading {
  margin-bottom: 0.35rem;
}
.ft-live section {
  min-width: 0;
}
.ft-live .ft-row .ft-slider {
  flex: 1 1 14rem;
}
/* In a column from below, what is added at the end stays in sight, unless the reader scrolled up. */
.ft-live .ft-output {
  display: flex;
  flex-direction: column-reverse;
  box-sizing: border-box;
  height: 10rem;
  padding: 0.6rem 0.75rem;
  border: 1px solid var(--ft-line);
  border-radius: 0.5rem;
  overflow-y: auto;
  contain: content; /* what is added here moves nothing else */
  font: 0.95rem / 1.6 var(--ft-mono);
  white-space: pre-wrap;
  overflow-wrap: anywhere;
}
.ft-live .ft-output > div {
  margin-bottom: auto;
}
.ft-live .ft-output:focus-visible {
  outline: 3px solid #d27800;
  outline-offset: 2px;
}
.ft-live .ft-given {
  color: var(--ft-muted);
}
.ft-live .ft-key {
  display: flex;
  flex-wrap: wrap;
  gap: 0.1rem 1.1rem;
  margin: 0 0 0.5rem;
  padding: 0;
  list-style: none;
  font-size: 0.88rem;
}
.ft-live .ft-key li {
  display: flex;
  align-items: center;
  gap: 0.4rem;
  margin: 0;
}
.ft-live .ft-swatch {
  flex: none;
  width: 0.9rem;
  height: 0.9rem;
}
.ft-live .ft-prompt {
  background: #3c69f0;
  fill: #3c69f0;
}
.ft-live .ft-decode {
  background: #d27800;
  fill: #d27800;
}
.ft-live .ft-computed {
  background: var(--ft-ink);
  fill: var(--ft-ink);
}
.ft-live .ft-swatch.ft-computed {
  height: 0.4rem;
}
.ft-live .ft-empty {
  fill: color-mix(in srgb, var(--ft-ink) 12%, var(--ft-paper));
}
.ft-live .ft-gap {
  stroke: var(--ft-paper);
}
.ft-live .ft-layered {
  display: flex;
  gap: 0.5rem;
}
.ft-live .ft-layers {
  display: flex;
  flex-direction: column;
  justify-content: space-around;
  padding-top: 13.5px;
  color: var(--ft-muted);
  font-size: 0.75rem;
  line-height: 1;
}
.ft-live svg[role="img"] {
  display: block;
  flex: 1;
  min-width: 0;
  width: 100%;
}
.ft-live .ft-picture .ft-ends {
  padding-left: 1.1rem;
}
.ft-live .ft-ends {
  display: flex;
  justify-content: space-between;
  color: var(--ft-muted);
  font-size: 0.8rem;
}
.ft-live .ft-figures {
  display: grid;
  gap: 0.15rem;
  margin: 0;
}
.ft-live .ft-figures > div {
  display: flex;
  flex-wrap: wrap;
  justify-content: space-between;
  gap: 0 1rem;
  padding: 0.1rem 0;
  border-bottom: 1px solid var(--ft-line);
}
.ft-live :is(dt, dd) {
  margin: 0;
  font-weight: 400;
}
.ft-live dt {
  color: var(--ft-muted);
}
.ft-live dd {
  font-variant-numeric: tabular-nums;
}
.ft-live .ft-pair {
  display: grid;
  grid-template-columns: repeat(auto-fit, minmax(min(17rem, 100%), 1fr));
  gap: 0.9rem 1.75rem;
}
.ft-live .ft-chart {
  display: grid;
  grid-template-columns: auto 1fr;
  column-gap: 0.4rem;
}
.ft-live .ft-chart svg {
  height: 8rem;
  border: solid var(--ft-edge);
  border-width: 0 0 1px 1px;
  overflow: visible;
}
.ft-live .ft-chart path {
  fill: none;
  stroke-width: 4px;
  stroke-linecap: round;
  vector-effect: non-scaling-stroke;
}
.ft-live .ft-on {
  background: #0f785a;
  stroke: #0f785a;
}
.ft-live .ft-off {
  background: #d20f00;
  stroke: #d20f00;
}
.ft-live .ft-ticks {
  display: flex;
  flex-direction: column;
  justify-content: space-between;
  color: var(--ft-muted);
  font-size: 0.8rem;
  line-height: 1;
  text-align: right;
}
.ft-live .ft-chart .ft-ends {
  grid-column: 2;
}
.ft-live .ft-rates {
  display: grid;
  gap: 0.5rem;
  margin: 0 0 0.6rem;
}
.ft-live .ft-rates > div {
  display: grid;
  grid-template-columns: 1fr auto;
}
.ft-live .ft-rates dt {
  display: flex;
  align-items: center;
  gap: 0.4rem;
}
.ft-live .ft-rates dd {
  display: contents;
}
.ft-live .ft-rate {
  grid-column: 1 / -1;
  height: 0.9rem;
  border-left: 1px solid var(--ft-edge);
}
.ft-live .ft-rate > span {
  display: block;
  height: 100%;
  border-radius: 0 0.2rem 0.2rem 0;
}
.ft-live .ft-verdict {
  font-weight: 600;
}
.ft-live .ft-plain {
  background: #1e96e1;
}
.ft-live :is(.ft-drafted, .ft-draft) {
  background: #785aa5;
}
.ft-live .ft-check {
  background: #d20f00;
}
.ft-live :is(.ft-clock, .ft-fate) {
  display: grid;
  gap: 0.5rem;
}
.ft-live .ft-fate .ft-output {
  height: 14rem;
}
.ft-live .ft-figures sup {
  line-height: 0;
}
.ft-live .ft-split {
  display: flex;
  gap: 2px;
  height: 1.2rem;
}
.ft-live .ft-split > * {
  flex: 0 0 0;
}
.ft-live .ft-row > .ft-key {
  flex: 1;
}
.ft-live .ft-kept {
  border-bottom: 2px solid #785aa5;
  background: color-mix(in srgb, #785aa5 20%, var(--ft-paper));
}
.ft-live .ft-replaced {
  border-bottom: 3px double #d20f00;
  background: color-mix(in srgb, #d20f00 16%, var(--ft-paper));
}
.ft-live .ft-bonus {
  border-bottom: 2px dotted #d20f00;
}
.ft-live del {
  color: var(--ft-muted);
  font-size: 0.8em;
}
.ft-live .ft-without-rejected del {
  display: none;
}
.ft-live .ft-rounds {
  display: flex;
  flex-wrap: wrap;
  gap: 0.4rem 0.8rem;
  min-height: 0.8rem;
}
.ft-live .ft-round {
  display: inline-flex;
  gap: 2px;
}
.ft-live .ft-box {
  box-sizing: border-box;
  width: 0.75rem;
  height: 0.75rem;
  border: 1px solid #785aa5;
}
.ft-live .ft-box-kept {
  background: #785aa5;
}
.ft-live .ft-box-rejected {
  border-color: #d20f00;
  background:
    linear-gradient(45deg, transparent 43%, #d20f00 43% 57%, transparent 57%),
    linear-gradient(-45deg, transparent 43%, #d20f00 43% 57%, transparent 57%);
}
.ft-live .ft-box-void {
  border: 1px dotted var(--ft-edge);
}
.ft-live .ft-box-own {
  border: 0;
  border-radius: 50%;
  background: #d20f00;
}
`;var rr={next_token:$t,inside:vt,cache:mt,speculation:Ct,surprise:Dt},sr={next_token:"The next token, live",inside:"Inside the model, live",cache:"The cache, live",speculation:"Speculative decoding, live",surprise:"Loss per token, live"},or=["speculation"];async function zt(e,t,n,o){Ft("ft-live-style",jt),e.setAttribute("role","group"),e.setAttribute("aria-label",sr[t]);let s=ht(e),r=await ir(s,n,or.includes(t));s.done();let i=rr[t](e,r,o);return ar(e),i}async function ir(e,t,n){for(;;)try{let o=await it(t,e.progress);return n&&await o.need("draft",e.progress),o}catch(o){await t.forget(),await new Promise(s=>e.failed(o,s))}}function ar(e){if(!De(e))return;let t=e.querySelector("textarea, input, button"),n=matchMedia("(pointer: coarse)").matches;e.tabIndex=-1,(n||!t?e:t).focus({preventScroll:!0})}function Ft(e,t){if(document.getElementById(e))return;let n=document.createElement("style");n.id=e,n.textContent=t,document.head.append(n)}function qr(e){let t=JSON.parse(e.dataset.settings),n={get:()=>t,set:o=>{t={...t,...o}},onChange:()=>{}};return zt(e,e.dataset.view,at(e),n)}function lr({target:e}){e.matches(":read-write")||(e.dataset.lmSuppressShortcuts="true")}function cr({model:e,el:t}){Ft("ft-live-frame",Lt);let n=document.createElement("div");n.className="ft-live",n.addEventListener("focusin",lr),n.innerHTML=e.get("still"),t.append(n);let o=[],s={get:()=>e.get("settings"),set:a=>{e.set("settings",{...e.get("settings"),...a}),e.save_changes()},onChange:a=>{let c=()=>a(e.get("settings"));e.on("change:settings",c),o.push(()=>e.off("change:settings",c))}},r=lt(e),i=async a=>{a.target.disabled=!0,o.push(await zt(n,e.get("view"),r,s))};return n.querySelector(".ft-live-start").addEventListener("click",i,{once:!0}),()=>o.forEach(a=>a())}var Wr={render:cr};export{Wr as default,qr as mount,it as openEngine,at as siteHost};
