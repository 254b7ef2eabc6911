"""Questions about part II: shortcuts that change the model, and one that does not."""

import numpy as np

from firsttoken.appendix.interview.question import Choice, Explain, InterviewQuestion, Number
from firsttoken.appendix.interview.questions.facts import (
    CARD,
    DEEPSEEK_V3,
    H100,
    LLAMA_8B,
    LLAMA_13B,
    SHAPE_8B,
    SHAPE_13B,
)
from firsttoken.architectures import ARCHITECTURES, Architecture
from firsttoken.flash import io_bytes, naive_io_bytes
from firsttoken.kv_cache import crossover_tokens, kv_cache_bytes
from firsttoken.quantization import GGUF_LAYOUTS, quantize
from firsttoken.throughput import decode_step
from firsttoken.units import BYTES, GB, GIB

_GEMMA = ARCHITECTURES["Gemma-3-12B"]
_GEMMA_GLOBAL = _GEMMA.replace(window=None, local_layers=None)
_GQA_13B = LLAMA_13B.replace(n_kv_heads=8)


def _memory(arch: Architecture) -> float:
    return decode_step(arch, H100, batch=64, context=1024).memory_bytes


def _latent_bytes(n_latent: int, n_rotary: int) -> int:
    return DEEPSEEK_V3.n_layers * (n_latent + n_rotary) * 2


ATTENTION = (
    Number(
        id="attention-gemma-cache",
        chapter="06_attention",
        section="Old tokens are forgotten (windows and sinks)",
        level=2,
        text="Gemma-3-12B has 48 layers, each with 8 KV heads of 256 numbers. 8 layers see "
        "everything, 40 see a window of 1,024 tokens and keep no more. How many GB (10⁹ bytes) of "
        "keys and values does one sequence of 32,768 tokens take in bf16?",
        answer=lambda: kv_cache_bytes(_GEMMA, 32768) / GB,
        unit="GB",
        slips=(
            (
                lambda: kv_cache_bytes(_GEMMA_GLOBAL, 32768) / GB,
                "That is with all 48 layers global. 40 of them stop growing at 1,024 tokens.",
            ),
            (lambda: kv_cache_bytes(_GEMMA, 32768) / GIB, "That is the number of GiB."),
            (
                lambda: kv_cache_bytes(_GEMMA, 32768) / 2 / GB,
                "Keys and values: the factor 2 is missing.",
            ),
            (
                lambda: kv_cache_bytes(_GEMMA_GLOBAL.replace(n_layers=8), 32768) / GB,
                "These are the global layers alone. The windows hold 1,024 tokens in 40 layers.",
            ),
        ),
        worked=lambda: (
            "A token takes 2 · 8 · 256 · 2 = 8,192 B in a layer. 8 layers hold 32,768 of them, 40 "
            f"hold 1,024: together {kv_cache_bytes(_GEMMA, 32768) / GB:.2f} GB, where 48 global "
            f"layers would hold {kv_cache_bytes(_GEMMA_GLOBAL, 32768) / GB:.1f}."
        ),
    ),
    Number(
        id="attention-mla-token",
        chapter="06_attention",
        section="A latent stands for all heads (MLA)",
        level=2,
        text="DeepSeek-V3 has 61 layers and 128 heads. Its latent attention (MLA) has a latent of "
        "512 numbers and a rotary key of 64, per token and layer. How many bytes does one token "
        "take in a bf16 cache?",
        answer=lambda: kv_cache_bytes(DEEPSEEK_V3, 1),
        unit="B",
        slips=(
            (
                lambda: _latent_bytes(2 * 512, 64),
                "One latent serves for keys and values together: no factor 2.",
            ),
            (lambda: _latent_bytes(512, 0), "The rotary key is cached beside the latent."),
            (
                lambda: _latent_bytes(512, 64) * 128,
                "All 128 heads share the latent. That is the point of it.",
            ),
            (
                lambda: kv_cache_bytes(DEEPSEEK_V3, 1) / 61,
                "That is one layer of 61.",
            ),
        ),
        worked=lambda: (
            f"61 · (512 + 64) · 2 = {kv_cache_bytes(DEEPSEEK_V3, 1):,} B. Keys and values are both "
            "made from the latent, for all heads."
        ),
    ),
    Number(
        id="attention-gqa-memory",
        chapter="06_attention",
        section="Heads share: one function, one parameter",
        level=3,
        text=f"{SHAPE_13B} "
        "It serves 64 sequences of 1,024 tokens, all in bf16. A variant with 8 KV heads "
        f"instead of 40 has {_GQA_13B.n_params * 2 / GB:.1f} GB of weights in place of "
        f"{LLAMA_13B.n_params * 2 / GB:.1f}. By which factor do weights and cache together shrink?",
        answer=lambda: _memory(LLAMA_13B) / _memory(_GQA_13B),
        unit="",
        slips=(
            (lambda: 5, "That is the cache. The weights hardly shrink."),
            (
                lambda: LLAMA_13B.n_params / _GQA_13B.n_params,
                "These are the weights alone. The cache shrinks five times.",
            ),
            (lambda: _memory(_GQA_13B) / _memory(LLAMA_13B), "Upside down."),
        ),
        worked=lambda: (
            f"{_memory(LLAMA_13B) / GB:.1f} GB over {_memory(_GQA_13B) / GB:.1f} GB: "
            f"{_memory(LLAMA_13B) / _memory(_GQA_13B):.2f}. By the memory-bound model, a step gets "
            "shorter by the same factor."
        ),
    ),
    Choice(
        id="attention-ring-position",
        chapter="06_attention",
        section="A ring of places",
        level=2,
        text="A layer with a window of 4,096 keeps its keys in a ring of 4,096 places, numbered "
        "from 0. With which position does RoPE rotate the key of the token at position 10,000 of "
        "the text?",
        right="10,000",
        worked="Attention depends on the distance between query and key in the text. The place in "
        "memory is bookkeeping and must not show in the numbers.",
        wrong=(
            (
                "1,808",
                "That is its place in the ring, 10,000 mod 4,096. A query one round later would "
                "see it at a wrong distance.",
            ),
            (
                "4,095",
                "Then every new key would stand at the same position, and order would be lost.",
            ),
            (
                "5,904",
                "That is how far it lies behind the first window. Positions count from the "
                "beginning of the text.",
            ),
        ),
    ),
    Choice(
        id="attention-merge-heads",
        chapter="06_attention",
        section="What others measured on larger models",
        level=1,
        text="To save memory, someone averages the 32 KV heads of a deployed multi-head model in "
        "groups of 4, and trains nothing afterwards. What is to be expected?",
        right="The cache shrinks to a quarter; the model gets worse",
        worked="Heads of a group have learnt different keys; their mean is none of them. The GQA "
        "paper begins with the mean and then goes on training, with 5 % of the original steps.",
        wrong=(
            (
                "The cache shrinks to a quarter, and the model stays as good",
                "That is what a few percent of further training give, not the averaging.",
            ),
            (
                "The cache stays as it is, since queries still have 32 heads",
                "Queries are not cached. Keys and values are, and there are now 8 of each.",
            ),
            (
                "The cache shrinks to a quarter, and so do the weights",
                "Only the projections of keys and values shrink, a small part of the weights.",
            ),
        ),
    ),
    Explain(
        id="attention-choose-128k",
        chapter="06_attention",
        section="The cache against the context, all variants at once",
        level=3,
        text="You may choose the attention of a new 13B model that will serve contexts of 128k "
        "tokens. Compare grouped queries with 8 KV heads, latent attention (MLA), and five "
        "windowed layers for each global one. What speaks for and against each?",
        worked="Grouped queries: the cache falls by the ratio of heads, quality is close to "
        "multi-head attention, every engine supports it, and up to 8 devices split it evenly. But "
        "at 128k it still grows in every layer. MLA: the fewest bytes per token of "
        "all that see the whole text, at a quality near multi-head; it needs its own kernels, "
        "absorbed for decoding, and the latent belongs to no head, so tensor parallelism copies "
        "it. Windows: five of six layers stop growing, so long contexts cost about a sixth; the "
        "global layers still grow, and "
        "recall over long distances must be measured. The three combine. All must be trained in; "
        "none can be switched on at deployment. Decide by bytes per token at 128k, measured "
        "recall, and what the engine supports.",
        points=(
            "GQA: cache divided by the group, near full quality, supported everywhere, still grows",
            "MLA: smallest cache per token, but own kernels, and copies under tensor parallelism",
            "Windows: most layers stop growing, the global ones do not",
            "Recall over long distances has to be measured for windows",
            "It must be trained in, and cannot be changed at deployment",
        ),
    ),
)


def _score_bytes(n: int, n_heads: int) -> float:
    """Return the bytes of the scores of a layer: of four trips to memory, one."""
    return n_heads * naive_io_bytes(n, n, 0) / 4


FLASH = (
    Number(
        id="flash-score-matrix",
        chapter="07_flash",
        section="The matrix, and three walks over it",
        level=1,
        text="A prompt of 16,384 tokens, 32 query heads, bf16. How many GB (10⁹ bytes) would the "
        "full matrices of scores of one layer take, without a mask?",
        answer=lambda: _score_bytes(16384, 32) / GB,
        unit="GB",
        slips=(
            (lambda: _score_bytes(16384, 32) / GIB, "That is the number of GiB."),
            (lambda: _score_bytes(16384, 1) / GB, "That is one head of 32."),
            (lambda: 2 * _score_bytes(16384, 32) / GB, "That is in fp32, or scores and weights."),
        ),
        worked=lambda: (
            f"32 · 16,384² · 2 B = {_score_bytes(16384, 32) / GB:.1f} GB for a single layer. Twice "
            "the prompt takes four times as much, which is why nobody stores it."
        ),
    ),
    Number(
        id="flash-io",
        chapter="07_flash",
        section="How tall must a tile be?",
        level=2,
        text="One head of 128 numbers, 8,192 queries and 8,192 keys, bf16, no mask. A tiled kernel "
        "reads each query once and writes each output once. It reads all keys and all values once "
        "per block of 128 queries. How many MB (10⁶ bytes) does it move?",
        answer=lambda: io_bytes(8192, 8192, 128, block_q=128, block_k=128) / 1e6,
        unit="MB",
        slips=(
            (
                lambda: io_bytes(8192, 8192, 128, block_q=8192, block_k=128) / 1e6,
                "That is with keys and values read once in all. Each of 64 blocks reads them "
                "again.",
            ),
            (
                lambda: naive_io_bytes(8192, 8192, 128) / 1e6,
                "That is with scores and weights written to memory and read again.",
            ),
            (
                lambda: io_bytes(8192, 8192, 128, block_q=128, block_k=128) / 2**20,
                "That is the number of MiB.",
            ),
        ),
        worked=lambda: (
            "64 blocks read 2 · 8,192 · 128 numbers each; queries and outputs are 2 · 8,192 · 128 "
            f"more. With 2 bytes each: {io_bytes(8192, 8192, 128, 128, 128) / 1e6:.0f} MB. Blocks "
            "twice as tall halve nearly all of it."
        ),
    ),
    Choice(
        id="flash-exact",
        chapter="07_flash",
        section="A softmax, one score at a time",
        level=1,
        text="What does FlashAttention change, compared with attention that stores its scores?",
        right="Where scores are kept, and the order of the sums",
        worked="It computes the same softmax, piece by piece, and corrects earlier pieces when a "
        "larger score turns up. The difference is rounding.",
        wrong=(
            (
                "It leaves out scores that are too small to matter",
                "No score is left out. That would be sparse attention, and an approximation.",
            ),
            (
                "The number of FLOPs: it grows with the length instead of its square",
                "Memory grows with the length. The pairs are all still computed.",
            ),
            (
                "The softmax, which is replaced by a function that can be cut into tiles",
                "It is the softmax. That it can be cut is the discovery.",
            ),
        ),
    ),
    Choice(
        id="flash-bug-total",
        chapter="07_flash",
        section="The trick: be ready to be wrong",
        level=2,
        text="An online softmax that mixes values. Before the loop, `peak` is minus infinity, "
        "`total` and `out` are 0, and all scores are finite. On some inputs the result is wrong. "
        "What must change?",
        code="for s, v in zip(scores, values):\n"
        "    new = max(peak, s)\n"
        "    total = total + exp(s - new)\n"
        "    out = out * exp(peak - new) + exp(s - new) * v\n"
        "    peak = new\n"
        "result = out / total",
        right="`total` must be multiplied by `exp(peak - new)`",
        worked="When a larger score comes, what was summed so far was relative to the old peak. "
        "The output is corrected and the total is not. It is right only where the first score is "
        "the largest.",
        wrong=(
            (
                "`peak` must start at 0, since minus infinity gives NaN",
                "exp(-∞ - new) is 0, which is right: nothing was there before. NaN needs -∞ - "
                "(-∞).",
            ),
            (
                "`out` must be divided by `total` in each step",
                "Once at the end is enough, as long as both refer to the same peak.",
            ),
            (
                "The scores must be sorted first",
                "Any order gives the same sums. That is what makes tiles possible.",
            ),
        ),
    ),
    Explain(
        id="flash-slow-decode",
        chapter="07_flash",
        section="One query, many keys",
        level=3,
        text="A single conversation of 100k tokens decodes slowly. The attention kernel is "
        "FlashAttention as for prompts, one block of threads for each head and block of queries. "
        "Why does it not come near the card's bandwidth, and what helps?",
        worked="In decode there is one query, so the only independent pieces are the heads: some "
        "dozens, or with grouped queries one piece per KV head. A card has more than a hundred "
        "processors, and most have nothing to do while a few walk along 100k keys. No score matrix "
        "is saved either: with one query it is one row. Splitting the keys helps: each processor "
        "takes a part, "
        "gives a partial result with its peak and total, and a last step merges them, exactly. "
        "More sequences in the batch fill the card, too. Beyond that only fewer bytes help: fewer "
        "KV heads, a quantised cache, windows.",
        points=(
            "One query gives no blocks of queries to work on in parallel, only heads",
            "So most processors of the card are idle: the kernel cannot draw the full bandwidth",
            "Split the keys, and merge partial results by their peaks and totals (split-KV)",
            "The score matrix is not the problem in decode: it is one row",
            "After that only fewer bytes help: GQA, quantised cache, windows",
        ),
    ),
)

_NEXT = ARCHITECTURES["Qwen3-Next-80B-A3B"]
_STATE = next(layer.recurrent for layer in _NEXT.layers if layer.recurrent is not None)
_PER_LAYER = 2 * 2 * 256 * 2

RECURRENT = (
    Number(
        id="recurrent-hybrid-cache",
        chapter="08_recurrent",
        section="Who mixes what",
        level=1,
        text="Qwen3-Next-80B-A3B has 48 layers. 12 have attention with 2 KV heads of 256 numbers, "
        "the other 36 keep a state of fixed size. How many GB (10⁹ bytes) of keys and values does "
        "one sequence of 262,144 tokens take in bf16?",
        answer=lambda: kv_cache_bytes(_NEXT, 262144) / GB,
        unit="GB",
        slips=(
            (
                lambda: 48 * 262144 * _PER_LAYER / GB,
                "Only 12 of the 48 layers have a cache that grows.",
            ),
            (lambda: 0, "A hybrid still has attention layers, and they keep all tokens."),
            (lambda: kv_cache_bytes(_NEXT, 262144) / GIB, "That is the number of GiB."),
            (
                lambda: kv_cache_bytes(_NEXT, 262144) / 2 / GB,
                "Keys and values: the factor 2 is missing.",
            ),
        ),
        worked=lambda: (
            "12 layers · 2 · 2 heads · 256 · 2 B = 24,576 B for a token. The slope is a quarter of "
            f"that of 48 attention layers, not zero: {kv_cache_bytes(_NEXT, 262144) / GB:.2f} GB."
        ),
    ),
    Number(
        id="recurrent-crossover",
        chapter="08_recurrent",
        section="Who mixes what",
        level=3,
        text="A recurrent layer of a hybrid keeps, for each sequence, a state of "
        f"{_STATE.state_elements:,} numbers in fp32, and {_STATE.conv_elements:,} numbers of its "
        "convolution's input in bf16. An attention layer in its place "
        "would keep 2 KV heads of 256 numbers in bf16. Beyond how many tokens does the recurrent "
        "layer keep less?",
        answer=lambda: crossover_tokens(_NEXT),
        unit="tokens",
        slips=(
            (
                lambda: (_STATE.state_elements + _STATE.conv_elements) * 2 / _PER_LAYER,
                "The state is in fp32: four bytes for each of its numbers.",
            ),
            (
                lambda: 2 * crossover_tokens(_NEXT),
                "Attention keeps keys and values: the factor 2 is missing.",
            ),
            (
                lambda: crossover_tokens(_NEXT) / 2,
                "Twice too few. A token takes 2 · 2 · 256 numbers of two bytes.",
            ),
        ),
        worked=lambda: (
            f"{_STATE.state_elements:,} · 4 + {_STATE.conv_elements:,} · 2 bytes, over "
            f"{_PER_LAYER:,} B a "
            "token: "
            f"{crossover_tokens(_NEXT):,.0f} tokens. In short chats the fixed state is the larger "
            "memory."
        ),
    ),
    Choice(
        id="recurrent-prefix",
        chapter="08_recurrent",
        section="Pitfalls",
        level=2,
        text="A server has processed a prompt of 1,000 tokens and kept what the model needs to go "
        "on. A new prompt shares its first 700 tokens. What can it reuse: with attention layers "
        "only, and with recurrent layers only? Nothing else was stored.",
        right="Attention: the cache of 700 tokens. Recurrent: nothing.",
        worked="A cache has an entry for each token and can be cut at 700. A state is one sum over "
        "all 1,000 and cannot be cut. Servers therefore store snapshots of states at some lengths.",
        wrong=(
            (
                "Attention: the cache of 700 tokens. Recurrent: the state, which is shared.",
                "The state has mixed in the 300 tokens that the new prompt does not have.",
            ),
            (
                "Attention: nothing. Recurrent: the state after 700 tokens.",
                "No such state was stored: each step overwrites it. And a cache can be cut.",
            ),
            (
                "Both: nothing, since the prompts end differently.",
                "Causal attention: what comes later never changes the first 700 entries.",
            ),
        ),
    ),
    Choice(
        id="recurrent-recall",
        chapter="08_recurrent",
        section="What a matrix can hold",
        level=1,
        text="You suspect that a model with a state of fixed size forgets. Which test shows it "
        "best?",
        right="Give it many names with numbers, and ask for each",
        worked="A state holds only so many associations before they overwrite each other. Fluency "
        "and mean loss hardly show it; recall of many facts does.",
        wrong=(
            (
                "Compare the mean loss on ordinary prose with that of a transformer",
                "Most words follow from the last sentences. The loss hides rare recalls.",
            ),
            (
                "Ask it to continue a very long text, and judge whether that is fluent",
                "Fluency needs the recent past, which the state holds well.",
            ),
            (
                "Time a step at growing context",
                "Its time stays the same by design. That says nothing about what it remembers.",
            ),
        ),
    ),
    Choice(
        id="recurrent-diffusion",
        chapter="08_recurrent",
        section="Another way out: write everywhere at once",
        level=2,
        text="A masked diffusion model writes a block of 256 tokens in 32 passes. In each pass it "
        "computes all 256 positions, without a cache inside the block. An autoregressive model of "
        "the same size with a KV cache writes the same 256 tokens. Who does fewer FLOPs in the "
        "linear layers, and why can the other still be sooner?",
        right="Autoregressive, 32 times fewer; diffusion makes 8 times fewer passes",
        worked="32 passes of 256 positions are 8,192 token-forwards against 256. But 32 passes "
        "read the weights 32 times instead of 256. At batch 1, where reading is what takes time, "
        "that can win. In a full batch, where arithmetic is what takes time, it loses.",
        wrong=(
            (
                "Autoregressive, 8 times fewer; diffusion makes 32 times fewer passes",
                "Swapped: 8,192 against 256 positions is 32 times, 256 against 32 passes is 8 "
                "times.",
            ),
            (
                "Diffusion, 8 times fewer, since each pass writes 8 tokens",
                "Each pass computes all 256 positions to fix some 8 of them.",
            ),
            (
                "Neither: both compute 256 tokens once",
                "The diffusion model computes each position in every pass again.",
            ),
        ),
    ),
    Explain(
        id="recurrent-parallel-training",
        chapter="08_recurrent",
        section="Three ways to compute the same",
        level=3,
        text="A classic RNN cannot be trained in parallel along the text; linear attention can, "
        "although both have a state. Why? How does the chunked form work, and what is it good for "
        "at inference?",
        worked="The step of a classic RNN puts the state through a nonlinear function, so step t "
        "needs step t - 1. In linear attention the state is updated linearly: it is a sum of outer "
        "products of keys and values, perhaps with decay. Sums can be regrouped. In the chunked "
        "form the text is cut in chunks; within one, queries meet keys as in masked attention, in "
        "large products; between chunks, only the state is handed on. It gives the same numbers up "
        "to rounding. At inference it computes a prompt fast, and the recurrent form then writes "
        "token by token with constant memory.",
        points=(
            "An RNN's step is nonlinear in the state, so steps must come one after another",
            "Here the state is updated linearly, so the sums can be regrouped",
            "Within a chunk as masked products, between chunks by the state",
            "Chunked for the prompt (and training), recurrent for decoding; equal up to rounding",
        ),
    ),
)


def _outlier_step() -> float:
    """Return the distance between neighbouring codes once an outlier of 50 sets the scale."""
    return float(quantize(np.array([0.5, -1.0, 50.0]), bits=8).scale.item())


def _speedup(batch: int) -> float:
    before = decode_step(LLAMA_8B, H100, batch, 8192)
    return before.step_s / decode_step(LLAMA_8B, H100, batch, 8192, dtype="int4").step_s


QUANTIZATION = (
    Number(
        id="quantization-q4-file",
        chapter="09_quantization",
        section="As bytes on disk",
        level=1,
        text="All 8.03 billion weights of a model are stored in q4_0: blocks of 32 codes of 4 bits "
        "with one 16-bit scale. How many GB (10⁹ bytes) is that?",
        answer=lambda: LLAMA_8B.n_params * GGUF_LAYOUTS["q4_0"].bits / 8 / GB,
        unit="GB",
        slips=(
            (lambda: LLAMA_8B.n_params * 0.5 / GB, "The scales take memory, too."),
            (
                lambda: LLAMA_8B.n_params * GGUF_LAYOUTS["q4_0"].bits / 8 / GIB,
                "That is the number of GiB.",
            ),
            (
                lambda: LLAMA_8B.n_params * 20 / 8 / GB,
                "The scale is shared by the block: 16 bits for 32 weights, not for each.",
            ),
        ),
        worked=lambda: (
            "(32 · 4 + 16) / 32 = 4.5 bits for a weight, so "
            f"{LLAMA_8B.n_params * GGUF_LAYOUTS['q4_0'].bits / 8 / GB:.2f} GB."
        ),
    ),
    Number(
        id="quantization-outlier-step",
        chapter="09_quantization",
        section="A scale puts the ruler where the numbers are",
        level=1,
        text="A tensor has one scale (absmax) and symmetric codes from -127 to 127. Its numbers "
        "lie between -1 and 1, but for a single 50. How far apart are two neighbouring values that "
        "it can store?",
        answer=_outlier_step,
        unit="",
        slips=(
            (lambda: 1 / 127, "The outlier sets the scale: the largest code stands for 50."),
            (lambda: 2 * 50 / 127, "There are 127 steps on each side of zero, 254 in all."),
            (lambda: 51 / 254, "Codes are symmetric: they reach as far down as up, to -50."),
        ),
        worked=lambda: (
            f"50 / 127 = {_outlier_step():.3f}. Nearly all numbers fall on one of five values. So "
            "scales are given per channel or per group, or outliers are treated apart."
        ),
    ),
    Number(
        id="quantization-ridge-moves",
        chapter="09_quantization",
        section="Which bits count for what?",
        level=2,
        text=f"{CARD} "
        "Weights are stored in 4 bits and multiplied in bf16. Unpacking is free; scales, "
        "activations and the cache are left out. From which number of tokens per pass on does the "
        "arithmetic of the linear layers take longer than reading their weights?",
        answer=lambda: H100.ridge_point() * BYTES["int4"] / 2,
        unit="tokens",
        slips=(
            (
                lambda: H100.ridge_point(),
                "That is with bf16 weights. A 4-bit weight is read in a quarter of the time.",
            ),
            (
                lambda: H100.ridge_point() * BYTES["int8"] / 2,
                "Twice too many: half a byte per weight, and two FLOPs per weight and token.",
            ),
            (
                lambda: H100.ridge_point() * 4,
                "The wrong way: fewer bytes to read let the arithmetic become the limit sooner.",
            ),
        ),
        worked=lambda: (
            "Two FLOPs per weight and token over half a byte: 4 FLOPs per byte and token. The "
            f"ridge is {H100.ridge_point():.0f}, so {H100.ridge_point() / 4:.0f} tokens. Up to "
            "there a pass takes a quarter of the time that it takes with bf16 weights. Beyond, the "
            f"gain falls, and at {H100.ridge_point():.0f} tokens it is gone."
        ),
    ),
    Number(
        id="quantization-batch-speedup",
        chapter="09_quantization",
        section="Which bits count for what?",
        level=2,
        text=f"{SHAPE_8B} "
        "A decode step waits for memory: it reads all weights and the caches of 64 sequences "
        "of 8,192 tokens. The weights go from bf16 to 4 bits (scales left out), the cache stays in "
        "bf16. By which factor does the step get shorter, old time over new?",
        answer=lambda: _speedup(64),
        unit="",
        slips=(
            (lambda: 4, "The weights shrink four times. Most of what is read here is cache."),
            (lambda: 1, "The weights are a fifth of the bytes. Saving most of that does show."),
            (lambda: 1 / _speedup(64), "Upside down: this is the new time over the old."),
        ),
        worked=lambda: (
            f"Cache: {kv_cache_bytes(LLAMA_8B, 8192, 64) / GB:.1f} GB. Weights: "
            f"{LLAMA_8B.n_params * 2 / GB:.1f} GB, then {LLAMA_8B.n_params / 2 / GB:.1f} GB. The "
            f"quotient of the sums is {_speedup(64):.2f}. At batch 1 it would be {_speedup(1):.1f}."
        ),
    ),
    Choice(
        id="quantization-noise",
        chapter="09_quantization",
        section="Pitfalls",
        level=2,
        text="On the same 200 documents, method A has a loss of 2.004 ± 0.030 nats per token, "
        "method B of 2.000 ± 0.030 (standard errors over documents). What follows?",
        right="Nothing yet: look at the difference per document",
        worked="Most of the ± 0.030 is that documents differ, and it is the same for both methods. "
        "Paired differences leave it out, and may show 0.004 with certainty.",
        wrong=(
            (
                "They are equally good, since the intervals overlap",
                "Overlap says little where both were measured on the same documents.",
            ),
            (
                "B is better, since its mean is lower",
                "It may be. Without the error of the difference, that is a guess.",
            ),
            (
                "The 200 documents are too few, whatever is computed",
                "Paired, they may be plenty: what varies is then only the effect of the method.",
            ),
        ),
    ),
    Explain(
        id="quantization-not-faster",
        chapter="09_quantization",
        section="And how much faster?",
        level=3,
        text="In production, a model with 4-bit weights is no faster than in bf16. What do you "
        "check, in which order, and what would each finding mean?",
        worked="First the batch and the length of prompts: where many tokens share a pass, the "
        "arithmetic is the limit, and it still runs in bf16. Then what share of the bytes are "
        "weights: at long contexts the cache dominates, and should be quantised instead. Then the "
        "kernel: does it unpack on the chip while multiplying, or write bf16 weights to memory "
        "first? Was there a fallback for a layer, a card or a group size? Then overheads: at batch "
        "1 a small model may be limited by launches. One measurement separates much of it: a "
        "single sequence, short context. If it is not faster even there, it is the kernel or "
        "overhead; if it is, it is the load.",
        points=(
            "Batch or prompt length: in the compute-bound regime 4-bit weights save no time",
            "Share of the cache in the bytes of a step",
            "Whether the kernel unpacks on the chip, or falls back to writing bf16 weights",
            "Overheads that do not depend on bytes, such as launches",
            "A test at batch 1 and short context to tell these apart",
        ),
    ),
)

_CUT = LLAMA_8B.replace(n_layers=24)


def _repair_cost(student_b: float, teacher_b: float) -> float:
    """Return FLOPs of a distillation over those of training the student alone."""
    return (6 * student_b + 2 * teacher_b) / (6 * student_b)


PRUNING = (
    Number(
        id="pruning-depth",
        chapter="10_pruning",
        section="Cut",
        level=2,
        text="8 of the 32 layers of Llama-3.1-8B are cut out. The whole model has "
        f"{LLAMA_8B.n_params / 1e9:.2f} billion parameters. The input embedding and the output "
        f"matrix have {LLAMA_8B.vocab_size:,} · 4,096 each and stay. How many billion parameters "
        "are left?",
        answer=lambda: _CUT.n_params / 1e9,
        unit="billion",
        rtol=0.01,
        slips=(
            (
                lambda: 0.75 * LLAMA_8B.n_params / 1e9,
                "The two tables are not in the layers, and stay whole.",
            ),
            (
                lambda: (LLAMA_8B.n_params - _CUT.n_params) / 1e9,
                "That is what was cut. The question asks for what is left.",
            ),
        ),
        worked=lambda: (
            "The tables have 2 · 128,256 · 4,096 = 1.05 billion. The layers have the other 6.98 "
            f"billion, and three quarters of them stay: {_CUT.n_params / 1e9:.2f} billion in all."
        ),
    ),
    Number(
        id="pruning-repair-cost",
        chapter="10_pruning",
        section="A published repair, read again",
        level=2,
        text="A student of 4 billion parameters is trained on the full output distributions of a "
        "teacher of 15 billion. The teacher reads each training token once, in a forward pass, and "
        "nothing is stored. How many times the FLOPs of plain training of the student on as many "
        "tokens does that take? Count 2 FLOPs per parameter and token forward, 6 in training.",
        answer=lambda: _repair_cost(4, 15),
        unit="",
        slips=(
            (lambda: 1, "The teacher reads every token, too, and is the larger model."),
            (
                lambda: (6 * 4 + 6 * 15) / (6 * 4),
                "The teacher is not trained: it only goes forward, 2 FLOPs per parameter.",
            ),
            (
                lambda: 2 * 15 / (6 * 4),
                "That is the teacher alone. The student is trained as well.",
            ),
        ),
        worked=lambda: (
            f"(6 · 4 + 2 · 15) / (6 · 4) = {_repair_cost(4, 15):.2f}. So a repair with forty times "
            "fewer tokens than training is not forty times cheaper."
        ),
    ),
    Choice(
        id="pruning-zeros",
        chapter="10_pruning",
        section="Do zeros save time?",
        level=1,
        text="Half of the weights of a model, chosen one by one by size, are set to zero. The "
        "matrices stay stored and multiplied as before, in dense bf16. How much faster is a step?",
        right="Not at all",
        worked="A dense kernel reads and multiplies zeros like any number. Time falls with smaller "
        "matrices (whole heads, neurons, layers cut), or with a pattern that hardware knows, such "
        "as two of four, and a kernel for it.",
        wrong=(
            ("About 1.5 times", "Nothing in a dense kernel looks for zeros."),
            ("About twice", "Half of the numbers are zero, and all of them are still read."),
            (
                "Twice in prefill, not at all in decode",
                "In prefill the zeros are multiplied as well.",
            ),
        ),
    ),
    Choice(
        id="pruning-loud",
        chapter="10_pruning",
        section="Score the parts",
        level=3,
        text="One hidden neuron of an MLP gets outgoing weights ten times smaller, and what it "
        "says gets ten times larger, so that the model computes the same function. Which measure "
        "of importance changes for this neuron?",
        right="The mean size of its activation",
        worked="The activation is ten times as large, and the neuron matters as much as before. "
        "A good criterion looks at the effect on the output or the loss.",
        wrong=(
            (
                "The mean size of activation times gradient of the loss",
                "The gradient for the activation falls by ten as the activation grows: the product "
                "stays.",
            ),
            (
                "The rise of the loss when the neuron is removed",
                "Same function with it, same function without it: the rise is the same.",
            ),
            (
                "The size of its activation times that of its outgoing weights",
                "One grows by ten, the other falls by ten.",
            ),
        ),
    ),
    Choice(
        id="pruning-teacher",
        chapter="10_pruning",
        section="A teacher says more than a text",
        level=1,
        text="Why does a pruned model recover with fewer tokens when it learns from a teacher's "
        "distributions than when it learns from the text alone?",
        right="Each position teaches the probabilities of all tokens",
        worked="The text shows one draw from what could follow. The teacher gives its whole "
        "distribution, so there is far more information, and less noise, in every position.",
        wrong=(
            (
                "The teacher's text has fewer mistakes than the training text",
                "The text may be the very same. What is added is the distribution at each place.",
            ),
            (
                "The teacher's gradients are copied into the student",
                "Their sizes do not even fit. The student has gradients of its own.",
            ),
            (
                "The teacher skips the positions that are hard to predict",
                "None is skipped. Where it is unsure, it says so.",
            ),
        ),
    ),
    Explain(
        id="pruning-or-quantise",
        chapter="10_pruning",
        section="Decide",
        level=2,
        text="One user, one card, and a 14B model in bf16 whose tokens come too slowly by a factor "
        "of three. You can quantise to 4 bits, prune to a third and repair, or take a smaller "
        "model of another maker. In which order do you try, and what do you measure?",
        worked="For one user a token is the reading of the weights, so all three save bytes. First "
        "4 bits in groups: about 3.5 times fewer bytes, no training, an hour of work, and a loss "
        "that is usually small. Measure the loss on own texts, the task itself, and the speed with "
        "the kernel at hand. If that is not enough, look at a ready smaller model, which costs "
        "nothing to try. Pruning to a third loses much, and needs a repair with many tokens and "
        "the teacher's forward passes, so it comes last; it combines with 4 bits. Compare at equal "
        "bytes or equal speed, not at equal names.",
        points=(
            "At batch 1, time per token follows the bytes of the weights",
            "4 bits first: near a quarter of the bytes without training",
            "Pruning needs a repair by training, which costs tokens and a teacher",
            "Measure quality on one's own task as well as speed on the real kernel",
        ),
    ),
)

QUESTIONS: tuple[InterviewQuestion, ...] = (
    *ATTENTION,
    *FLASH,
    *RECURRENT,
    *QUANTIZATION,
    *PRUNING,
)
